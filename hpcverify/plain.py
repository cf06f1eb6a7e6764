"""
What one sees of a run in a log: plain lines, and the words that a terminal shows too.

Nothing heavy is imported: this is what Slurm's prolog prints.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress

import click

from hpcverify.check import applies, margin, quantity
from hpcverify.model import Limit, Measurement, Remedy, Result, Run, Verdict
from hpcverify.orchestrator import Progress
from hpcverify.rounds import by_check, extent, left_out, tally, worst_rounds
from hpcverify.suite import Plan, Step

HOUR = 3600


def clock(seconds: float) -> str:
    """Print *seconds* as minutes and seconds, or with hours where there are any."""
    minutes, rest = divmod(int(seconds), 60)
    if seconds < HOUR:
        return f"{minutes}:{rest:02}"
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"


def turn(place: int, plan: Plan) -> str:
    """Say which check of which round the one at *place* of *plan* is."""
    passed, before = divmod(place - 1, len(plan.steps))
    number = f"{before + 1}/{len(plan.steps)}"
    if plan.rounds == 1:
        return f"[{number}]"
    return f"[round {passed + 1}/{plan.rounds}, {number}]"


class PlainProgress:
    """Plain lines on standard error: one as a check begins, and one as it ends."""

    def begins(self, step: Step, place: int, plan: Plan, where: str) -> None:
        """Print that *step* begins."""
        click.echo(f"{turn(place, plan)} {step.name} on {where}", err=True)

    def tick(self) -> None:
        """Print nothing: a log needs no clock."""

    def ended(self, result: Result) -> None:
        """Print the verdict."""
        click.echo(f"{result.verdict.name:5}{headline(result)}", err=True)


class Unheard:
    """Progress that a run can do without: the terminal may be gone by now."""

    def __init__(self, told: Progress) -> None:
        """Pass on to *told* what is said."""
        self.told = told

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


def headline(result: Result) -> str:
    """Say what follows the verdict in the line on a check."""
    which = f", round {result.round}" if result.round > 1 else ""
    took = f" {result.check} ({result.seconds:.1f} s{which})"
    return f"{took}: {result.reason}" if result.reason else took


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
    return min(pairs, key=lambda pair: margin(*pair), default=None)


def bounds(limit: Limit) -> str:
    """Print a limit as a range."""
    low = None if limit.low is None else f">= {quantity(limit.low, '')}"
    high = None if limit.high is None else f"<= {quantity(limit.high, '')}"
    return " and ".join(filter(None, (low, high)))


def cells(result: Result, run: Run) -> list[str]:
    """Print the measurement, its limit and the source, or else the reason."""
    pair = tightest(result)
    if result.verdict is not Verdict.PASS or pair is None:
        return [result.reason or _what(result), "", ""]
    item, limit = pair
    value = f"{item.name} {quantity(item.value, item.unit)}"
    if item.where != "node":
        value = f"{run.inventory.label(item.where)}: {value}"
    return [value, bounds(limit), limit.source]


def _what(result: Result) -> str:
    """Say what a check did that has no limit to show."""
    return "; ".join(list(dict.fromkeys(c.text for c in result.coverage))[:2])


def next_remedy(run: Run) -> Remedy:
    """Choose what to do first: what the worst results ask for most."""
    worst = max((r.verdict for r in run.results), default=Verdict.PASS)
    asked = [r.remedy for r in run.results if r.verdict is worst]
    return max(asked, key=list(Remedy).index, default=Remedy.NONE)


def summary(run: Run) -> str:
    """Say what follows the verdict in the sentence on a run."""
    verdicts = [result.verdict for result in worst_rounds(run.results)]
    counts = [
        f"{verdicts.count(v)} {v.value}"
        for v in sorted(Verdict, reverse=True)
        if v in verdicts
    ]
    remedy = next_remedy(run)
    interrupted = "" if run.complete else " (interrupted)"
    suite = ", ".join(filter(None, (f"suite {run.suite}", extent(run))))
    idle = verdicts and set(verdicts) == {Verdict.SKIP}
    told = (
        f"{interrupted} after {clock(run.seconds)} of {suite}: {', '.join(counts)}",
        "nothing was there to be judged" if idle else "",
        left_out(run),
        "" if remedy is Remedy.NONE else f"next: {remedy.replace('_', ' ')}",
    )
    return "; ".join(filter(None, told))


def run_lines(run: Run) -> list[str]:
    """Print the worst round of every check in a line, worst first, and the verdict."""
    rounds = by_check(run.results)
    lines = [
        f"{r.verdict.name:5} {r.check}{_tallied(rounds[r.check])}: "
        + " ".join(filter(None, cells(r, run)))
        for r in worst_first(worst_rounds(run.results))
    ]
    return ["", *lines, "", f"{run.node}: {run.verdict.name}{summary(run)}"]


def _tallied(rounds: Sequence[Result]) -> str:
    return f" [{tally(rounds)}]" if len(rounds) > 1 else ""
