"""
A run in a log: plain lines, and the sentences that a terminal shows too.

Nothing heavy is imported: Slurm's prolog prints this.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from msgspec.structs import replace

from hpcverify.check import compute_margin
from hpcverify.model import Limit, Measurement, Result, Run, Verdict, effective_verdict
from hpcverify.plan.suite import Plan, Step
from hpcverify.summary.actions import pair_with_limits, recall_gone_parts
from hpcverify.summary.facts import describe_gpus
from hpcverify.summary.figures import Figure, choose_figures, format_scaled
from hpcverify.summary.printable import make_printable
from hpcverify.summary.progress import Progress
from hpcverify.summary.rounds import format_round_count, format_tally, group_by_check
from hpcverify.summary.verdict import (
    CauseGroup,
    explain_group,
    format_next_steps,
    group_by_cause,
    shorten,
    summarize_run,
    summarize_skips,
)


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


def describe_group(group: CauseGroup, run: Run) -> str:
    """
    Describe the outcome of a check: a number with its limit and source, or the reason.

    The number is the key figure of the slowest part, or else the measurement with the least
    margin to its limit.
    """
    result = group.result
    if result.verdict is not Verdict.PASS:
        return explain_group(group, recall_gone_parts(run))
    figure = next(iter(choose_figures(result, run.inventory)), None)
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
    label = "" if item.part_id == "node" else f"{run.inventory.find_label(item.part_id)}: "
    limit = tightest and tightest[1]
    bounds = f", limit {format_bounds(limit, in_words)} ({limit.source})" if limit else ""
    return "; ".join(filter(None, (f"{label}{item.name} {value}{bounds}", result.reason)))


def format_conclusion(run: Run) -> str:
    """Print what follows the verdict in the line of a run."""
    gpus = describe_gpus(run.inventory)
    suite = ", ".join(filter(None, (f"suite {run.suite}", gpus, format_round_count(run))))
    return f" after {format_duration(run.seconds)} of {suite}: {summarize_run(run)}"


def format_run(run: Run) -> list[str]:
    """
    Print a line for each check, worst first, then the verdict and what to do.

    Checks that did not pass for one cause share a line, and so do skipped ones.
    """
    rounds = group_by_check(run.results)
    lines = [
        f"{effective_verdict(group.result).name:5} {group.result.check}"
        f"{_format_tally(rounds[group.result.check])}: {describe_group(group, run)}"
        for group in group_by_cause(run)
    ]
    skipped, steps = summarize_skips(run), format_next_steps(run)
    lines += [skipped] if skipped else []
    lines += ["", f"{run.node}: {run.verdict.name}{format_conclusion(run)}"]
    lines += [f"next: {steps}"] if steps else []
    return ["", *map(make_printable, lines)]


def _format_tally(rounds: Sequence[Result]) -> str:
    return f" [{format_tally(rounds)}]" if len(rounds) > 1 else ""
