"""
What one sees of a run on a terminal: progress, and one table, worst first.

rich is imported by the commands that show something, never by the command line
itself.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Self

from rich.console import Console as RichConsole
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.table import Table
from rich.text import Text

from hpcverify.check import applies, quantity
from hpcverify.model import Limit, Measurement, Remedy, Result, Run, Verdict
from hpcverify.suite import Plan, Step

COLOURS = {
    Verdict.PASS: "green",
    Verdict.SKIP: "dim",
    Verdict.WARN: "yellow",
    Verdict.ERROR: "magenta",
    Verdict.FAIL: "bold red",
}
NARROW = 72
"""Columns below which a table would break every word."""


class Console(RichConsole):
    """A console that leaves a closed pipe to the command line, which names it."""

    def on_broken_pipe(self) -> None:
        """Raise; rich would exit with 1, which means FAIL."""
        raise BrokenPipeError


def clock(seconds: float) -> str:
    """Print *seconds* as minutes and seconds."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


@dataclass
class PlainProgress:
    """Plain lines, for a log: one as a check begins, and one as it ends."""

    console: Console

    def begins(self, step: Step, place: int, plan: Plan, where: str) -> None:
        """Print that *step* begins."""
        head = f"[{place}/{len(plan.steps)}]"
        self.console.print(f"{head} {step.name} on {where}", markup=False)

    def tick(self) -> None:
        """Print nothing: a log needs no clock."""

    def ended(self, result: Result) -> None:
        """Print the verdict."""
        self.console.print(headline(result))


@dataclass
class LiveProgress:
    """One line that lives: which check, on what, elapsed, and left of the budget."""

    console: Console
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
            console=self.console,
            auto_refresh=False,
            transient=True,
        )
        self._task = self._bar.add_task("looking at the hardware", times="")

    def __enter__(self) -> Self:
        """Begin to draw."""
        self._bar.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        """Take the line away."""
        with suppress(OSError):
            self._bar.stop()

    def begins(self, step: Step, place: int, plan: Plan, where: str) -> None:
        """Show that *step* is at work."""
        self._step_began = time.monotonic()
        what = f"[{place}/{len(plan.steps)}] {step.name} on {where}"
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
        left = "" if budget is None else f", {clock(max(0, budget - elapsed))} left"
        times = f"{clock(now - self._step_began)}; run {clock(elapsed)}{left}"
        self._bar.update(self._task, completed=elapsed, times=times, refresh=True)

    def ended(self, result: Result) -> None:
        """Leave the verdict standing above the line."""
        self._bar.console.print(headline(result))


@dataclass(frozen=True)
class Unheard:
    """Progress that a run can do without: the terminal may be gone by now."""

    told: PlainProgress | LiveProgress

    def begins(self, step: Step, place: int, plan: Plan, where: str) -> None:
        """Pass it on, if anyone is there."""
        with suppress(OSError):
            self.told.begins(step, place, plan, where)

    def tick(self) -> None:
        """Pass it on, if anyone is there."""
        with suppress(OSError):
            self.told.tick()

    def ended(self, result: Result) -> None:
        """Pass it on, if anyone is there."""
        with suppress(OSError):
            self.told.ended(result)


def badge(verdict: Verdict) -> Text:
    """Print a verdict in its colour; the word alone says it too."""
    return Text(verdict.name, style=COLOURS[verdict])


def headline(result: Result) -> Text:
    """Say in one line how a check came out."""
    return Text.assemble(
        (f"{result.verdict.name:5}", COLOURS[result.verdict]),
        f" {result.check} ({result.seconds:.1f} s)",
        f": {result.reason}" if result.reason else "",
    )


def worst_first(results: Iterable[Result]) -> list[Result]:
    """Order *results* by badness, and within it as they ran."""
    return sorted(results, key=lambda r: r.verdict, reverse=True)


def tightest(result: Result) -> tuple[Measurement, Limit] | None:
    """Choose the measurement that came nearest to its limit, or past it furthest."""
    pairs = [
        (m, lim)
        for m in result.measurements
        for lim in result.limits
        if applies(lim, m) and not lim.noisy
    ]
    return min(pairs, key=lambda pair: _margin(*pair), default=None)


def _margin(item: Measurement, limit: Limit) -> float:
    """Say how much room a value has within its limit, as a share of the limit."""
    if item.value is None:
        return float("-inf")
    bounds = [
        (item.value - limit.low, limit.low) if limit.low is not None else None,
        (limit.high - item.value, limit.high) if limit.high is not None else None,
    ]
    return min(room / (abs(at) or 1.0) for room, at in filter(None, bounds))


def bounds(limit: Limit) -> str:
    """Print a limit as a range."""
    low = None if limit.low is None else f">= {quantity(limit.low, '')}"
    high = None if limit.high is None else f"<= {quantity(limit.high, '')}"
    return " and ".join(filter(None, (low, high)))


def results_table(run: Run, width: int) -> Table:
    """Show every result, worst first, with what came nearest to its limit."""
    narrow = width < NARROW
    table = Table(box=None, pad_edge=False, padding=(0, 1), expand=False)
    table.add_column("verdict", no_wrap=True)
    table.add_column("check", no_wrap=not narrow, overflow="fold")
    columns = ("measured",) if narrow else ("measured", "limit", "source")
    for name in columns:
        table.add_column(name, overflow="fold")
    for result in worst_first(run.results):
        cells = _cells(result, run)
        if narrow:
            cells = [" ".join(filter(None, cells))]
        table.add_row(badge(result.verdict), Text(result.check), *map(Text, cells))
    return table


def _cells(result: Result, run: Run) -> list[str]:
    """Print the measurement, its limit and the source, or else the reason."""
    pair = tightest(result)
    if result.verdict > Verdict.WARN or result.verdict is Verdict.SKIP or pair is None:
        return [result.reason or _what(result), "", ""]
    item, limit = pair
    value = f"{item.name} {quantity(item.value, item.unit)}"
    if item.where != "node":
        value = f"{run.inventory.label(item.where)}: {value}"
    if limit.admits(item.value) and result.reason:
        value = result.reason
    return [value, bounds(limit), limit.source]


def _what(result: Result) -> str:
    """Say what a check did that has no limit to show."""
    return "; ".join(c.text for c in result.coverage[:2])


def conclusion(run: Run) -> Text:
    """Say the verdict in one sentence."""
    counts = [
        f"{sum(r.verdict is v for r in run.results)} {v.value}"
        for v in sorted(Verdict, reverse=True)
        if any(r.verdict is v for r in run.results)
    ]
    remedy = next(
        (r.remedy for r in worst_first(run.results) if r.remedy is not Remedy.NONE),
        None,
    )
    return Text.assemble(
        f"{run.node}: ",
        badge(run.verdict),
        "" if run.complete else " (interrupted)",
        f" after {clock(run.seconds)} of suite {run.suite}: {', '.join(counts)}",
        f"; next: {remedy.value.replace('_', ' ')}" if remedy else "",
    )


def plain_table(
    console: Console,
    head: Sequence[str],
    rows: Iterable[Sequence[str]],
) -> None:
    """Print *rows* under *head*; what does not fit is folded."""
    table = Table(box=None, pad_edge=False, padding=(0, 1))
    for place, name in enumerate(head):
        table.add_column(name, no_wrap=place == 0, overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    console.print(table)
