"""Faults of one node of a fabric, who is to be named for each, and as what."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import NamedTuple

from tests.fabric_lab.cluster import Fabric

SWITCHES = {"sw1": ("n1", "n2"), "sw2": ("n3", "n4")}
MBIT = 200.0
"""Of a healthy link."""
SLOW_MBIT = MBIT / 8


class NodeFault(NamedTuple):
    """What is wrong with a node, and what is to be said of it."""

    inject: Callable[[Fabric], AbstractContextManager[None]]
    node: str
    how: frozenset[str]


BOTH_WAYS = frozenset({"sends_slowly", "receives_slowly"})

FAULTS: Mapping[str, NodeFault] = {
    "slow to send": NodeFault(
        lambda f: f.network.slow_to_send("n2", SLOW_MBIT), "n2", frozenset({"sends_slowly"})
    ),
    "slow to receive": NodeFault(
        lambda f: f.network.slow_to_receive("n3", SLOW_MBIT), "n3", frozenset({"receives_slowly"})
    ),
    "low rate": NodeFault(lambda f: f.network.low_rate("n1", SLOW_MBIT), "n1", BOTH_WAYS),
    "far away": NodeFault(lambda f: f.network.delayed("n4", 0.02), "n4", BOTH_WAYS),
    "lossy": NodeFault(lambda f: f.network.lossy("n1", 8), "n1", BOTH_WAYS),
    "little CPU": NodeFault(
        lambda f: f.slow_cpu("n2", 0.2),
        "n2",
        BOTH_WAYS | {"arrives_late"},  # slow at all of it
    ),
}
