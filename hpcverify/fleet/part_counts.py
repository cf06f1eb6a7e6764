"""How many parts of each kind a node should have, by the inventory in a run."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

from msgspec import Struct

from hpcverify.model import Result, Run, Verdict

INVENTORY = "inventory"
"""The check that counts parts."""
COUNTED_KINDS = {"gpus": "gpu", "nics": "nic", "disks": "disk", "dimms": "dimm"}
"""Its measurements, and the kinds of part that they count."""
MISSING_SUFFIX = ".missing_from_board"
"""Ends the measurement that says how many parts a board lacks."""
MAX_PARTS = 100_000
"""No node has so many: the numbers are those that a document claims."""
UNKNOWN_VERDICTS = (Verdict.SKIP, Verdict.ERROR)


class PartCount(Struct, frozen=True):
    """How many parts of a kind a node should have, and how many its newest run has seen."""

    node: str
    kind: str
    expected: int
    present: int


def count_parts(run: Run) -> tuple[PartCount, ...]:
    """
    Count the parts of a node; none if *run* has no inventory that could be judged.

    Expected are those that were seen, and as many more as the inventory misses: since the last
    one that was accepted, by the site's limit or on a board.
    """
    counted = [r for r in run.results if r.check == INVENTORY]
    judged = [result for result in counted if result.verdict not in UNKNOWN_VERDICTS]
    return tuple(_count_kinds(run.node, judged[-1])) if judged else ()


def _count_kinds(node: str, result: Result) -> Iterator[PartCount]:
    values = {m.name: _bound(m.value) for m in result.measurements if m.value is not None}
    least = {limit.name: _bound(limit.low) for limit in result.limits if limit.low is not None}
    lost = Counter(finding.code for finding in result.findings)
    for name, kind in COUNTED_KINDS.items():
        if (present := values.get(name)) is not None:
            missing = max(
                lost[f"{kind}_missing"],
                least.get(name, 0) - present,
                values.get(f"{name}{MISSING_SUFFIX}", 0),
            )
            yield PartCount(node, kind, present + missing, present)


def _bound(number: float) -> int:
    return math.ceil(min(max(0.0, number), MAX_PARTS))
