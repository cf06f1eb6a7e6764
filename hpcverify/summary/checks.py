"""
The checks of a run in order: what each counts as, in all its rounds.

A check counts by its `effective_verdict`: in beta it never fails, and if it is required, its skip
is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from msgspec import Struct

from hpcverify.check import make_severity_key
from hpcverify.limits.resolve import PastValues
from hpcverify.model import Result, Run, Verdict, effective_verdict
from hpcverify.summary.faults import list_deciding, make_cause_key
from hpcverify.summary.figures import Figure, choose_figures
from hpcverify.summary.rounds import choose_worst_round, format_tally, group_by_check

PastLookup = Callable[[str], PastValues]
"""Takes the name of a check; finds what earlier runs of the node measured."""


class CheckSummary(Struct, frozen=True, kw_only=True):
    """A check in all its rounds."""

    result: Result
    """The worst round."""
    rounds: tuple[Result, ...]
    other_rounds: tuple[Result, ...]
    """The others, the worst first."""
    verdict: Verdict
    """What it counts as."""
    weight: str
    """Why it does not count as its verdict; empty if it does."""
    tally: str
    """The verdicts of its rounds; empty for one round."""
    figures: tuple[Figure, ...]
    adds_evidence: bool
    """Whether it did not pass for a cause that no check before it has."""


def find_no_past(_check: str) -> PastValues:
    """Look up nothing."""
    return lambda _name, _part: ()


def summarize_checks(run: Run, past: PastLookup = find_no_past) -> Iterator[CheckSummary]:
    """Summarize the checks of *run*, the worst first; *past* has what earlier runs measured."""
    rounds = group_by_check(run.results)
    known: set[tuple[str, ...]] = set()
    for result in rank_results(map(choose_worst_round, rounds.values())):
        verdict, all_rounds = effective_verdict(result), rounds[result.check]
        causes = set(map(make_cause_key, list_deciding(result)))
        adds_evidence = verdict >= Verdict.WARN and not (causes and causes <= known)
        known |= causes
        yield CheckSummary(
            result=result,
            rounds=all_rounds,
            other_rounds=tuple(rank_results(r for r in all_rounds if r is not result)),
            verdict=verdict,
            weight=_explain_weight(result, verdict),
            tally=format_tally(all_rounds) if len(all_rounds) > 1 else "",
            figures=choose_figures(result, run.inventory, past(result.check)),
            adds_evidence=adds_evidence,
        )


def rank_results(results: Iterable[Result]) -> list[Result]:
    """Order *results* by what they count as, then by severity; skips come last."""
    return sorted(results, key=_rank, reverse=True)


def _rank(result: Result) -> tuple[bool, tuple[Verdict, int, float]]:
    verdict = effective_verdict(result)
    keys = map(make_severity_key, list_deciding(result))
    return verdict is not Verdict.SKIP, max(keys, default=(verdict, 0, 0.0))


def _explain_weight(result: Result, verdict: Verdict) -> str:
    """Explain why *result* counts as another *verdict* than its own; empty if it does not."""
    if verdict is result.verdict:
        return ""
    if result.verdict is Verdict.SKIP:
        return "skipped, but required: counts as an error"
    return "failed, but in beta: counts as a warning"
