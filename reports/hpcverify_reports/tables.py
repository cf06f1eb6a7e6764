"""
Tables as data: a page states columns and rows, and one macro of the templates prints them.

A long table shows its first rows, folds the others and counts what it has no room for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hpcverify.summary.verdict import shorten
from hpcverify_reports.histogram import Histogram
from hpcverify_reports.labels import Icon
from hpcverify_reports.rows import RowPicture
from hpcverify_reports.squares import Block
from hpcverify_reports.svg import Chart, Sparkline

MAX_SHOWN_ROWS, MAX_LISTED_ROWS = 20, 500
"""Rows of a table that are shown unfolded, and all rows that it has."""
CELL_CHARACTERS = 300
"""Characters of a cell; the page of the node has it in full."""
FLEET_JSON = "hpcverify report --fleet --format json"


@dataclass(frozen=True, slots=True)
class TableColumn:
    """The head of a column, and its CSS class: "n" for numbers, "code" for ids."""

    head: str
    style: str = ""


@dataclass(frozen=True, slots=True)
class TableCell:
    """A text with a sign before it, a bold *lead*, and a *note* in soft letters below."""

    text: str
    href: str = ""
    icon: Icon | None = None
    lead: str = ""
    note: str = ""
    spark: Sparkline | None = None
    nights: tuple[Icon | None, ...] = ()
    """The worst verdict of each night, the oldest first."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing would be seen."""
        return not (self.text or self.icon or self.lead or self.note or self.spark or self.nights)


Cells = Sequence[TableCell | str]
"""A row as a page states it; a text is a cell without anything else."""


@dataclass(frozen=True, slots=True)
class TableRow:
    """The cells of a row, of which the first is its head, and what is folded below it."""

    cells: tuple[TableCell, ...]
    details: RowDetails | None = None


@dataclass(frozen=True, slots=True)
class Table:
    """The rows that are shown, those that are folded, and how many more there are."""

    label: str
    columns: tuple[TableColumn, ...]
    rows: tuple[TableRow, ...]
    folded: tuple[TableRow, ...]
    count: int
    more: str
    caption: str


@dataclass(frozen=True, slots=True)
class RowDetails:
    """What is folded below a row: a text to copy, and a table."""

    title: str
    code: str
    table: Table


@dataclass(frozen=True, slots=True)
class Picture:
    """A chart, rows, a map or a histogram, and its numbers for those who do not see it."""

    title: str
    numbers: Table | None = None
    chart: Chart | None = None
    rows: RowPicture | None = None
    blocks: tuple[Block, ...] = ()
    histogram: Histogram | None = None
    note: str = ""
    style: str = ""
    """A CSS class: "neutral" for shares that are no fault."""


@dataclass(frozen=True, slots=True)
class PageSection:
    """A section of a page; *intro* is all there is if nothing is to be listed."""

    id: str
    title: str
    intro: tuple[str, ...] = ()
    facts: tuple[tuple[str, str], ...] = ()
    tables: tuple[Table, ...] = ()
    notes: tuple[str, ...] = ()
    pictures: tuple[Picture, ...] = ()
    folded_pictures: tuple[Picture, ...] = ()

    @property
    def count(self) -> int:
        """All rows, listed or not."""
        return sum(table.count for table in self.tables)


def make_heads(first: str, *numbers: str) -> tuple[TableColumn, ...]:
    """Make the heads of a column of texts and of columns of numbers."""
    return TableColumn(first), *(TableColumn(head, "n") for head in numbers)


def build_table(
    label: str,
    columns: Sequence[TableColumn | str],
    rows: Sequence[TableRow | Cells],
    *,
    count: int | None = None,
    caption: str = "",
    source: str = FLEET_JSON,
    shown: int = MAX_SHOWN_ROWS,
) -> Table:
    """
    Build a table without its empty columns.

    *count* is how many rows there are if not all are among *rows*; *source* has them all.
    """
    count = len(rows) if count is None else count
    listed = [_build_row(row) for row in rows[:MAX_LISTED_ROWS]]
    left = count - len(listed)
    kept = [
        place
        for place in range(len(columns))
        if place == 0 or any(not row.cells[place].is_empty for row in listed)
    ]
    all_columns = [TableColumn(c) if isinstance(c, str) else c for c in columns]
    narrow = tuple(TableRow(tuple(row.cells[i] for i in kept), row.details) for row in listed)
    return Table(
        label=label,
        columns=tuple(all_columns[place] for place in kept),
        rows=narrow[:shown],
        folded=narrow[shown:],
        count=count,
        more=f"and {left} more: {source}" if left else "",
        caption=caption,
    )


def build_list(
    place: str,
    title: str,
    intro: Sequence[str],
    columns: Sequence[TableColumn | str],
    rows: Iterable[TableRow | Cells],
    *,
    count: int | None = None,
    facts: Sequence[tuple[str, str]] = (),
    notes: Sequence[str] = (),
    source: str = FLEET_JSON,
    shown: int = MAX_SHOWN_ROWS,
) -> PageSection:
    """Build a section with one table, whose anchor is *place*; the rest as in `build_table`."""
    table = build_table(title, columns, list(rows), count=count, source=source, shown=shown)
    return PageSection(place, title, tuple(intro), tuple(facts), (table,), tuple(notes))


def _build_row(row: TableRow | Cells) -> TableRow:
    if isinstance(row, TableRow):
        return row
    return TableRow(tuple(TableCell(cell) if isinstance(cell, str) else cell for cell in row))


def cut(text: str) -> str:
    """Shorten *text* to fit into a cell."""
    return shorten(text, CELL_CHARACTERS)
