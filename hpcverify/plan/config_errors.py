"""What is wrong in a file of configuration: imported only when something is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import get_close_matches
from enum import Enum
from typing import Literal, get_args, get_origin

import msgspec
from msgspec import Struct


def explain_mismatch(fault: str, kind: object) -> str:
    """Say why the content of a file is not a value of *kind*, by msgspec's *fault*."""
    reason = _explain_range_error(fault)
    return f"{reason}{_suggest_fix(reason, kind)}"


def _explain_range_error(fault: str) -> str:
    """Say where a number is out of range, and what it must be."""
    found = re.fullmatch(r"Expected `(?:float|int)` ([<>]=? \S+?)(?:\.0)? - at `\$\.?(.*)`", fault)
    if found is not None:
        return f"{found[2]} must be {found[1]}"
    text = re.fullmatch(r"Expected `(?:float|int)(?: \| null)?`, got `str` - at `\$\.?(.*)`", fault)
    wanted = "a number: write it without quotes, with a decimal point and no separators"
    return fault if text is None else f"{text[1]} must be {wanted}"


def _suggest_fix(fault: str, kind: object) -> str:
    if choice := re.match(r"Invalid enum value .* at (?:`key` in )?`\$\.(.*)`", fault):
        return f"; known: {', '.join(filter(None, _list_choices(choice[1], kind)))}"
    unknown = re.search(r"unknown field `(.*?)`(?: - at `\$\.?(.*)`)?", fault)
    if unknown is None:
        return ""
    known = list(dict.fromkeys(_list_field_names(unknown[2] or "", kind)))
    near = get_close_matches(unknown[1], known, n=1)
    return f"; did you mean {near[0]}?" if near else f"; known: {', '.join(known)}"


def _list_choices(place: str, kind: object) -> Iterator[str]:
    """List the valid values at *place*, as ``quarantine.backend``."""
    for found in _find_kinds(place, kind):
        if isinstance(found, type) and issubclass(found, Enum):
            yield from (str(each.value) for each in found)
        elif get_origin(found) is Literal:
            yield from map(str, get_args(found))


def _list_field_names(place: str, kind: object) -> Iterator[str]:
    """List the fields that a table at *place* may have."""
    for found in _find_kinds(place, kind):
        if isinstance(found, type) and issubclass(found, Struct):
            yield from (field.encode_name for field in msgspec.structs.fields(found))


def _find_kinds(place: str, kind: object) -> Iterator[object]:
    """Find the types of a value at *place* of a *kind*, as ``expect[0].mounts[1]``."""
    name, _, rest = re.sub(r"\[.*?\]", "", place).partition(".")
    if name and isinstance(kind, type) and issubclass(kind, Struct):
        for field in msgspec.structs.fields(kind):
            if field.encode_name == name:
                yield from _find_kinds(rest, field.type)
    elif get_args(kind) and get_origin(kind) is not Literal:
        for inner in get_args(kind):
            yield from _find_kinds(place, inner)
    elif not name:
        yield kind
