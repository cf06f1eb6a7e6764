"""
What one sees of a run in a log: plain lines, and the words that a terminal shows too.

Nothing heavy is imported: this is what Slurm's prolog prints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress

import click

from hpcverify.actions import Action, actions, brief
from hpcverify.check import applies, margin, quantity
from hpcverify.figures import figures
from hpcverify.model import (
    Limit,
    Measurement,
    Remedy,
    Result,
    Run,
    Verdict,
    standing,
)
from hpcverify.orchestrator import Progress
from hpcverify.rounds import (
    by_check,
    extent,
    left_out,
    tally,
    worst_first,
    worst_rounds,
)
from hpcverify.suite import Plan, Step
from hpcverify.terminal import printable

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
        begun = f"{turn(place, plan)} {step.name} on {where}"
        click.echo(printable(begun), err=True)

    def tick(self) -> None:
        """Print nothing: a log needs no clock."""

    def ended(self, result: Result) -> None:
        """Print the verdict."""
        told = f"{result.verdict.name:5}{cut(headline(result))}"
        click.echo(printable(told), err=True)


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


def tightest(result: Result) -> tuple[Measurement, Limit] | None:
    """Choose the measurement that came nearest to its limit, or past it furthest."""
    pairs = [
        (m, lim)
        for m in result.measurements
        for lim in result.limits
        if applies(lim, m) and not lim.noisy
    ]
    return min(pairs, key=lambda pair: margin(*pair), default=None)


def _number(value: float) -> str:
    return quantity(value, "")


def bounds(limit: Limit, told: Callable[[float], str] = _number) -> str:
    """Print a limit as a range; *told* prints a number of it."""
    low = None if limit.low is None else f">= {told(limit.low)}"
    high = None if limit.high is None else f"<= {told(limit.high)}"
    return " and ".join(filter(None, (low, high)))


def cells(result: Result, run: Run) -> list[str]:
    """
    Print a number with its limit and the source, or else the reason in one clause.

    The number is the speed that one asks for first, of the slowest part, or else the
    one that came nearest to its limit.
    """
    if result.verdict is not Verdict.PASS:
        return [brief(result, run.inventory), "", ""]
    figure = next(iter(figures(result)), None)
    if figure is not None:
        item, limit = figure.slowest, _nearest(figure.slowest, result)
        share = f" ({figure.share})" if figure.share else ""
        value, in_words = f"{figure.told(item.value or 0.0)}{share}", figure.told
    elif pair := tightest(result):
        item, limit = pair
        value, in_words = quantity(item.value, item.unit), _number
    else:
        return [brief(result, run.inventory) or _what(result), "", ""]
    where = "" if item.where == "node" else f"{run.inventory.label(item.where)}: "
    told = (bounds(limit, in_words), limit.source) if limit else ("", "")
    return [f"{where}{item.name} {value}", *told]


def _nearest(item: Measurement, result: Result) -> Limit | None:
    """Choose the limit that *item* came nearest to."""
    limits = [lim for lim in result.limits if applies(lim, item) and not lim.noisy]
    return min(limits, key=lambda limit: margin(item, limit), default=None)


def _what(result: Result) -> str:
    """Say what a check did that has no limit to show."""
    return "; ".join(list(dict.fromkeys(c.text for c in result.coverage))[:2])


TO_DO = {
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
FEW = 3
"""Parts that a line names; of more it gives the number."""
LONG = 240
"""Characters of a reason in a line of progress, or in a cell."""


def next_steps(run: Run) -> str:
    """Say what to do about which parts, the gravest first."""
    steps = (
        _step(action, run) for action in actions(run) if action.verdict is run.verdict
    )
    return ", ".join(filter(None, steps))


def _step(action: Action, run: Run) -> str:
    names = run.inventory.names([part.where for part in action.parts])
    if len(action.parts) > FEW and not names.startswith("all "):
        some = ", ".join(part.label for part in action.parts[:FEW])
        names = f"{some} (+{len(action.parts) - FEW} more)"
    checks = dict.fromkeys(name for part in action.parts for name in part.checks)
    return TO_DO[action.remedy].format(
        parts="the node" if names == "node" else names,
        checks=", ".join(checks) or "the suite",
    )


def why(run: Run) -> str:
    """
    Say in one clause what made the verdict of *run*, the worst part first.

    How much more there is stands before what may be cut off at the end of a line.
    """
    found = [
        (part, complaint)
        for action in actions(run)
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
    parts = run.inventory.names(names)
    more = f" +{len(found) - len(alike)} more" if len(found) > len(alike) else ""
    checks = ", ".join(worst.checks)
    if len(worst.checks) > FEW:
        checks = f"{worst.checks[0]} and {len(worst.checks) - 1} more checks"
    return ": ".join(filter(None, (checks, f"{parts}{more}", worst.text)))


def cut(text: str) -> str:
    """Shorten *text* to what a line of progress or a cell has room for."""
    return text if len(text) <= LONG else f"{text[: LONG - 1]}…"


def summary(run: Run) -> str:
    """Say what follows the verdict in the sentence on a run."""
    verdicts = [result.verdict for result in worst_rounds(run.results)]
    counts = [
        f"{verdicts.count(v)} {v.value}"
        for v in sorted(Verdict, reverse=True)
        if v in verdicts
    ]
    steps = next_steps(run)
    interrupted = "" if run.complete else " (interrupted)"
    suite = ", ".join(filter(None, (f"suite {run.suite}", extent(run))))
    idle = verdicts and set(verdicts) == {Verdict.SKIP}
    told = (
        f"{interrupted} after {clock(run.seconds)} of {suite}: {', '.join(counts)}",
        "nothing was there to be judged" if idle else "",
        left_out(run),
        f"next: {steps}" if steps else "",
    )
    return "; ".join(filter(None, told))


def run_lines(run: Run) -> list[str]:
    """
    Print the worst round of every check in a line, worst first, and the verdict.

    Checks that were skipped for the same reason share a line.
    """
    rounds = by_check(run.results)
    judged, skips = skipped(worst_first(worst_rounds(run.results)))
    lines = [
        f"{r.verdict.name:5} {r.check}{_tallied(rounds[r.check])}: "
        + " ".join(filter(None, row))
        for r, row in told_once(judged, run)
    ]
    told = f"{run.node}: {run.verdict.name}{summary(run)}"
    return ["", *map(printable, [*lines, *skips]), "", printable(told)]


def told_once(
    results: Iterable[Result], run: Run
) -> Iterator[tuple[Result, list[str]]]:
    """Give *results* their :func:`cells`; a reason told before is not repeated."""
    before: dict[str, str] = {}
    for result in results:
        row = cells(result, run)
        reason = row[0].removeprefix("node: ")
        if result.verdict is not Verdict.PASS and reason in before:
            row = [f"the same as {before[reason]}", "", ""]
        before.setdefault(reason, result.check)
        yield result, row


def skipped(results: Iterable[Result]) -> tuple[list[Result], list[str]]:
    """Take out of *results* those that were skipped, and give a line to each reason."""
    judged: list[Result] = []
    reasons: dict[str, list[str]] = {}
    for result in results:
        if standing(result) is Verdict.SKIP:
            reasons.setdefault(result.reason, []).append(result.check)
        else:
            judged.append(result)
    return judged, [
        f"{Verdict.SKIP.name:5} {', '.join(checks)}: {reason}"
        for reason, checks in reasons.items()
    ]


def _tallied(rounds: Sequence[Result]) -> str:
    return f" [{tally(rounds)}]" if len(rounds) > 1 else ""
