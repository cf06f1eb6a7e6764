"""
What one sees of a run in a log: plain lines, and the words that a terminal shows too.

Nothing heavy is imported: this is what Slurm's prolog prints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial

import click

from hpcverify.check import applies, compute_margin, format_bound, format_quantity
from hpcverify.model import Limit, Measurement, Remedy, Result, Run, Verdict, effective_verdict
from hpcverify.plan.suite import Plan, Step
from hpcverify.summary.actions import Action, list_actions, summarize_reason
from hpcverify.summary.figures import choose_figures
from hpcverify.summary.printable import make_printable
from hpcverify.summary.progress import Progress
from hpcverify.summary.rounds import (
    choose_worst_rounds,
    explain_left_out,
    format_round_count,
    format_tally,
    group_by_check,
    sort_results,
)

HOUR_SECONDS = 3600


def format_duration(seconds: float) -> str:
    """Print *seconds* as minutes and seconds, or with hours where there are any."""
    minutes, rest = divmod(int(seconds), 60)
    if seconds < HOUR_SECONDS:
        return f"{minutes}:{rest:02}"
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"


def format_position(place: int, plan: Plan) -> str:
    """Say which check of which round the one at *place* of *plan* is."""
    passed, before = divmod(place - 1, len(plan.steps))
    number = f"{before + 1}/{len(plan.steps)}"
    if plan.rounds == 1:
        return f"[{number}]"
    return f"[round {passed + 1}/{plan.rounds}, {number}]"


class PlainProgress:
    """Plain lines on standard error: one as a check begins, and one as it ends."""

    def begin_step(self, step: Step, place: int, plan: Plan, where: str) -> None:
        """Print that *step* begins."""
        begun = f"{format_position(place, plan)} {step.name} on {where}"
        click.echo(make_printable(begun), err=True)

    def tick(self) -> None:
        """Print nothing: a log needs no clock."""

    def end_step(self, result: Result) -> None:
        """Print the verdict."""
        told = f"{result.verdict.name:5}{shorten(format_headline(result))}"
        click.echo(make_printable(told), err=True)


class TolerantProgress:
    """Progress that a run can do without: the terminal may be gone by now."""

    def __init__(self, inner: Progress) -> None:
        """Pass on to *told* what is said."""
        self.inner = inner

    def begin_step(self, step: Step, place: int, plan: Plan, where: str) -> None:
        """Pass it on, if anyone is there."""
        with suppress(OSError):
            self.inner.begin_step(step, place, plan, where)

    def tick(self) -> None:
        """Pass it on, if anyone is there."""
        with suppress(OSError):
            self.inner.tick()

    def end_step(self, result: Result) -> None:
        """Pass it on, if anyone is there."""
        with suppress(OSError):
            self.inner.end_step(result)


def format_headline(result: Result) -> str:
    """Say what follows the verdict in the line on a check."""
    which = f", round {result.round}" if result.round > 1 else ""
    took = f" {result.check} ({result.seconds:.1f} s{which})"
    return f"{took}: {result.reason}" if result.reason else took


def find_tightest(result: Result) -> tuple[Measurement, Limit] | None:
    """Choose the measurement that came nearest to its limit, or past it furthest."""
    pairs = [
        (m, lim)
        for m in result.measurements
        for lim in result.limits
        if applies(lim, m) and not lim.noisy
    ]
    return min(pairs, key=lambda pair: compute_margin(*pair), default=None)


def format_bounds(limit: Limit, format_value: Callable[[float], str]) -> str:
    """Print a limit as a range; *format_value* prints a number of it."""
    low = None if limit.low is None else f">= {format_value(limit.low)}"
    high = None if limit.high is None else f"<= {format_value(limit.high)}"
    return " and ".join(filter(None, (low, high)))


def format_cells(result: Result, run: Run) -> list[str]:
    """
    Print a number with its limit and the source, or else the reason in one clause.

    The number is the speed that one asks for first, of the slowest part, or else the
    one that came nearest to its limit.
    """
    if result.verdict is not Verdict.PASS:
        return [summarize_reason(result, run.inventory), "", ""]
    figure = next(iter(choose_figures(result, run.inventory)), None)
    if figure is not None:
        item, limit = figure.slowest, find_nearest_limit(figure.slowest, result)
        share = f" ({figure.share})" if figure.share else ""
        value, in_words = (f"{figure.format_value(item.value or 0.0)}{share}", figure.format_value)
    elif pair := find_tightest(result):
        item, limit = pair
        value = format_quantity(item.value, item.unit)
        in_words = partial(format_bound, unit=item.unit)
    else:
        return [summarize_reason(result, run.inventory) or _describe_coverage(result), "", ""]
    where = "" if item.where == "node" else f"{run.inventory.find_label(item.where)}: "
    told = (format_bounds(limit, in_words), limit.source) if limit else ("", "")
    return [f"{where}{item.name} {value}", *told]


def find_nearest_limit(item: Measurement, result: Result) -> Limit | None:
    """Choose the limit that *item* came nearest to."""
    limits = [lim for lim in result.limits if applies(lim, item) and not lim.noisy]
    return min(limits, key=lambda limit: compute_margin(item, limit), default=None)


def _describe_coverage(result: Result) -> str:
    """Say what a check did that has no limit to show."""
    return "; ".join(list(dict.fromkeys(c.text for c in result.coverage))[:2])


REMEDY_STEPS = {
    Remedy.NONE: "",
    Remedy.RERUN: "run {checks} again",
    Remedy.FIX_CHECKER: "repair the check {checks}",
    Remedy.FIX_CONFIGURATION: "correct the configuration of {parts}",
    Remedy.INSPECT: "inspect {parts}",
    Remedy.RESET_GPU: "drain the node and reset {parts}",
    Remedy.REBOOT: "drain the node and reboot it",
    Remedy.REPLACE: "replace {parts}",
    Remedy.CONTACT_VENDOR: "send the vendor the report on {parts}",
}
"""What to do about which parts, as one goes on to say it in a line."""
MAX_NAMED_PARTS = 3
"""Parts that a line names; of more it gives the number."""
MAX_LINE_CHARACTERS = 240
"""Characters of a reason in a line of progress, or in a cell."""


def format_next_steps(run: Run) -> str:
    """Say what to do about which parts, the gravest first."""
    steps = (
        _format_step(action, run) for action in list_actions(run) if action.verdict is run.verdict
    )
    return ", ".join(filter(None, steps))


def _format_step(action: Action, run: Run) -> str:
    names = run.inventory.format_names([part.where for part in action.parts])
    if len(action.parts) > MAX_NAMED_PARTS and not names.startswith("all "):
        some = ", ".join(part.label for part in action.parts[:MAX_NAMED_PARTS])
        names = f"{some} (+{len(action.parts) - MAX_NAMED_PARTS} more)"
    checks = dict.fromkeys(name for part in action.parts for name in part.checks)
    return REMEDY_STEPS[action.remedy].format(
        parts="the node" if names == "node" else names, checks=", ".join(checks) or "the suite"
    )


def explain_verdict(run: Run) -> str:
    """
    Say in one clause what made the verdict of *run*, the worst part first.

    How much more there is stands before what may be cut off at the end of a line.
    """
    found = [
        (part, complaint)
        for action in list_actions(run)
        if action.verdict is run.verdict
        for part in action.parts
        for complaint in part.deciding
    ]
    if not found:
        return ""
    _, worst = found[0]
    alike = [part for part, complaint in found if complaint.text == worst.text]
    known = {part.id for part in run.inventory.parts}
    names = [part.where if part.where in known else part.label for part in alike]
    parts = run.inventory.format_names(names)
    more = f" +{len(found) - len(alike)} more" if len(found) > len(alike) else ""
    checks = ", ".join(worst.checks)
    if len(worst.checks) > MAX_NAMED_PARTS:
        checks = f"{worst.checks[0]} and {len(worst.checks) - 1} more checks"
    return ": ".join(filter(None, (checks, f"{parts}{more}", worst.text)))


def shorten(text: str) -> str:
    """Shorten *text* to what a line of progress or a cell has room for."""
    return text if len(text) <= MAX_LINE_CHARACTERS else f"{text[: MAX_LINE_CHARACTERS - 1]}…"


def format_summary(run: Run) -> str:
    """Say what follows the verdict in the sentence on a run."""
    verdicts = [result.verdict for result in choose_worst_rounds(run.results)]
    counts = [
        f"{verdicts.count(v)} {v.value}" for v in sorted(Verdict, reverse=True) if v in verdicts
    ]
    steps = format_next_steps(run)
    interrupted = "" if run.complete else " (interrupted)"
    suite = ", ".join(filter(None, (f"suite {run.suite}", format_round_count(run))))
    idle = verdicts and set(verdicts) == {Verdict.SKIP}
    told = (
        f"{interrupted} after {format_duration(run.seconds)} of {suite}: {', '.join(counts)}",
        "nothing was there to be judged" if idle else "",
        explain_left_out(run),
        f"next: {steps}" if steps else "",
    )
    return "; ".join(filter(None, told))


def format_run(run: Run) -> list[str]:
    """
    Print the worst round of every check in a line, worst first, and the verdict.

    Checks that were skipped share a line.
    """
    rounds = group_by_check(run.results)
    judged, skipped = split_skipped(sort_results(choose_worst_rounds(run.results)))
    lines = [
        f"{r.verdict.name:5} {r.check}{_format_tally(rounds[r.check])}: "
        + " ".join(filter(None, row))
        for r, row in drop_repeated_reasons(judged, run)
    ]
    told = f"{run.node}: {run.verdict.name}{format_summary(run)}"
    shown = [*lines, *([skipped] if skipped else [])]
    return ["", *map(make_printable, shown), "", make_printable(told)]


def drop_repeated_reasons(
    results: Iterable[Result], run: Run
) -> Iterator[tuple[Result, list[str]]]:
    """Format *results* as :func:`format_cells` does; a reason is given once only."""
    before: dict[str, str] = {}
    for result in results:
        row = format_cells(result, run)
        reason = row[0].removeprefix("node: ")
        if result.verdict is not Verdict.PASS and reason in before:
            row = [f"the same as {before[reason]}", "", ""]
        before.setdefault(reason, result.check)
        yield result, row


def split_skipped(results: Iterable[Result]) -> tuple[list[Result], str]:
    """
    Take out of *results* those that were skipped, and tell them in one line.

    It says the commonest reason; those of the other checks are in ``hpcverify show``.
    """
    judged: list[Result] = []
    reasons: dict[str, list[str]] = {}
    for result in results:
        if effective_verdict(result) is Verdict.SKIP:
            reasons.setdefault(result.reason, []).append(result.check)
        else:
            judged.append(result)
    if not reasons:
        return judged, ""
    reason, checks = max(reasons.items(), key=lambda told: len(told[1]))
    others = [name for why, names in reasons.items() if why != reason for name in names]
    line = f"{len(checks) + len(others)} skipped: {reason} ({', '.join(checks)})"
    return judged, "; for other reasons: ".join(filter(None, (line, ", ".join(others))))


def _format_tally(rounds: Sequence[Result]) -> str:
    return f" [{format_tally(rounds)}]" if len(rounds) > 1 else ""
