"""The least bandwidth between nodes that a platform is known to reach."""

from __future__ import annotations

from collections import Counter

from hpcverify.limits.fabric import find_fabric_floor
from hpcverify.records.collectives import CollectiveRun
from hpcverify.units import GIB

JUDGED_OPERATION = "all_reduce"
"""What the figures are of."""
JUDGED_BYTES = GIB
"""From this size on, an all-reduce between nodes comes near its full bandwidth."""


def floors_of(run: CollectiveRun) -> dict[str, float]:
    """
    Find the least busbw, in GB/s, of the operations of *run* for which a figure is known.

    Empty unless all ranks have the same part and all nodes the same network, whole nodes
    take part as in the figures, and no smaller message than `JUDGED_BYTES` was measured.
    """
    kinds = {(place.name, place.wire) for place in run.ranks}
    per_node = Counter(place.node for place in run.ranks)
    sizes = [timing.size for timing in run.timings if timing.operation == JUDGED_OPERATION]
    if len(kinds) != 1 or not sizes or min(sizes) < JUDGED_BYTES:
        return {}
    if len(per_node) == 1 or len(set(per_node.values())) != 1:
        return {}
    [(name, wire)] = kinds
    floor = find_fabric_floor(name, max(per_node.values()), wire, run.algorithm)
    return {JUDGED_OPERATION: floor.busbw} if floor else {}
