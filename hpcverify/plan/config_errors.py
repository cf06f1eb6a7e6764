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
    number = r"Expected `(?:float|int)"
    if found := re.fullmatch(rf"{number}` ([<>]=? \S+?)(?:\.0)? - at `\$\.?(.*)`", fault):
        return f"{found[2]} must be {found[1]}"
    if found := re.fullmatch(rf"{number}(?: \| null)?`, got `str` - at `\$\.?(.*)`", fault):
        how = "without quotes, with a decimal point and no separators"
        return f"{found[1]} must be a number: write it {how}"
    if found := re.match(r"Invalid enum value .* at (?:`key` in )?`\$\.(.*)`", fault):
        choices: list[str] = []
        for inner in _find_kinds(found[1], kind):
            if isinstance(inner, type) and issubclass(inner, Enum):
                choices += (str(each.value) for each in inner)
            elif get_origin(inner) is Literal:
                choices += map(str, get_args(inner))
        return f"{fault}; known: {', '.join(filter(None, choices))}"
    if found := re.search(r"unknown field `(.*?)`(?: - at `\$\.?(.*)`)?", fault):
        tables = [k for k in _find_kinds(found[2] or "", kind) if isinstance(k, type)]
        structs = (table for table in tables if issubclass(table, Struct))
        fields = (field for table in structs for field in msgspec.structs.fields(table))
        known = list(dict.fromkeys(field.encode_name for field in fields))
        near = get_close_matches(found[1], known, n=1)
        return (
            f"{fault}; did you mean {near[0]}?" if near else f"{fault}; known: {', '.join(known)}"
        )
    return fault


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
