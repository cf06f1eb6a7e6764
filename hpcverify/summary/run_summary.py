"""
The summary of a run: the values that all outputs print, made once.

Terminal, log, node page, Markdown and JUnit are drawn from this value.
"""

from __future__ import annotations

from msgspec import Struct

from hpcverify.model import Inventory, Run
from hpcverify.summary.checks import CheckSummary, PastLookup, find_no_past, summarize_checks
from hpcverify.summary.diagnosis import Diagnosis, diagnose
from hpcverify.summary.facts import describe_gpus, describe_machine
from hpcverify.summary.faults import (
    PartFaults,
    Step,
    group_by_part,
    group_by_step,
    list_run_faults,
    recall_gone_parts,
)
from hpcverify.summary.verdict import (
    format_next_steps,
    summarize_run,
    summarize_skips,
    write_command,
    write_rerun_command,
)


class RunSummary(Struct, frozen=True, kw_only=True):
    """A run in words."""

    run: Run
    inventory: Inventory
    """That of the run, with missing parts as they were before."""
    gpus: str
    """The GPUs by model."""
    machine: str
    """The machine as its vendor names it; empty if DMI cannot be read."""
    sentence: str
    """The counts."""
    diagnoses: tuple[Diagnosis, ...]
    """The worst first."""
    parts: dict[str, PartFaults]
    """The parts with faults, in the order of the inventory."""
    steps: dict[Step, list[PartFaults]]
    """The same by what they call for: the gravest step first, and in it the worst part."""
    checks: tuple[CheckSummary, ...]
    """The worst first, skips last."""
    by_name: dict[str, CheckSummary]
    """The same by the names of the checks."""
    skips: str
    """What was skipped; empty if nothing was."""
    next_steps: str
    """Empty after a PASS."""
    command: str
    """The command that repeats the run."""
    rerun_command: str
    """The command that repeats what did not pass."""


def summarize(run: Run, past: PastLookup = find_no_past) -> RunSummary:
    """Summarize *run*; *past* looks up what earlier runs of the node measured."""
    inventory, faults = recall_gone_parts(run), list_run_faults(run)
    checks, parts = tuple(summarize_checks(run, past)), group_by_part(faults, inventory)
    steps = group_by_step(parts.values())
    rerun_command = write_rerun_command(run, checks)
    return RunSummary(
        run=run,
        inventory=inventory,
        gpus=describe_gpus(inventory, faults),
        machine=describe_machine(run.inventory),
        sentence=summarize_run(run, checks),
        diagnoses=diagnose(faults, inventory, run.results),
        parts=parts,
        steps=steps,
        checks=checks,
        by_name={check.result.check: check for check in checks},
        skips=summarize_skips(checks),
        next_steps=format_next_steps(run, steps, inventory, rerun_command),
        command=write_command(run.suite, run.chosen),
        rerun_command=rerun_command,
    )


def write_finding(diagnosis: Diagnosis, summary: RunSummary, text: str = "") -> tuple[str, str]:
    """Write *diagnosis* for a list: the tally of its only check, and *text* or its note."""
    own = [summary.by_name[name] for name in diagnosis.checks if name in summary.by_name]
    tally = own[0].tally if len(own) == 1 else ""
    weights = dict.fromkeys(f"[{check.weight}]" for check in own if check.weight)
    return tally, " ".join((text or diagnosis.note, *weights))
