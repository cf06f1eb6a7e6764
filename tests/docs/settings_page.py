"""The settings of docs/reference/configuration.md, from the structs that read the site file."""

from __future__ import annotations

import ast
import inspect
import types
import typing
from collections.abc import Iterator
from datetime import date
from enum import Enum
from functools import cache
from textwrap import dedent
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec
from msgspec import Meta, Struct

from hpcverify.plan.config import Setting, SiteFile
from hpcverify.plan.suite import Suite, SuiteEntry
from tests.docs.markdown import format_code, format_text, write_table

UNITS = {
    "hours": "h",
    "days": "d",
    "minutes": "min",
    "nights": "nights",
    "share": "of 1",
    "floor": "of 1",
    **dict.fromkeys(("seconds", "timeout", "budget", "settle", "pause"), "s"),
}
"""The unit of a setting, by the last word of its name."""
NAMES = {str: "text", bool: "true or false", int: "integer", float: "number", date: "date"}
COLUMNS = ("setting", "type", "unit", "default", "meaning")
BEYOND = {(Suite, "name")}
"""Fields that no file sets."""


def write_settings() -> Iterator[str]:
    """Yield each table of a site file, and of a suite file, with its settings."""
    yield "## Settings of the site file"
    yield ""
    yield "These stand at the top, before any table."
    yield ""
    tables = [field for field in _fields(SiteFile) if _find_struct(field.type) is not None]
    plain = [field for field in _fields(SiteFile) if field not in tables]
    yield from write_table(COLUMNS, (_list_cells(SiteFile, field) for field in plain))
    for field in tables:
        struct = _find_struct(field.type)
        assert struct is not None
        several = get_origin(field.type) is tuple
        head = f"[[{field.encode_name}]]" if several else f"[{field.encode_name}]"
        yield from _write_struct(head, struct)
    yield from _write_struct("[limits.CHECK]", Setting)
    yield "## Settings of a suite file"
    yield ""
    yield "Each `[[check]]` is a check to run, in this order."
    yield ""
    rows = (_list_cells(Suite, f) for f in _fields(Suite) if _find_struct(f.type) is None)
    yield from write_table(COLUMNS, rows)
    yield from _write_struct("[[check]]", SuiteEntry)


def list_settings() -> Iterator[tuple[str, str]]:
    """Yield every setting that has no table of its own, with its meaning."""
    tables = [
        found for field in _fields(SiteFile) if (found := _find_struct(field.type)) is not None
    ]
    structs: list[type[Struct]] = [SiteFile, *tables, Setting, Suite, SuiteEntry]
    for struct in structs:
        for field in _fields(struct):
            if _find_struct(field.type) is None:
                name = f"{struct.__name__}.{field.encode_name}"
                yield name, _read_meanings(struct).get(field.encode_name, "")


def _write_struct(head: str, struct: type[Struct]) -> Iterator[str]:
    yield f"### `{head}`"
    yield ""
    yield format_text(inspect.getdoc(struct) or "")
    yield ""
    yield from write_table(COLUMNS, (_list_cells(struct, field) for field in _fields(struct)))


def _fields(struct: type[Struct]) -> list[msgspec.structs.FieldInfo]:
    return [f for f in msgspec.structs.fields(struct) if (struct, f.encode_name) not in BEYOND]


def _list_cells(struct: type[Struct], field: msgspec.structs.FieldInfo) -> tuple[str, ...]:
    name = field.encode_name
    return (
        format_code(name),
        format_text(_name_type(field.type)),
        UNITS.get(name.rpartition("_")[2], ""),
        _format_default(field),
        format_text(_read_meanings(struct).get(name, "")),
    )


def _format_default(field: msgspec.structs.FieldInfo) -> str:
    if field.required:
        return "required"
    if field.default is None:
        return "none"
    if field.default is msgspec.NODEFAULT:
        factory: Any = field.default_factory
        return "none" if not factory() else format_code(msgspec.json.encode(factory()).decode())
    if field.default in ("", ()):
        return "none"
    return format_code(msgspec.json.encode(field.default).decode())


def _name_type(kind: Any) -> str:
    """Say in words what a value may be."""
    arguments, origin = get_args(kind), get_origin(kind)
    if origin is Annotated:
        bounds = [_format_bounds(meta) for meta in arguments[1:] if isinstance(meta, Meta)]
        return " ".join(filter(None, (_name_type(arguments[0]), *bounds)))
    if origin is Literal:
        return " or ".join(format_code(str(choice)) for choice in arguments)
    if origin in (types.UnionType, typing.Union):
        return " or ".join(_name_type(a) for a in arguments if a is not types.NoneType)
    if origin is not None:
        several, inner = ("list", 0) if origin is tuple else ("table", 1)
        return f"{several} of {_name_type(arguments[inner])}"
    if isinstance(kind, type) and issubclass(kind, Enum):
        return ", ".join(format_code(str(choice.value)) for choice in kind if choice.value)
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
    """Read the text below each field; a field without one shares that of the next."""
    (defined,) = ast.parse(dedent(inspect.getsource(struct))).body
    assert isinstance(defined, ast.ClassDef)
    meanings: dict[str, str] = {}
    waiting: list[str] = []
    for node in defined.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            waiting.append(node.target.id)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            meanings |= dict.fromkeys(waiting[-1:], str(node.value.value))
            waiting = []
        else:
            waiting = []
    return meanings
