"""
When nodes failed or were held, and when they were back: a row of the ledger each.

An outage begins when a node that was in service fails or is held, by whomever, and ends
when it is in service again. What lies between, such as its verification after a repair,
is part of it.
"""

from __future__ import annotations

import math
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from hpcverify.fleet.states import DAY_S, FAILED_STATES, OTHERS_STATE, Node, State
from hpcverify.reliability.outages import Outage


class OutageCause(StrEnum):
    """Who says that the node is out of order."""

    VERIFICATION = "verification"
    """A run that the controller ordered."""
    OWN_RUN = "own run"
    """A run that it did not order: a hook, or a person on the node."""
    OTHERS = "others"
    """Somebody else drained it, or Slurm set it down; its reason says why."""
    PERSON = "person"
    """`hpcverify nodes hold`."""


SLURM_REASONS = (
    "not responding",
    "unexpectedly rebooted",
    "kill task failed",
    "low realmemory",
    "low cpu",
    "low socket",
    "gres/gpu count",
    "prolog error",
    "epilog error",
    "batch job complete failure",
    "duplicate jobid",
)
"""In the reasons that Slurm itself gives for a node that it sets down or drains."""


JUDGED_STATES = frozenset({State.QUARANTINED, State.REPEAT_OFFENDER})
"""The states of a node that is judged to be at fault, and not only under suspicion."""


class NodeOutage(Struct, frozen=True, kw_only=True):
    """One outage of a node; times are seconds since 1970."""

    number: int = 0
    node: str
    began: float
    ended: float = 0.0
    """0: it is not over."""
    cause: OutageCause
    reason: str
    checks: tuple[str, ...] = ()
    """Those that failed."""
    confirmed: bool = False
    """Whether the node was judged to be at fault, or Slurm itself set it down."""
    held: bool = False
    """Whether users' jobs were kept off the node."""

    @property
    def is_failure(self) -> bool:
        """
        Whether the node failed, as far as its record shows.

        Not if a person or another program held it for reasons that are not ours to read,
        such as maintenance.
        """
        by_slurm = _is_of_slurm(self.reason)
        failed = self.cause in (OutageCause.VERIFICATION, OutageCause.OWN_RUN)
        return self.confirmed and (failed or (self.cause is OutageCause.OTHERS and by_slurm))

    def convert_to_days(self, now: float) -> Outage:
        """Convert it; what is over is so by *now*, though the clock was ahead when it ended."""
        ended = min(max(self.began, self.ended), now) / DAY_S if self.ended else math.inf
        is_found = self.cause is OutageCause.VERIFICATION
        return Outage(self.node, self.began / DAY_S, ended, is_found=is_found)


def follow_outage(
    known: NodeOutage | None, after: Node, at: float, *, ordered: bool
) -> NodeOutage | None:
    """
    Begin, go on with or end the outage of a node that is now as *after*.

    *known* is its open one, *ordered* says whether a run that the controller ordered has
    changed the node. None: it has none.
    """
    state = after.shown_state
    judged, set_down = after.state in JUDGED_STATES, _is_of_slurm(after.foreign)
    if known is None:
        if state not in FAILED_STATES and state not in (State.HELD, OTHERS_STATE):
            return None
        known = NodeOutage(
            node=after.name,
            began=at,
            cause=_name_cause(after, ordered=ordered),
            reason=after.reason if judged else after.foreign or after.reason,
        )
    elif not known.confirmed and judged and known.cause in (OutageCause.OTHERS, OutageCause.PERSON):
        # Out of service for maintenance, say, and found to be at fault there.
        cause = _name_cause(after, ordered=ordered)
        known = replace(known, began=at, cause=cause, reason=after.reason, checks=after.checks)
    elif not known.confirmed and set_down and not judged:
        known = replace(known, cause=OutageCause.OTHERS, reason=after.foreign)
    return replace(
        known,
        ended=at if state in (State.HEALTHY, State.UNVERIFIED) else 0.0,
        checks=known.checks or after.checks,
        confirmed=known.confirmed or judged or set_down,
        held=known.held or after.enforced or bool(after.foreign),
    )


def _is_of_slurm(reason: str) -> bool:
    text = reason.lower()
    return any(words in text for words in SLURM_REASONS)


def _name_cause(node: Node, *, ordered: bool) -> OutageCause:
    if node.state not in JUDGED_STATES:
        if node.foreign:
            return OutageCause.OTHERS
        if node.by:
            return OutageCause.PERSON
    return OutageCause.VERIFICATION if ordered else OutageCause.OWN_RUN
