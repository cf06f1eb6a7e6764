"""
The rounds of a run brought together: what a check came to over all of them.

A suite may go through its checks several times, and each round leaves results of its
own. For a check the worst round speaks; for the node's past the median does, so that
a burn-in counts as one run among the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hpcverify.limits.resolve import median
from hpcverify.model import Measurement, Result, Run, Verdict, effective_verdict


def group_by_check(results: Iterable[Result]) -> dict[str, tuple[Result, ...]]:
    """Sort *results* by the check: in the suite's order, and within by the round."""
    found: dict[str, tuple[Result, ...]] = {}
    for result in results:
        found[result.check] = (*found.get(result.check, ()), result)
    return found


def choose_worst_round(rounds: Sequence[Result]) -> Result:
    """Choose the first of the worst; a skip only where no round was more than that."""
    verdicts = [(effective_verdict(r), r.verdict) for r in rounds]
    worst = max(verdicts, key=lambda pair: (pair[0] is not Verdict.SKIP, *pair))
    return rounds[verdicts.index(worst)]


def choose_worst_rounds(results: Iterable[Result]) -> tuple[Result, ...]:
    """Choose the worst round of each check, in the suite's order."""
    return tuple(map(choose_worst_round, group_by_check(results).values()))


def count_rounds(run: Run) -> int:
    """Count the rounds that *run* has results of."""
    return max((result.round for result in run.results), default=0)


def format_round_count(run: Run) -> str:
    """Say how many of its rounds *run* went through; nothing where it had but one."""
    if run.rounds == 1:
        return ""
    done = count_rounds(run)
    return f"{done} rounds" if done == run.rounds else f"{done} of {run.rounds} rounds"


def explain_left_out(run: Run) -> str:
    """Say how many rounds were left out, and why, or that the last was cut short."""
    count = run.rounds - count_rounds(run)
    if not (run.left_out and count):
        return run.left_out
    return f"{count} round{'s' if count > 1 else ''} left out: {run.left_out}"


def format_tally(rounds: Sequence[Result]) -> str:
    """Count the verdicts of a check, worst first, with the round of the worst."""
    shown = choose_worst_round(rounds)
    verdicts = [result.verdict for result in rounds]
    others = sorted({*verdicts} - {shown.verdict}, reverse=True)
    told = [f"{verdicts.count(v)} {v.value}" for v in (shown.verdict, *others)]
    if len(told) > 1:
        first = "" if verdicts.count(shown.verdict) == 1 else "first: "
        told[0] += f" ({first}round {shown.round})"
    return ", ".join(told)


def compute_medians(rounds: Sequence[Result]) -> tuple[Measurement, ...]:
    """Take the median over *rounds* of each value that was measured on each part."""
    values: dict[tuple[str, str, str], list[float | None]] = {}
    for result in rounds:
        for item in result.measurements:
            values.setdefault((item.name, item.unit, item.where), []).append(item.value)
    return tuple(
        Measurement(name, _compute_median(some), unit, where)
        for (name, unit, where), some in values.items()
    )


def _compute_median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None
