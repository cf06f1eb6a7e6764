"""Real ranks of gloo on this machine, by launchers as Slurm starts them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from hpcverify.records.collectives import CollectiveRun
from hpcverify_checks.collectives.launch import LaunchOrder, launch
from hpcverify_checks.collectives.operations import OPERATIONS

KIB, MIB = 2**10, 2**20
SMALL: Mapping[str, Any] = {
    "operations": tuple(OPERATIONS),
    "sizes": (4 * KIB,),
    "seconds": 0.2,
    "timeout": 30.0,
    "seed": 1,
    "algorithm": "auto",
    "alone": False,
    "group": "test",
    "address": "127.0.0.1",
}


def launch_here(world: int, **others: Any) -> CollectiveRun:
    """Launch all ranks of a node from here."""
    ranks = tuple((rank, rank) for rank in range(world))
    order = LaunchOrder(**{**SMALL, "world": world, "ranks": ranks, "node": "n1", **others})
    return msgspec.json.decode(launch(msgspec.json.encode(order)), type=CollectiveRun)
