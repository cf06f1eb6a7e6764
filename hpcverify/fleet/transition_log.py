"""
What changed, for whoever the site wants to be told: a node, the breaker, a check.

Pure. The ledger queues a transition in the same write as the change itself, so that no
end of the controller loses one.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from hpcverify.fleet.states import Node

FORGOTTEN_STATE = "forgotten"
"""What becomes of a node that Slurm has no more and a person gave up."""
BREAKER_CLOSED, BREAKER_TRIPPED = "closed", "tripped"
"""The breaker's states."""
CHECK_TRUSTED, CHECK_DOUBTED = "trusted", "doubted"
"""A check's."""


class TransitionKind(StrEnum):
    """What changed."""

    NODE = "node"
    BREAKER = "breaker"
    CHECK = "check"


class Transition(Struct, frozen=True, kw_only=True):
    """One change of state."""

    kind: TransitionKind
    at: float
    """Seconds since 1970, by the controller's clock."""
    before: str
    after: str
    node: str = ""
    """Empty for the breaker and for a check."""
    reason: str = ""
    by: str = ""
    """The person who decided it, if a person did."""
    enforced: bool = False
    """Whether it is acted on."""
    checks: tuple[str, ...] = ()
    """The checks that failed, or the one that is doubted."""
    run: str = ""
    """The id of the run that is the evidence."""


def build_transition(before: Node, after: Node, at: float) -> Transition | None:
    """Say what changed of a node for whoever watches it, if anything did."""
    if (before.shown_state, before.enforced) == (after.shown_state, after.enforced):
        return None
    return Transition(
        kind=TransitionKind.NODE,
        at=at,
        node=after.name,
        before=before.shown_state,
        after=after.shown_state,
        reason=after.foreign or after.full_reason,
        by=after.by,
        enforced=after.enforced,
        checks=after.checks,
        run=after.run,
    )
