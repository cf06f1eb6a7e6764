"""
Changes of a node, the breaker or a check, as the site's own program gets them.

The ledger queues a transition in the same write as the change itself, so that none is
lost, however the controller ends.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from hpcverify.fleet.states import Node

FORGOTTEN_STATE = "forgotten"
"""The state of a node that Slurm no longer has and a person forgot."""
BREAKER_CLOSED, BREAKER_TRIPPED = "closed", "tripped"
CHECK_TRUSTED, CHECK_DOUBTED = "trusted", "doubted"


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
    """Describe what changed of a node, if anything that is shown did."""
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
