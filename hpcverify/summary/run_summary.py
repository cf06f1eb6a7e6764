"""
The summary of a run: everything that an output says about it, made once.

Terminal, log, node page, Markdown and JUnit are drawn from this value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from msgspec import Struct

from hpcverify.limits.resolve import PastValues
from hpcverify.model import Inventory, Remedy, Result, Run, Verdict, effective_verdict
from hpcverify.summary.actions import (
    Action,
    list_actions,
    list_deciding,
    make_cause_key,
    recall_gone_parts,
)
from hpcverify.summary.diagnosis import Diagnosis, diagnose
from hpcverify.summary.facts import describe_gpus
from hpcverify.summary.figures import Figure, choose_figures
from hpcverify.summary.rounds import choose_worst_round, format_tally, group_by_check
from hpcverify.summary.verdict import (
    explain_weight,
    format_next_steps,
    rank_results,
    summarize_run,
    summarize_skips,
    write_rerun_command,
)

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


class RunSummary(Struct, frozen=True, kw_only=True):
    """A run in words."""

    run: Run
    inventory: Inventory
    """That of the run, with missing parts as they were before."""
    gpus: str
    """The GPUs by model."""
    sentence: str
    """The counts."""
    diagnoses: tuple[Diagnosis, ...]
    """The gravest first."""
    actions: tuple[Action, ...]
    """The gravest first."""
    remedies: dict[str, Remedy]
    """What each part with complaints calls for."""
    checks: tuple[CheckSummary, ...]
    """The worst first, skips last."""
    skips: str
    """What was skipped; empty if nothing was."""
    next_steps: str
    """Empty after a PASS."""
    rerun_command: str


def summarize(run: Run, past: PastLookup = lambda _check: lambda _name, _part: ()) -> RunSummary:
    """Summarize *run*; *past* looks up what earlier runs of the node measured."""
    rounds = group_by_check(run.results)
    worst = rank_results(map(choose_worst_round, rounds.values()))
    actions = list_actions(run)
    return RunSummary(
        run=run,
        inventory=recall_gone_parts(run),
        gpus=describe_gpus(run.inventory),
        sentence=summarize_run(run),
        diagnoses=diagnose(run),
        actions=actions,
        remedies={part.part_id: action.remedy for action in actions for part in action.parts},
        checks=tuple(_summarize_checks(worst, rounds, run.inventory, past)),
        skips=summarize_skips(run),
        next_steps=format_next_steps(run),
        rerun_command=write_rerun_command(run),
    )


def _summarize_checks(
    worst: Iterable[Result],
    rounds: Mapping[str, tuple[Result, ...]],
    inventory: Inventory,
    past: PastLookup,
) -> Iterator[CheckSummary]:
    known: set[tuple[str, ...]] = set()
    for result in worst:
        verdict, all_rounds = effective_verdict(result), rounds[result.check]
        causes = set(map(make_cause_key, list_deciding(result)))
        adds_evidence = verdict >= Verdict.WARN and not (causes and causes <= known)
        known |= causes
        yield CheckSummary(
            result=result,
            rounds=all_rounds,
            other_rounds=tuple(rank_results(r for r in all_rounds if r is not result)),
            verdict=verdict,
            weight=explain_weight(result),
            tally=format_tally(all_rounds) if len(all_rounds) > 1 else "",
            figures=choose_figures(result, inventory, past(result.check)),
            adds_evidence=adds_evidence,
        )


def write_finding(diagnosis: Diagnosis, summary: RunSummary) -> tuple[str, str]:
    """Write *diagnosis* for a list of checks: the tally of its only check, and what is wrong."""
    own = [check for check in summary.checks if check.result.check in diagnosis.checks]
    tally = own[0].tally if len(own) == 1 else ""
    weights = dict.fromkeys(f"[{check.weight}]" for check in own if check.weight)
    return tally, " ".join((diagnosis.note, *weights))
