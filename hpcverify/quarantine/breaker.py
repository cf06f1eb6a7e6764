"""
The breaker: when so much fails that the failures themselves are to be doubted.

Two questions, both about what happened within a window that outlives the controller.
How many nodes would be newly held? More than the allowance means a bad image, a driver
or a bug of ours, and nobody is acted on until a person says so. And is it one check
that fails widely, where others pass? Then the check is the suspect. Either way nobody
is held harder than before, and what was held stays so unless it passes.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from datetime import timedelta

from msgspec.structs import replace

from hpcverify.config import Quarantine
from hpcverify.quarantine.life import Hold, Node, State

MIN_ALLOWANCE = 2
"""Nodes that may always be held: a share of a small cluster is less than one."""
MIN_FAILING_NODES = 3
"""Nodes that have to fail a check before it can be its fault."""
NOT_ACTED_ON_PREFIX = " (not acted on: "
"""Stands in a reason before why nobody acts on it."""
HELD_NO_HARDER_PREFIX = " (held no harder than before: "
"""Stands in a reason before why a node that we hold is not held harder."""
HOLD_STRENGTHS = {Hold.NONE: 0, Hold.RESERVATION: 1, Hold.DRAIN: 2}


def compute_allowance(eligible: int, policy: Quarantine) -> int:
    """Say how many of *eligible* nodes may be newly held within a window."""
    return max(MIN_ALLOWANCE, min(math.ceil(policy.share * eligible), policy.cap))


def explain_trip(
    held: Collection[str], new: Collection[str], eligible: int, policy: Quarantine
) -> str:
    """Say why *new* must not be held beside those *held* already; empty if they may."""
    allowed = compute_allowance(eligible, policy)
    total = len({*held, *new})
    if not set(new) - set(held) or total <= allowed:
        return ""
    return (
        f"{total} of {eligible} nodes would be newly held within "
        f"{policy.window_hours:g} h, and {allowed} may be"
    )


def find_doubted_checks(
    outcomes: Mapping[str, Mapping[str, bool]], policy: Quarantine
) -> dict[str, str]:
    """
    Name the checks that fail too widely to be believed, and say how widely.

    *outcomes* says by check which nodes ran it and whether they failed it.
    """
    found: dict[str, str] = {}
    for check, by_node in outcomes.items():
        failed = sum(by_node.values())
        if _fails_widely(failed, len(by_node), policy):
            found[check] = (
                f"{check} fails on {failed} of the {len(by_node)} nodes that ran it: "
                "suspect the check, the driver or the image"
            )
    return found


def predict_doubt_end(answers: Iterable[tuple[float, bool]], policy: Quarantine) -> float:
    """
    Say when a check is believed again if nothing new is found, in seconds since 1970.

    *answers* says of each node when it last ran the check, and whether it failed. They
    leave the window one by one.
    """
    ordered = sorted(answers)
    ran, failed = len(ordered), sum(bad for _, bad in ordered)
    window = timedelta(hours=policy.window_hours).total_seconds()
    ends = 0.0
    for at, bad in ordered:
        if not _fails_widely(failed, ran, policy):
            break
        ran, failed, ends = ran - 1, failed - bad, at + window
    return ends


def _fails_widely(failed: int, ran: int, policy: Quarantine) -> bool:
    return failed >= MIN_FAILING_NODES and failed > policy.check_share * ran


def restrain_hold(before: Node, after: Node, why: str) -> Node:
    """
    Say what becomes of a node that *why* forbids to hold harder than *before*.

    In service, it shows what was found, and stays there; held, a state that no failure
    brings, is what it would be and not what was found. What our reservation keeps stays
    in it until it passes, fails when nothing forbids to act on that, or is let go for
    a doubt (`policy.release_if_doubted`). Its `after` stays too, or another rerun would
    be due at once. Hard evidence stays hard.
    """
    if HOLD_STRENGTHS[after.desired_hold] <= HOLD_STRENGTHS[before.desired_hold]:
        return after
    if before.desired_hold is Hold.NONE:
        told = f"{after.reason}{NOT_ACTED_ON_PREFIX}{why})"
        if after.state is not State.HELD:
            return replace(after, enforced=False, reason=told)
    else:
        told = f"{after.reason}{HELD_NO_HARDER_PREFIX}{why})"
    return replace(
        before,
        state=State.SUSPECT if before.is_reserved_overdue else before.state,
        reason=told,
        checks=tuple(dict.fromkeys((*before.checks, *after.checks))),
        hard=before.hard or after.hard,
        run=after.run,
        last_run_at=after.last_run_at,
        verdict=after.verdict,
    )
