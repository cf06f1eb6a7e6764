"""Ask the telemetry worker which Xids the GPUs had, when one of them failed or hung."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from msgspec import Struct

from hpcverify.check import TELEMETRY_WORKER
from hpcverify.model import Coverage, Finding, Verdict
from hpcverify.run.executor import Executor
from hpcverify.run.wire import FindXids
from hpcverify.telemetry.error_states import ERROR_STATE_CODE

XIDS_SECONDS = 15.0
"""The time to read the kernel log, which may be tens of MB, and one more round of samples."""


class GpuXids(Struct, frozen=True):
    """The Xids of some GPUs in a window of time."""

    by_part: Mapping[str, tuple[str, ...]] = {}
    """In words, as ``Xid 94 at 03:12:05 UTC``; a part without any is not here."""
    lines: Mapping[str, tuple[str, ...]] = {}
    """Their lines in the kernel log."""
    error_states: Mapping[str, tuple[str, ...]] = {}
    """What the driver holds against some of them, if that was asked."""
    numbers: Mapping[str, frozenset[int]] = {}
    """Which Xids each part had."""
    problem: str = ""
    """Why the kernel log could not be read, if so: there may be more than we know."""

    def describe(self, part: str) -> str:
        """Say which Xids *part* had, in the order of the log; empty if we know of none."""
        return ", ".join(self.by_part.get(part, ()))

    def list_marked(self, parts: Collection[str], xids: frozenset[int]) -> list[str]:
        """
        List those of *parts* that had one of *xids*, or else those that the driver complains of.

        If there are no *xids*, any counts.
        """
        had = {part: self.numbers.get(part, frozenset()) for part in parts if part in self.by_part}
        marked = [part for part, numbers in had.items() if not xids or numbers & xids]
        return marked or [part for part in parts if part in self.error_states]

    def make_evidence(self, part: str) -> dict[str, str]:
        """Make what stands beside a finding about *part*: also that nobody could look."""
        evidence = {"xid": self.describe(part) or self.problem or "none in the kernel log"}
        if lines := self.lines.get(part):
            evidence["kernel_log"] = "\n".join(lines)
        return evidence


def find_xids(
    executor: Executor,
    parts: Collection[str],
    start: float,
    end: float,
    *,
    with_error_states: bool = False,
) -> GpuXids:
    """
    Find the Xids that the GPUs *parts* had from *start* to *end*.

    Both are on the engine's monotonic clock, as `Outcome.start` is. Ask when a GPU failed or
    hung, and put `GpuXids.describe` into the text and `GpuXids.make_evidence` beside it.
    A log that nobody may read is no error: it is said in `GpuXids.problem`.
    """
    task = FindXids(parts=tuple(parts), start=start, end=end, with_error_states=with_error_states)
    answer = executor.run({TELEMETRY_WORKER: task}, XIDS_SECONDS)[TELEMETRY_WORKER]
    by_part: dict[str, tuple[str, ...]] = {}
    lines: dict[str, tuple[str, ...]] = {}
    error_states: dict[str, tuple[str, ...]] = {}
    numbers: dict[str, frozenset[int]] = {}
    for item in answer.items:
        if isinstance(item, Finding) and item.code == ERROR_STATE_CODE:
            error_states[item.part_id] = (*error_states.get(item.part_id, ()), item.text)
        elif isinstance(item, Finding):
            by_part[item.part_id] = (*by_part.get(item.part_id, ()), item.text)
            number = frozenset[int]({item.data["xid"]})
            numbers[item.part_id] = numbers.get(item.part_id, frozenset()) | number
            lines[item.part_id] = (*lines.get(item.part_id, ()), *item.evidence.values())
    problem = "; ".join(item.text for item in answer.items if isinstance(item, Coverage))
    if answer.outcome.verdict is not Verdict.PASS:
        problem = f"the telemetry worker did not answer: {answer.outcome.reason}"
    return GpuXids(by_part, lines, error_states, numbers, problem)
