"""
The breaker: when so much fails that the failures themselves are in doubt.

It asks two questions about a window of time that survives restarts. How many nodes
would be newly held? More than the allowance means a bad image, a driver or a bug of
ours: no node is held until a person resets the breaker. Does one check fail widely
where others pass? Then the check is the suspect. In both cases no hold gets stricter,
and held nodes stay held until they pass.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import UTC, datetime

from msgspec import Struct

from hpcverify.fleet.ledger import Ledger
from hpcverify.fleet.states import HOUR_S
from hpcverify.plan.config import Quarantine

MIN_ALLOWANCE = 2
"""Nodes that may always be held: a share of a small cluster is less than one."""
MIN_FAILING_NODES = 3
"""Nodes that must fail a check before the check is suspected."""


def compute_allowance(eligible: int, policy: Quarantine) -> int:
    """Say how many of *eligible* nodes may be newly held within a window."""
    return max(MIN_ALLOWANCE, min(math.ceil(policy.share * eligible), policy.cap))


def explain_trip(
    held: Collection[str], new: Collection[str], eligible: int, policy: Quarantine
) -> str:
    """Say why *new* must not be held on top of *held*; empty if they may be."""
    allowed = compute_allowance(eligible, policy)
    total = len({*held, *new})
    if not set(new) - set(held) or total <= allowed:
        return ""
    return (
        f"{total} of {eligible} nodes would be newly held within "
        f"{policy.window_hours:g} h; at most {allowed} may be"
    )


def find_doubted_checks(
    outcomes: Mapping[str, Mapping[str, bool]], policy: Quarantine
) -> dict[str, str]:
    """
    Name the checks that fail too widely to be believed, and say how widely.

    *outcomes* maps check and node to whether the node failed the check.
    """
    doubts: dict[str, str] = {}
    for check, by_node in outcomes.items():
        failed = sum(by_node.values())
        if _fails_widely(failed, len(by_node), policy):
            doubts[check] = (
                f"{check} fails on {failed} of the {len(by_node)} nodes that ran it: "
                "suspect the check, the driver or the image"
            )
    return doubts


def predict_doubt_end(answers: Iterable[tuple[float, bool]], policy: Quarantine) -> float:
    """
    Say when a check is believed again if nothing new is found, in seconds since 1970.

    *answers*: when each node last ran the check, and whether it failed. They leave the
    window one by one.
    """
    ordered = sorted(answers)
    ran, failed = len(ordered), sum(bad for _, bad in ordered)
    window = policy.window_hours * HOUR_S
    ends = 0.0
    for at, bad in ordered:
        if not _fails_widely(failed, ran, policy):
            break
        ran, failed, ends = ran - 1, failed - bad, at + window
    return ends


def _fails_widely(failed: int, ran: int, policy: Quarantine) -> bool:
    return failed >= MIN_FAILING_NODES and failed > policy.check_share * ran


class Doubt(Struct, frozen=True, kw_only=True):
    """A check that fails too widely to be believed."""

    check: str
    why: str
    """On how many of how many nodes it fails."""
    nodes: tuple[str, ...]
    """Where it fails."""
    until: float
    """When the doubt ends if nothing new is found: seconds since 1970."""

    @property
    def text(self) -> str:
        """Say which check, how widely it fails, and until when that counts."""
        ends = datetime.fromtimestamp(self.until, UTC)
        return (
            f"{self.why}; no node is held for it alone until {ends:%Y-%m-%d %H:%M} "
            "UTC, or until it fails on fewer nodes"
        )


def find_doubts(ledger: Ledger, policy: Quarantine, now: float) -> list[Doubt]:
    """List the checks that are in doubt at *now*, by name."""
    since = now - policy.window_hours * HOUR_S
    doubts: list[Doubt] = []
    for check, why in sorted(find_doubted_checks(ledger.read_outcomes(since), policy).items()):
        answers = ledger.list_answers(check, since)
        doubts.append(
            Doubt(
                check=check,
                why=why,
                nodes=tuple(sorted(node for _, node, failed in answers if failed)),
                until=predict_doubt_end([(at, bad) for at, _, bad in answers], policy),
            )
        )
    return doubts


def describe_brakes(ledger: Ledger, policy: Quarantine, now: float) -> Iterator[str]:
    """Yield a line for each reason why failures are not acted on now."""
    if why := ledger.read_trip_reason():
        yield f"THE BREAKER IS TRIPPED, no node is held for a failure: {why}"
    for doubt in find_doubts(ledger, policy, now):
        yield f"A CHECK IS DOUBTED: {doubt.text}"
