"""
A run in a log: plain lines, and the sentences that a terminal shows too.

Nothing heavy is imported: Slurm's prolog prints this.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from msgspec.structs import replace

from hpcverify.check import compute_margin
from hpcverify.model import (
    Inventory,
    Limit,
    Measurement,
    Result,
    Run,
    Verdict,
    effective_verdict,
)
from hpcverify.plan.suite import Plan, Step
from hpcverify.summary.checks import CheckSummary
from hpcverify.summary.faults import pair_with_limits
from hpcverify.summary.figures import Figure, format_scaled
from hpcverify.summary.printable import make_printable
from hpcverify.summary.progress import Progress
from hpcverify.summary.rounds import format_round_count
from hpcverify.summary.run_summary import RunSummary, summarize, write_finding
from hpcverify.summary.verdict import shorten


def format_duration(seconds: float) -> str:
    """Print a duration in its two largest units, as in ``2 min 41 s``."""
    whole = round(seconds)
    if whole < 1:
        return f"{seconds * 1000:.0f} ms"
    for size, big, small, per in (
        (86400, "d", "h", 3600),
        (3600, "h", "min", 60),
        (60, "min", "s", 1),
    ):
        if whole >= size:
            rest = whole % size // per
            return f"{whole // size} {big}" + (f" {rest} {small}" if rest else "")
    return f"{whole} s" if seconds >= 10 else f"{seconds:.1f} s"  # noqa: PLR2004 - tenths matter below


def format_position(place: int, plan: Plan) -> str:
    """Print the position of *place*, counted through all rounds, in *plan*."""
    passed, before = divmod(place - 1, len(plan.steps))
    number = f"{before + 1}/{len(plan.steps)}"
    if plan.rounds == 1:
        return f"[{number}]"
    return f"[round {passed + 1}/{plan.rounds}, {number}]"


class PlainProgress:
    """
    Plain lines on standard error: one when a check begins, and one when it ends.

    What has kept several checks from running, or one in several rounds, is told once.
    """

    def __init__(self) -> None:
        self._told: dict[str, str] = {}

    def begin_step(self, step: Step, place: int, plan: Plan, target: str) -> None:
        """Print that *step* begins."""
        line = f"{format_position(place, plan)} {step.name} on {target}"
        _print_to_stderr(line)

    def tick(self) -> None:
        """Print nothing: a log needs no clock."""

    def end_step(self, result: Result) -> None:
        """Print the verdict."""
        first = self._told.get(result.reason)
        if first:
            same = "as before" if first == result.check else f"as for {first}"
            result = replace(result, reason=same)
        elif result.reason:
            self._told[result.reason] = result.check
        line = f"{effective_verdict(result).name:5}{shorten(format_headline(result))}"
        _print_to_stderr(line)


def _print_to_stderr(line: str) -> None:
    sys.stderr.write(f"{make_printable(line)}\n")
    sys.stderr.flush()


class SilentProgress:
    """Progress that is not shown."""

    def begin_step(self, step: Step, place: int, plan: Plan, target: str) -> None:
        """Print nothing."""

    def tick(self) -> None:
        """Print nothing."""

    def end_step(self, result: Result) -> None:
        """Print nothing."""


class TolerantProgress:
    """Progress that survives a closed terminal."""

    def __init__(self, inner: Progress) -> None:
        self.inner = inner

    def begin_step(self, step: Step, place: int, plan: Plan, target: str) -> None:
        """Pass it on, if anyone is there."""
        with suppress(OSError):
            self.inner.begin_step(step, place, plan, target)

    def tick(self) -> None:
        """Pass it on, if anyone is there."""
        with suppress(OSError):
            self.inner.tick()

    def end_step(self, result: Result) -> None:
        """Pass it on, if anyone is there."""
        with suppress(OSError):
            self.inner.end_step(result)


def format_headline(result: Result) -> str:
    """Print what follows the verdict in the line of a check."""
    which = f", round {result.round}" if result.round > 1 else ""
    took = f" {result.check} ({result.seconds:.1f} s{which})"
    return f"{took}: {result.reason}" if result.reason else took


def find_tightest(result: Result, figure: Figure | None = None) -> tuple[Measurement, Limit] | None:
    """Choose the measurement with the least margin to its limit: of *figure*, or of all."""
    pairs = ((m, lim) for m, lim in pair_with_limits(result) if not figure or m == figure.slowest)
    return min(pairs, key=lambda pair: compute_margin(*pair), default=None)


def format_bounds(limit: Limit, format_value: Callable[[float], str]) -> str:
    """Print the range that *limit* admits; *format_value* prints its bounds."""
    if limit.low is not None and limit.high is not None:
        low, high = format_value(limit.low), format_value(limit.high)
        return f"= {low}" if low == high else f"{low} to {high}"
    if limit.low is not None:
        return f"≥ {format_value(limit.low)}"
    return "" if limit.high is None else f"≤ {format_value(limit.high)}"


def describe_pass(check: CheckSummary, inventory: Inventory) -> str:
    """
    Describe the outcome of a check that passed: a number with its limit and source.

    The number is the key figure of the slowest part, or else the measurement with the least
    margin to its limit.
    """
    result, figure = check.result, next(iter(check.figures), None)
    tightest = find_tightest(result, figure)
    if figure:
        item, in_words = figure.slowest, figure.format_value
        share = f" ({figure.share})" if figure.share else ""
        value = f"{in_words(item.value or 0.0)}{share}"
    elif tightest:
        item = tightest[0]
        in_words = partial(format_scaled, unit=item.unit)
        value = in_words(item.value)
    else:
        covered = list(dict.fromkeys(c.text for c in result.coverage))[:2]
        return "; ".join(filter(None, (result.reason, *covered)))
    label = "" if item.part_id == "node" else f"{inventory.find_label(item.part_id)}: "
    limit = tightest and tightest[1]
    bounds = f", limit {format_bounds(limit, in_words)} ({limit.source})" if limit else ""
    return "; ".join(filter(None, (f"{label}{item.name} {value}{bounds}", result.reason)))


def format_conclusion(summary: RunSummary) -> str:
    """Print what follows the verdict in the line of a run."""
    run = summary.run
    suite = ", ".join(filter(None, (f"suite {run.suite}", summary.gpus, format_round_count(run))))
    return f" after {format_duration(run.seconds)} of {suite}: {summary.sentence}"


def format_run(run: Run) -> list[str]:
    """
    Print a line for each diagnosis, worst first, and for each check that passed.

    Then the verdict and what to do. Skipped checks share a line.
    """
    summary = summarize(run)
    lines: list[str] = []
    for diagnosis in summary.diagnoses:
        tally, text = write_finding(diagnosis, summary)
        if diagnosis.checks:  # else the conclusion says it
            rounds = f" [{tally}]" if tally else ""
            lines.append(f"{diagnosis.verdict.name:5} {diagnosis.checks[0]}{rounds}: {text}")
    for check in summary.checks:
        if check.verdict is Verdict.PASS:
            rounds = f" [{check.tally}]" if check.tally else ""
            text = describe_pass(check, run.inventory)
            lines.append(f"{check.verdict.name:5} {check.result.check}{rounds}: {text}")
    lines += [summary.skips] if summary.skips else []
    lines += ["", f"{run.node}: {run.verdict.name}{format_conclusion(summary)}"]
    lines += [f"next: {summary.next_steps}"] if summary.next_steps else []
    # A line break in a name or text of a document would forge a line.
    return ["", *(make_printable(" ␊ ".join(line.splitlines())) for line in lines)]
