"""
Summarize the rounds of a run: one result for each check.

A suite may go through its checks several times, and each round has its own results. The
worst round decides on a check; the median goes into the node's history, so that a burn-in
counts as one run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hpcverify.model import Measurement, Result, Run, Verdict, effective_verdict
from hpcverify.stats import median


def group_by_check(results: Iterable[Result]) -> dict[str, tuple[Result, ...]]:
    """Group *results* by check, in the order of the suite and of the rounds."""
    found: dict[str, list[Result]] = {}
    for result in results:
        found.setdefault(result.check, []).append(result)
    return {check: tuple(rounds) for check, rounds in found.items()}


def choose_worst_round(rounds: Sequence[Result]) -> Result:
    """Choose the first of the worst rounds; a skip only if all were skipped."""
    verdicts = [(effective_verdict(r), r.verdict) for r in rounds]
    worst = max(verdicts, key=lambda pair: (pair[0] is not Verdict.SKIP, *pair))
    return rounds[verdicts.index(worst)]


def choose_worst_rounds(results: Iterable[Result]) -> tuple[Result, ...]:
    """Choose the worst round of each check, in the suite's order."""
    return tuple(map(choose_worst_round, group_by_check(results).values()))


def count_rounds(run: Run) -> int:
    """Count the rounds that *run* has results for."""
    return max((result.round for result in run.results), default=0)


def format_round_count(run: Run) -> str:
    """Print how many of its rounds *run* completed; empty for a run of one round."""
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
    counts = [f"{verdicts.count(v)} {v.value}" for v in (shown.verdict, *others)]
    if others:
        first = "" if verdicts.count(shown.verdict) == 1 else "first: "
        counts[0] += f" ({first}round {shown.round})"
    return ", ".join(counts)


def compute_medians(rounds: Sequence[Result]) -> tuple[Measurement, ...]:
    """Take the median over *rounds* of each value that was measured on each part."""
    found: dict[tuple[str, str, str], list[Measurement]] = {}
    for result in rounds:
        for item in result.measurements:
            found.setdefault((item.name, item.unit, item.part_id), []).append(item)
    return tuple(items[0] if len(items) == 1 else _take_median(items) for items in found.values())


def _take_median(items: Sequence[Measurement]) -> Measurement:
    first, known = items[0], [item.value for item in items if item.value is not None]
    return Measurement(first.name, median(known) if known else None, first.unit, first.part_id)
