"""
What one sees of a run on a terminal: progress, and one table, worst first.

rich is imported by the commands that show something, never by the command line
itself.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Self

from rich.console import Console as RichConsole
from rich.console import ConsoleOptions, RenderableType
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from hpcverify import plain
from hpcverify.model import Result, Run, Verdict
from hpcverify.plain import format_duration, format_position
from hpcverify.rounds import choose_worst_rounds, format_tally, group_by_check, sort_results
from hpcverify.suite import Plan, Step
from hpcverify.terminal import make_printable

VERDICT_COLOURS = {
    Verdict.PASS: "green",
    Verdict.SKIP: "dim",
    Verdict.WARN: "yellow",
    Verdict.ERROR: "magenta",
    Verdict.FAIL: "bold red",
}
NARROW_COLUMNS = 72
"""Columns below which a table would break every word."""


class Console(RichConsole):
    """A console that shows what others wrote as text, and names a closed pipe."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Render what may be shown on a terminal; the orders to it are rich's own."""
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
    """One line that lives: which check, on what, elapsed, and left of the budget."""

    _bar: Progress = field(init=False)
    _task: TaskID = field(init=False)
    _began: float = field(default_factory=time.monotonic)
    _drawn: float = 0.0
    _step_began: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        """Draw the line; it is drawn again by `tick`, not by a thread of its own."""
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[times]}"),
            console=Console(stderr=True, highlight=False),
            auto_refresh=False,
            transient=True,
        )
        looking = "looking at the hardware"
        self._task = self._bar.add_task(looking, total=None, times="")

    def __enter__(self) -> Self:
        """Begin to draw."""
        self._bar.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        """Take the line away."""
        with suppress(OSError):
            self._bar.stop()

    def begin_step(self, step: Step, place: int, plan: Plan, where: str) -> None:
        """Show that *step* is at work."""
        self._step_began = time.monotonic()
        what = f"{format_position(place, plan)} {step.name} on {where}"
        self._bar.update(self._task, description=escape(what), total=plan.budget)
        self.tick()

    def tick(self) -> None:
        """Draw again, twice a second: drawing must not disturb what is measured."""
        now = time.monotonic()
        if now - self._drawn < 0.5:  # noqa: PLR2004 - twice a second
            return
        self._drawn = now
        elapsed = now - self._began
        budget = self._bar.tasks[0].total
        left = "" if budget is None else f", {format_duration(max(0, budget - elapsed))} left"
        times = f"{format_duration(now - self._step_began)}; run {format_duration(elapsed)}{left}"
        self._bar.update(self._task, completed=elapsed, times=times, refresh=True)

    def end_step(self, result: Result) -> None:
        """Leave the verdict standing above the line."""
        name = (f"{result.verdict.name:5}", VERDICT_COLOURS[result.verdict])
        told = Text.assemble(name, plain.shorten(plain.format_headline(result)))
        self._bar.console.print(told)


def render_badge(verdict: Verdict) -> Text:
    """Print a verdict in its colour; the word alone says it too."""
    return Text(verdict.name, style=VERDICT_COLOURS[verdict])


def build_results_table(run: Run, width: int) -> Table:
    """Show what was not skipped, worst first, with what came nearest to its limit."""
    narrow = width < NARROW_COLUMNS
    rounds = group_by_check(run.results)
    several = any(len(some) > 1 for some in rounds.values())
    table = Table(box=None, pad_edge=False, padding=(0, 1), expand=False)
    table.add_column("verdict", no_wrap=True)
    table.add_column("check", no_wrap=not narrow, overflow="fold")
    columns = ("measured",) if narrow else ("measured", "limit", "source")
    for name in (*(["rounds"] if several else []), *columns):
        table.add_column(name, overflow="fold")
    judged, _ = plain.split_skipped(sort_results(choose_worst_rounds(run.results)))
    for result, row in plain.drop_repeated_reasons(judged, run):
        words = [" ".join(filter(None, row))] if narrow else row
        count = [format_tally(rounds[result.check])] if several else []
        told = [_make_cell(text) for text in (*count, *words)]
        table.add_row(render_badge(result.verdict), Text(result.check), *told)
    return table


def _make_cell(text: str) -> Text:
    """Make a cell of *text*, whose width must be known before `Console` renders it."""
    return Text(make_printable(text))


def render_conclusion(run: Run) -> Text:
    """Say the verdict in one sentence."""
    return Text.assemble(f"{run.node}: ", render_badge(run.verdict), plain.format_summary(run))


def render_headline(result: Result) -> Text:
    """Say in one line how a check came out."""
    name = (f"{result.verdict.name:5}", VERDICT_COLOURS[result.verdict])
    return Text.assemble(name, plain.format_headline(result))


def show_run(run: Run, *, stderr: bool) -> None:
    """Print one table, worst first, and the verdict."""
    console = Console(stderr=stderr, highlight=False)
    console.print()
    show_results(run, console)
    console.print()
    console.print(render_conclusion(run))


def show_results(run: Run, console: Console) -> None:
    """Print what was judged as a table, and below it what was skipped, and why."""
    judged, skips = plain.split_skipped(sort_results(choose_worst_rounds(run.results)))
    if judged:
        console.print(build_results_table(run, console.width))
    for line in skips:
        console.print(Text(line, style=VERDICT_COLOURS[Verdict.SKIP]))


def print_table(
    console: Console,
    head: Sequence[str],
    rows: Iterable[Sequence[str | Text]],
    *,
    cut: bool = False,
) -> None:
    """Print *rows* under *head*; what is too long is folded, or the last cell *cut*."""
    table = Table(box=None, pad_edge=False, padding=(0, 1))
    for place, name in enumerate(head):
        whole = place == 0 or (cut and place < len(head) - 1)
        table.add_column(name, no_wrap=whole, overflow="fold")
    for row in rows:
        cells = [_make_cell(c) if isinstance(c, str) else c for c in row]
        if cut:
            cells[-1].no_wrap, cells[-1].overflow = True, "ellipsis"
        table.add_row(*cells)
    console.print(table)
