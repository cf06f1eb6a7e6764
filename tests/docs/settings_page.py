"""The settings of docs/reference/configuration.md, from the structs that read the files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from setting_tables import (
    NO_DEFAULT,
    REQUIRED,
    SettingRow,
    SettingTable,
    list_site_tables,
    list_suite_tables,
)
from tests.docs.markdown import format_code, format_text, write_table

COLUMNS = ("setting", "type", "unit", "default", "meaning")


def write_settings() -> Iterator[str]:
    """Yield each table of a site file, and of a suite file, with its settings."""
    yield "## Settings of the site file"
    yield ""
    yield "These settings are at the top, before any table."
    yield ""
    yield from _write_tables(list_site_tables())
    yield "## Settings of a suite file"
    yield ""
    yield "Each `[[check]]` is a check to run, in this order."
    yield ""
    yield from _write_tables(list_suite_tables())


def _write_tables(tables: Iterable[SettingTable]) -> Iterator[str]:
    for table in tables:
        if table.heading:
            yield f"### `{table.heading}`"
            yield ""
            yield format_text(table.meaning)
            yield ""
        yield from write_table(COLUMNS, map(_list_cells, table.rows))


def _list_cells(row: SettingRow) -> tuple[str, ...]:
    default = row.default if row.default in (REQUIRED, NO_DEFAULT) else format_code(row.default)
    return (
        format_code(row.name),
        format_text(row.kind),
        row.unit,
        default,
        format_text(row.meaning),
    )
