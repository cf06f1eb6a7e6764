"""A section of a page that is a table: some rows shown, more folded, the rest counted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hpcverify_reports.histogram import Histogram
from hpcverify_reports.labels import Icon

MAX_SHOWN_ROWS, MAX_LISTED_ROWS = 20, 500
"""Rows of a list that are shown unfolded, and all rows that it has."""
CELL_CHARACTERS = 300
"""Characters of a cell; the page of the node has it in full."""


@dataclass(frozen=True, slots=True)
class ListedRow:
    """A row: what it is about, with its page and its sign if it has one."""

    name: str
    page: str
    cells: tuple[str, ...]
    icon: Icon | None = None


@dataclass(frozen=True, slots=True)
class Listing:
    """A section with a table; *more* says where the rest is."""

    id: str
    title: str
    intro: tuple[str, ...]
    """What is said above the table: all there is, if nothing is to be listed."""
    facts: tuple[tuple[str, str], ...]
    """Names and figures between both."""
    head: str
    """Of the first column."""
    columns: tuple[str, ...]
    rows: tuple[ListedRow, ...]
    rest: tuple[ListedRow, ...]
    count: int
    more: str
    notes: tuple[str, ...] = ()
    """What is said below it."""
    figures: tuple[Histogram, ...] = ()
    folded_figures: tuple[Histogram, ...] = ()


def build_listing(
    name: str,
    title: str,
    intro: Sequence[str],
    columns: Sequence[str],
    rows: Sequence[ListedRow],
    *,
    head: str = "Node",
    count: int | None = None,
    facts: Sequence[tuple[str, str]] = (),
    notes: Sequence[str] = (),
    figures: Sequence[Histogram] = (),
    folded_figures: Sequence[Histogram] = (),
) -> Listing:
    """Fold *rows* after the first; *count* is how many there are if not all are among them."""
    count = len(rows) if count is None else count
    listed = tuple(rows[:MAX_LISTED_ROWS])
    return Listing(
        id=name,
        title=title,
        intro=tuple(intro),
        facts=tuple(facts),
        head=head,
        columns=tuple(columns),
        rows=listed[:MAX_SHOWN_ROWS],
        rest=listed[MAX_SHOWN_ROWS:],
        count=count,
        more=format_more(count - len(listed)),
        notes=tuple(notes),
        figures=tuple(figures),
        folded_figures=tuple(folded_figures),
    )


def format_more(left: int) -> str:
    """Say where the rows are that have no room; empty if there are none."""
    return f"and {left} more: hpcverify report --fleet --format json" if left > 0 else ""


def cut(text: str, length: int = CELL_CHARACTERS) -> str:
    """Cut *text* to *length* characters."""
    return text if len(text) <= length else f"{text[: length - 1]}…"
