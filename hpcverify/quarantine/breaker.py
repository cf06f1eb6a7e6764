"""
The breaker: when so much fails that the failures themselves are to be doubted.

Two questions, both about what happened within a window that outlives the controller.
How many nodes would be newly held? More than the allowance means a bad image, a driver
or a bug of ours, and nobody is acted on until a person says so. And is it one check
that fails widely, where others pass? Then the check is the suspect.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

from hpcverify.config import Quarantine

AT_LEAST = 2
"""Nodes that may always be held: a share of a small cluster is less than one."""
WIDELY = 3
"""Nodes that have to fail a check before it can be its fault."""


def allowance(eligible: int, policy: Quarantine) -> int:
    """Say how many of *eligible* nodes may be newly held within a window."""
    return max(AT_LEAST, min(math.ceil(policy.share * eligible), policy.cap))


def trips(
    held: Collection[str], new: Collection[str], eligible: int, policy: Quarantine
) -> str:
    """Say why *new* must not be held beside those *held* already; empty if they may."""
    allowed = allowance(eligible, policy)
    total = len({*held, *new})
    if not set(new) - set(held) or total <= allowed:
        return ""
    return (
        f"{total} of {eligible} nodes would be newly held within "
        f"{policy.window_hours:g} h, and {allowed} may be"
    )


def doubted(
    outcomes: Mapping[str, Mapping[str, bool]], policy: Quarantine
) -> dict[str, str]:
    """
    Name the checks that fail too widely to be believed, and say how widely.

    *outcomes* says by check which nodes ran it and whether they failed it.
    """
    found: dict[str, str] = {}
    for check, by_node in outcomes.items():
        failed = sum(by_node.values())
        if failed >= WIDELY and failed > policy.check_share * len(by_node):
            found[check] = (
                f"{check} fails on {failed} of the {len(by_node)} nodes that ran it: "
                "suspect the check, the driver or the image"
            )
    return found
