"""
A run in a log: plain lines, and the sentences that a terminal shows too.

Nothing heavy is imported: Slurm's prolog prints this.
"""

from __future__ import annotations

import sys
from contextlib import suppress

from msgspec.structs import replace

from hpcverify.check import compute_margin
from hpcverify.model import Inventory, Limit, Measurement, Result, Run, Verdict, effective_verdict
from hpcverify.plan.suite import Plan, Step
from hpcverify.summary.diagnosis import MAX_NAMED, Diagnosis
from hpcverify.summary.faults import is_all_skipped, pair_with_limits
from hpcverify.summary.figures import Figure
from hpcverify.summary.part_names import fold_labels
from hpcverify.summary.printable import make_printable
from hpcverify.summary.progress import Progress
from hpcverify.summary.rounds import explain_left_out, format_round_count
from hpcverify.summary.run_summary import RunSummary, summarize, write_finding
from hpcverify.summary.verdict import DRAIN, needs_drain, shorten, write_diagnosis_step


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
    Plain lines on standard error: one for each check, when it ends.

    What has kept several checks from running, or one in several rounds, is printed once.
    """

    def __init__(self) -> None:
        self._printed: dict[str, str] = {}
        self._position = ""

    def begin_step(self, step: Step, place: int, plan: Plan, target: str) -> None:  # noqa: ARG002
        """Keep the position of *step* for its line."""
        self._position = f"{format_position(place, plan)} "

    def tick(self) -> None:
        """Print nothing: a log needs no clock."""

    def end_step(self, result: Result) -> None:
        """Print the verdict."""
        first = self._printed.get(result.reason)
        if first:
            same = "as before" if first == result.check else f"as for {first}"
            result = replace(result, reason=same)
        elif result.reason:
            self._printed[result.reason] = result.check
        line = f"{effective_verdict(result).name:5}{shorten(format_headline(result))}"
        _print_to_stderr(f"{self._position}{line}")


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


def format_run(run: Run) -> list[str]:
    """
    Print the result of *run*: its verdict, a line for each diagnosis, and what to do.

    The checks that passed share a line, and so do those that were skipped.
    """
    summary = summarize(run)
    took = format_duration(run.seconds)
    head = (run.node, summary.gpus, f"suite {run.suite}", format_round_count(run), took)
    lines = [f"{run.verdict.name:5} {'  '.join(filter(None, head))}"]
    count = 0
    for diagnosis in summary.diagnoses:
        names, serials = _name_diagnosed_parts(diagnosis, summary.inventory)
        tally, what = write_finding(diagnosis, summary, diagnosis.title)
        step = ""
        if diagnosis.verdict is run.verdict and not is_all_skipped(run):
            step = write_diagnosis_step(diagnosis)
            count += bool(step)
        cells = (names, serials, tally, what, f"{count}. {step}" if step else "")
        lines.append(f"  {diagnosis.verdict.name:5} {'  '.join(filter(None, cells))}")
    passed = [check.result for check in summary.checks if check.verdict is Verdict.PASS]
    lines += [f"  PASS  {result.check}  {result.reason}" for result in passed if result.reason]
    if left_out := explain_left_out(run):
        lines.append(left_out)
    if passed:
        lines.append(f"{len(passed)} passed: {', '.join(result.check for result in passed)}")
    lines += [summary.skips] if summary.skips else []
    lines += [f"next: {_format_next(summary, count)}"] if summary.next_steps else []
    # A line break in a name or text of a document would forge a line.
    return [make_printable(" ␊ ".join(line.splitlines())) for line in lines]


def _name_diagnosed_parts(diagnosis: Diagnosis, inventory: Inventory) -> tuple[str, str]:
    """Name the parts of *diagnosis* by their numbers, and list the serial numbers of a few."""
    ids = diagnosis.part_ids
    if not diagnosis.names:
        return "node", ""
    serials = [p.facts.get("serial", "") for p in map(inventory.find_part, ids) if p]
    if len(ids) > MAX_NAMED or len(list(filter(None, serials))) < len(ids):
        return fold_labels(map(inventory.find_label, ids)), ""
    names = [inventory.list_aliases(part_id)[-1] for part_id in ids]
    return fold_labels(names), f"serial {' '.join(serials)}"


def _format_next(summary: RunSummary, count: int) -> str:
    """Print the order of the *count* numbered steps, and the command that verifies them."""
    if not count:
        return summary.next_steps
    remedies = [remedy for verdict, remedy in summary.steps if verdict is summary.run.verdict]
    drain = f"{DRAIN}, " if needs_drain(summary.run.verdict, remedies) else ""
    steps = f"steps 1 to {count}" if count > 1 else "step 1"
    return f"{drain}{steps}, then: {summary.rerun_command}"
