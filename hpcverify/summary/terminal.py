"""
A run on a terminal: progress, then failures, speeds and the rest.

Only commands that show something import rich, never the command line itself.
"""

from __future__ import annotations

import errno
import os
import textwrap
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Self

from msgspec.structs import replace
from rich.cells import cell_len
from rich.console import Console as RichConsole
from rich.console import ConsoleOptions, RenderableType
from rich.markup import escape
from rich.padding import Padding
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from hpcverify.model import Inventory, Result, Run, Verdict, effective_verdict
from hpcverify.plan.suite import Plan, Step
from hpcverify.summary import wording
from hpcverify.summary.figures import Figure, format_bounds
from hpcverify.summary.printable import make_printable
from hpcverify.summary.run_summary import RunSummary
from hpcverify.summary.wording import format_duration, format_position

VERDICT_COLOURS = {
    Verdict.PASS: "green",
    Verdict.SKIP: "dim",
    Verdict.WARN: "yellow",
    Verdict.ERROR: "magenta",
    Verdict.FAIL: "bold red",
}
NARROW_COLUMNS = 72
"""Columns below which a table would break every word."""
MAX_FOLDED_ROWS = 500
"""Rows up to which a table is fitted to the width of the terminal."""
LEAST_SENTENCE_COLUMNS = 44
"""Columns in which a sentence can be read."""
COLUMN_GAP, SENTENCE_INDENT = 2, 4
SPEED_HEADS = ("measured", "speed", "worst part", "share", "last run", "limit")


class Console(RichConsole):
    """A console that makes text from outside safe to print, and raises on a closed pipe."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Render printable text; control segments come from rich itself."""
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
            else:
                yield Segment(make_printable(segment.text), segment.style)

    def on_broken_pipe(self) -> None:
        """Raise; rich would exit with 1, which means FAIL."""
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


@dataclass
class LiveProgress:
    """
    A live line: which check runs on what, the time taken and the time left.

    *seconds* is what the run should take, by the last one like it; None: there is none.
    """

    seconds: float | None = None
    _bar: Progress = field(init=False)
    _task: TaskID = field(init=False)
    _began: float = field(default_factory=time.monotonic)
    _drawn: float = 0.0
    _step_began: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        """Set up the line; `tick` redraws it, not a thread."""
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[times]}"),
            console=Console(stderr=True, highlight=False),
            auto_refresh=False,
            transient=True,
        )
        self._task = self._bar.add_task("reading the inventory", total=None, times="")

    def __enter__(self) -> Self:
        """Start drawing."""
        self._bar.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        """Remove the line."""
        with suppress(OSError):
            self._bar.stop()

    def begin_step(self, step: Step, place: int, plan: Plan, target: str) -> None:
        """Show that *step* is running."""
        self._step_began = time.monotonic()
        what = f"{format_position(place, plan)} {step.name} on {target}"
        self._bar.update(self._task, description=escape(what), total=self.seconds)
        self._drawn = 0.0
        self.tick()

    def tick(self) -> None:
        """Redraw at most twice a second: drawing must not disturb the measurement."""
        now = time.monotonic()
        if now - self._drawn < 0.5:  # noqa: PLR2004 - twice a second
            return
        self._drawn = now
        elapsed = now - self._began
        left = ""
        if self.seconds and self.seconds > elapsed:
            left = f", about {format_duration(self.seconds - elapsed)} left"
        times = f"{format_duration(now - self._step_began)}; run {format_duration(elapsed)}{left}"
        self._bar.update(self._task, completed=elapsed, times=times, refresh=True)

    def end_step(self, result: Result) -> None:
        """Print above the line, at once, that a check did not pass."""
        if effective_verdict(result) >= Verdict.WARN:
            self._bar.console.print(render_headline(replace(result, reason="")))


def render_badge(verdict: Verdict) -> Text:
    """Print a verdict as a word in its colour."""
    return Text(verdict.name, style=VERDICT_COLOURS[verdict])


def render_headline(result: Result) -> Text:
    """Print the verdict of a check in one line."""
    verdict = effective_verdict(result)
    name = (f"{verdict.name:5}", VERDICT_COLOURS[verdict])
    return Text.assemble(name, wording.format_headline(result))


def show_run(run: Run, console: Console) -> None:
    """Print the result of *run*: each line folded, with its verdict in colour."""
    for line in wording.format_run(run):
        text = Text("\n").join(map(Text, _fold_line(line, console.width)))
        for verdict, style in VERDICT_COLOURS.items():
            text.highlight_regex(rf"\A *{verdict.name}\b", style)
        console.print(text, soft_wrap=True)


def _fold_line(line: str, width: int) -> list[str]:
    lead = " " * (len(line) - len(line.lstrip()))
    return textwrap.wrap(
        line.lstrip(),
        width,
        initial_indent=lead,
        subsequent_indent=" " * SENTENCE_INDENT + lead,
        break_on_hyphens=False,
    )


def show_speeds(summary: RunSummary, console: Console) -> None:
    """Print the key figures of all checks, whatever their verdict."""
    rows = [
        (check, _format_figure(figure, check.result, summary.run.inventory))
        for check in summary.checks
        for figure in check.figures
    ]
    if not rows:
        return
    heads = [head for head in SPEED_HEADS if any(cells[head] for _, cells in rows)]
    head: Sequence[str] = ("", "check", *heads)
    texts = [[check.result.check, *(cells[name] for name in heads)] for check, cells in rows]
    if sum(width + COLUMN_GAP for width in _measure_columns(head[1:], texts)) > console.width:
        texts = [[", ".join(filter(None, cells))] for cells in texts]
        head = ("", "measured")  # columns would break words
    badges = [render_badge(check.verdict) for check, _ in rows]
    print_table(console, head, [(b, *cells) for b, cells in zip(badges, texts, strict=True)])
    console.print()


def _format_figure(figure: Figure, result: Result, inventory: Inventory) -> dict[str, str]:
    """Print a figure of the worst part, one text for each of `SPEED_HEADS`."""
    item = figure.slowest
    part = "" if item.part_id == "node" else inventory.find_label(item.part_id)
    tightest = wording.find_tightest(result, figure)
    return {
        "measured": figure.name,
        "speed": figure.format_value(item.value or 0.0),
        "worst part": f"{part} of {figure.parts}" if figure.parts > 1 else part,
        "share": figure.share,
        "last run": figure.change,
        "limit": format_bounds(tightest[1], figure.format_value) if tightest else "",
    }


def _make_cell(text: str) -> Text:
    """Make *text* printable here: rich measures a cell before `Console` renders it."""
    return Text(make_printable(text))


def print_items(console: Console, lines: Iterable[str]) -> None:
    """Print *lines*, each with a dash before it, folded next to it."""
    items = Table.grid(padding=(0, 1, 0, 0))
    for line in lines:
        items.add_row(" -", _make_cell(line))
    console.print(items)


def print_table(
    console: Console, head: Sequence[str], rows: Iterable[Sequence[str | Text]]
) -> None:
    """
    Print *rows* under *head*; long cells are folded.

    The last column usually is a sentence. If it would be a narrow strip next to the others, it
    is printed below them. More than `MAX_FOLDED_ROWS` are neither fitted nor folded: rich takes
    seconds to fit 10,000 of them.
    """
    rows = list(rows)
    if len(rows) > MAX_FOLDED_ROWS:
        _print_long_table(console, head, rows)
        return
    if _is_last_a_strip(console, head, rows):
        _print_last_below(console, head, rows)
        return
    widths = _measure_columns(head, rows)
    table = Table(box=None, pad_edge=False, padding=(0, 1))
    for place, name in enumerate(head):
        whole = place == 0 and widths[0] <= console.width // 2
        table.add_column(name, no_wrap=whole, overflow="fold")
    for row in rows:
        table.add_row(*(_make_cell(c) if isinstance(c, str) else c for c in row))
    console.print(table)


def _is_last_a_strip(
    console: Console, head: Sequence[str], rows: Sequence[Sequence[str | Text]]
) -> bool:
    """Whether the last column has sentences, and the others leave too little room for them."""
    *others, last = _measure_columns(head, rows)
    left = console.width - sum(width + COLUMN_GAP for width in others)
    return left < LEAST_SENTENCE_COLUMNS <= last


def _print_last_below(
    console: Console, head: Sequence[str], rows: Sequence[Sequence[str | Text]]
) -> None:
    """Print each of *rows* with its last cell below it."""
    widths = _measure_columns(head, rows)[:-1]
    if sum(widths) + COLUMN_GAP * (len(widths) - 1) > console.width:
        widest = console.width // 3  # a longer cell moves only the cells next to it
        widths = [min(width, widest) for width in widths]
    for *cells, last in (head, *rows):
        line = Text(" " * COLUMN_GAP).join(
            Text.assemble(cell, " " * (width - cell_len(make_printable(cell))))
            for cell, width in zip(cells, widths, strict=True)
        )
        line.rstrip()
        console.print(line)
        if str(last):
            console.print(Padding(_make_cell(str(last)), (0, 0, 0, SENTENCE_INDENT), expand=False))


def _measure_columns(head: Sequence[str], rows: Iterable[Sequence[str | Text]]) -> list[int]:
    lines = (head, *rows)
    sizes = ([cell_len(make_printable(cell)) for cell in line] for line in lines)
    return [max(column) for column in zip(*sizes, strict=True)]


def _print_long_table(
    console: Console, head: Sequence[str], rows: Sequence[Sequence[str | Text]]
) -> None:
    """Print a line for each of *rows*, in columns, as wide as it is and without colours."""
    widths = _measure_columns(head, rows)
    for row in (head, *rows):
        cells = map(make_printable, row)
        padded = (
            cell + " " * (width - cell_len(cell)) for cell, width in zip(cells, widths, strict=True)
        )
        console.file.write((" " * COLUMN_GAP).join(padded).rstrip() + "\n")
