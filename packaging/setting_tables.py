"""The settings of a site file and of a suite file, read from the structs that read the files."""

from __future__ import annotations

import ast
import inspect
import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from enum import Enum
from functools import cache
from textwrap import dedent
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec
from msgspec import Meta, Struct

from hpcverify.check import Setting
from hpcverify.plan.config import SiteFile
from hpcverify.plan.suite import Suite, SuiteEntry

REQUIRED, NO_DEFAULT = "required", "none"
UNITS = {
    "hours": "h",
    "days": "d",
    "minutes": "min",
    "nights": "nights",
    **dict.fromkeys(("seconds", "timeout", "budget", "settle", "pause"), "s"),
}
"""The unit of a setting, by the last word of its name."""
NAMES = {str: "text", bool: "true or false", int: "integer", float: "number", date: "date"}
BEYOND = {(Suite, "name")}
"""Fields that no file sets."""


@dataclass(frozen=True)
class SettingRow:
    """A setting."""

    name: str
    kind: str
    """What its value may be, in words; exact values are in double backticks."""
    unit: str
    """Empty if it has none."""
    default: str
    """As TOML writes it, or `REQUIRED` or `NO_DEFAULT`."""
    meaning: str


@dataclass(frozen=True)
class SettingTable:
    """A table of a file."""

    heading: str
    """As the file writes it, ``[fleet]``; empty for the settings before any table."""
    meaning: str
    rows: tuple[SettingRow, ...]


def list_site_tables() -> Iterator[SettingTable]:
    """Yield each table of a site file, first the settings before any table."""
    yield SettingTable("", "", _list_rows(SiteFile))
    for field in msgspec.structs.fields(SiteFile):
        if (struct := _find_struct(field.type)) is not None:
            several = get_origin(field.type) is tuple
            name = field.encode_name
            yield _make_table(f"[[{name}]]" if several else f"[{name}]", struct)
    yield _make_table("[limits.CHECK]", Setting)


def list_suite_tables() -> Iterator[SettingTable]:
    """Yield each table of a suite file, first the settings before any table."""
    yield SettingTable("", "", _list_rows(Suite))
    yield _make_table("[[check]]", SuiteEntry)


def _make_table(heading: str, struct: type[Struct]) -> SettingTable:
    return SettingTable(heading, inspect.getdoc(struct) or "", _list_rows(struct))


def _list_rows(struct: type[Struct]) -> tuple[SettingRow, ...]:
    """List the settings of *struct* that are no table of their own."""
    return tuple(
        SettingRow(
            name=field.encode_name,
            kind=_name_kind(field.type),
            unit=UNITS.get(field.encode_name.rpartition("_")[2], ""),
            default=_format_default(field),
            meaning=_read_meanings(struct).get(field.name, ""),
        )
        for field in msgspec.structs.fields(struct)
        if _find_struct(field.type) is None and (struct, field.name) not in BEYOND
    )


def _format_default(field: msgspec.structs.FieldInfo) -> str:
    if field.required:
        return REQUIRED
    default: Any = field.default
    if default is msgspec.NODEFAULT:
        factory: Any = field.default_factory
        default = factory()
    if default is None or default in ("", (), {}):
        return NO_DEFAULT
    return msgspec.json.encode(default).decode()


def _name_kind(kind: Any) -> str:
    """Say in words what a value may be."""
    arguments, origin = get_args(kind), get_origin(kind)
    if origin is Annotated:
        bounds = [_format_bounds(meta) for meta in arguments[1:] if isinstance(meta, Meta)]
        return " ".join(filter(None, (_name_kind(arguments[0]), *bounds)))
    if origin is Literal:
        return " or ".join(f"``{choice}``" for choice in arguments)
    if origin in (types.UnionType, typing.Union):
        return " or ".join(_name_kind(a) for a in arguments if a is not types.NoneType)
    if origin is not None:
        several, inner = ("list", 0) if origin is tuple else ("table", 1)
        return f"{several} of {_name_kind(arguments[inner])}"
    if isinstance(kind, type) and issubclass(kind, Enum):
        return ", ".join(f"``{choice.value}``" for choice in kind if choice.value)
    return NAMES.get(kind, "table" if _find_struct(kind) else "any value")


def _format_bounds(meta: Meta) -> str:
    signs = ((">", meta.gt), (">=", meta.ge), ("<", meta.lt), ("<=", meta.le))
    return ", ".join(f"{sign} {bound:g}" for sign, bound in signs if bound is not None)


def _find_struct(kind: Any) -> type[Struct] | None:
    """Find the struct of a table, or of each table of a list."""
    if get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    if get_origin(kind) is tuple:
        kind = get_args(kind)[0]
    return kind if isinstance(kind, type) and issubclass(kind, Struct) else None


@cache
def _read_meanings(struct: type[Struct]) -> dict[str, str]:
    """Read the text below each field."""
    (defined,) = ast.parse(dedent(inspect.getsource(struct))).body
    meanings: dict[str, str] = {}
    name = ""
    for node in getattr(defined, "body", ()):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            name = node.target.id
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and name:
            meanings[name] = " ".join(str(node.value.value).split())
            name = ""
    return meanings
