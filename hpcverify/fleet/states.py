"""
A node and its states, as values and pure rules.

A state says what is wanted, and how a node is held (`Hold`) follows from the state
alone, so a new controller simply continues after a crash. How a node gets from one
state to the next is in `transitions`. A node that somebody else holds (`Node.foreign`)
is shown as held by others, whatever its state, and never touched.
"""

from __future__ import annotations

import math
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from hpcverify.model import FABRIC_SUITE
from hpcverify.units import DAY_SECONDS, HOUR_SECONDS

HOUR_S, DAY_S = HOUR_SECONDS, DAY_SECONDS


class State(StrEnum):
    """Where a node is in its life: a closed list, best first."""

    HEALTHY = "healthy"
    UNVERIFIED = "unverified"
    """Nothing is known of it yet, or somebody else released it."""
    VERIFYING = "verifying"
    """Reserved for our verification: new, repaired or overdue."""
    SUSPECT = "suspect"
    """It failed once; a rerun is due."""
    HELD = "held"
    """By a person, through `hpcverify nodes hold`, or until one decides."""
    QUARANTINED = "quarantined"
    REPEAT_OFFENDER = "repeat offender"
    """Quarantined too often: only a named person releases it."""


FAILED_STATES = frozenset({State.SUSPECT, State.QUARANTINED, State.REPEAT_OFFENDER})
"""The states of a node that failed."""
OTHERS_STATE = "held by others"
"""Shown in place of its state for a node that somebody else holds."""


class Hold(StrEnum):
    """What keeps users' jobs off a node."""

    NONE = "none"
    DRAIN = "drain"
    """No job runs there, not even ours."""
    RESERVATION = "reservation"
    """Only our verification runs there."""

    @property
    def strength(self) -> int:
        """A rank: the higher, the more it keeps off a node."""
        return [Hold.NONE, Hold.RESERVATION, Hold.DRAIN].index(self)


class Caveat(StrEnum):
    """How the hold of a node differs from what its reason alone would call for."""

    NONE = ""
    SPARED = "spared"
    """Still in service: the breaker is tripped, or its checks are doubted."""
    NOT_TIGHTENED = "not_tightened"
    """Held as before, and no harder, for the same causes."""
    WAITS = "waits"
    """Held until a run can judge what this one could not."""
    CONCLUSIVE = "conclusive"
    """Held for conclusive evidence that was not acted on when it was found."""
    VERIFICATION = "verification"
    """Reserved for one verification, for conclusive evidence in a run that nobody ordered."""


CAVEAT_TEXTS = {
    Caveat.NONE: "{reason}",
    Caveat.SPARED: "{reason} (not acted on: {why})",
    Caveat.NOT_TIGHTENED: "{reason} (not held more strictly: {why})",
    Caveat.WAITS: "{reason} (not judged yet: {why})",
    Caveat.CONCLUSIVE: "conclusive evidence, which a rerun does not clear: {reason}",
    Caveat.VERIFICATION: "{reason} (reserved until it is verified)",
}


HOLD_BY_STATE = {
    State.HEALTHY: Hold.NONE,
    State.UNVERIFIED: Hold.NONE,
    State.VERIFYING: Hold.RESERVATION,
    State.SUSPECT: Hold.RESERVATION,
    State.HELD: Hold.DRAIN,
    State.QUARANTINED: Hold.DRAIN,
    State.REPEAT_OFFENDER: Hold.DRAIN,
}


WATCH_S = 7 * DAY_S
"""
How long a node that returned to service is verified before others.

InfiniteHBD-Trace (github.com/stepfun-ai/InfiniteHBD-Trace, commit 7aacdc8: 400 GPU
servers, 348 days, 579 returns): 22 % of the nodes that came back were out of service
again within a day and 31 % within a week; of all nodes 0.4 % and 2.9 %.
"""
MAX_RETURNS = 2
"""Returns within `WATCH_S` after which a person should repair the node."""
REPAIR_ADVICE = "came back to service twice within 7 days: have a person repair it"
GONE_AFTER_S = HOUR_S
"""How long a node must be missing from the scheduler's answers to be shown as gone. A
single answer may leave a node out; with a collect every ten minutes, six must."""


def compute_elapsed(now: float, then: float) -> float:
    """
    Return the seconds from *then* to *now*; infinity if that is unknown.

    It is unknown if *then* is 0 (never) or in the future: the clock was ahead when that
    was recorded, by hours or by years, and has been set back.
    """
    return now - then if 0 < then <= now else math.inf


class Node(Struct, frozen=True, kw_only=True):
    """
    One node, as the controller knows it: a row of the ledger.

    Times are seconds since 1970 by the controller's clock; 0 means never. Ask
    `compute_elapsed` how long ago they were.
    """

    name: str
    state: State = State.UNVERIFIED
    since: float = 0.0
    """When it came into this state."""
    reason: str = ""
    """Why, in one sentence that an operator can act on; see `full_reason`."""
    caveat: Caveat = Caveat.NONE
    caveat_why: str = ""
    """What keeps the node from being held, or judged, as its reason calls for."""
    by: str = ""
    """The person who put it there, if a person did."""
    enforced: bool = False
    """Whether the state is acted on: False while the site only observes."""
    checks: tuple[str, ...] = ()
    """The checks that failed: a release needs them to pass."""
    conclusive: bool = False
    """Whether no rerun can clear what failed."""
    bmc_failures: dict[str, str] = {}
    """The checks that failed in a run from outside the node, by its BMC, and why; each until a
    run that sees the same passes it, or a person decides."""
    run: str = ""
    """The id of the run that is the evidence."""
    not_before_ticket: int = 0
    """A run counts only with a later ticket than this one."""
    suite: str = ""
    """The suite that it is to pass."""
    batch: str = ""
    """The nodes that were admitted together, as a host list: once it has passed its suite, it
    is tested with them. Empty: it was admitted alone, or is not being admitted."""
    hold_id: str = ""
    """The id of our hold, which its reason begins with; empty: we do not hold it."""
    hold_confirmed_at: float = 0.0
    """When our hold was seen in place after the scheduler had saved it."""
    foreign: str = ""
    """Why somebody else holds it, if so."""
    last_pass_at: float = 0.0
    """The last full pass."""
    last_run_at: float = 0.0
    """The last run of ours that finished, whatever the verdict."""
    verdict: str = ""
    """The verdict of that run."""
    repeat_offender: bool = False
    """Whether only a named person releases it, whatever it passes."""
    flakes: int = 0
    """How often a rerun cleared a failure."""
    failures: dict[str, tuple[float, ...]] = {}
    """When each check lately failed in runs that the controller ordered, until a person decides."""
    passes: int = 0
    """How many reruns in a row a suspect has passed that needs more than one."""
    first_seen_at: float = 0.0
    """When the scheduler first named it; 0: it has not yet."""
    missing_since: float = 0.0
    """Since when the scheduler's answers have not named it; 0: the last one did."""
    returned_at: tuple[float, ...] = ()
    """When it came back to service after a failure: the last two times."""

    @property
    def full_reason(self) -> str:
        """The reason with what qualifies it, as an operator reads it."""
        judged = self.state in (State.QUARANTINED, State.REPEAT_OFFENDER)
        often = judged and needs_repair(self, self.since) and REPAIR_ADVICE not in self.reason
        reason = f"{self.reason} (it {REPAIR_ADVICE})" if often else self.reason
        return CAVEAT_TEXTS[self.caveat].format(reason=reason, why=self.caveat_why)

    @property
    def shown_state(self) -> str:
        """The state as an operator sees it."""
        return OTHERS_STATE if self.foreign else self.state.value

    @property
    def is_reserved_overdue(self) -> bool:
        """Whether it is reserved only because it is overdue."""
        return self.state is State.VERIFYING and not self.by

    @property
    def awaits_verification(self) -> bool:
        """Whether it is reserved for one verification only, which lets it go unless it fails."""
        return self.is_reserved_overdue or self.caveat is Caveat.VERIFICATION

    @property
    def owed_checks(self) -> tuple[str, ...]:
        """What it failed before somebody else released it, and has not passed since."""
        return self.checks if self.state is State.UNVERIFIED else ()

    @property
    def has_returned(self) -> bool:
        """Whether it came back to service since it came into its state."""
        return bool(self.returned_at) and self.returned_at[-1] >= self.since

    @property
    def desired_hold(self) -> Hold:
        """How it is to be held."""
        return HOLD_BY_STATE[self.state] if self.enforced else Hold.NONE


def add_return(node: Node, now: float) -> Node:
    """Record that *node* is back in service since *now*, after a failure."""
    return replace(node, returned_at=(*node.returned_at, now)[-MAX_RETURNS:])


def is_watched(node: Node, now: float) -> bool:
    """Whether *node* came back to service less than `WATCH_S` ago."""
    return bool(node.returned_at) and compute_elapsed(now, node.returned_at[-1]) < WATCH_S


def needs_repair(node: Node, now: float) -> bool:
    """Whether *node* came back so often lately that a person should repair it."""
    often = len(node.returned_at) >= MAX_RETURNS
    return often and compute_elapsed(now, node.returned_at[-MAX_RETURNS]) < WATCH_S


def is_suspect_between_nodes(node: Node) -> bool:
    """Whether *node* is a suspect for what it did to collectives with other nodes."""
    return node.state is State.SUSPECT and node.suite == FABRIC_SUITE


def is_suspect_by_bmc(node: Node) -> bool:
    """Whether *node* is a suspect in service for nothing but what its BMC showed."""
    suspect = node.state is State.SUSPECT and not node.enforced and bool(node.checks)
    return suspect and node.bmc_failures.keys() >= set(node.checks)


def awaits_batch(node: Node) -> bool:
    """Whether *node* has passed by itself, and is to be tested with its batch."""
    return node.state is State.VERIFYING and node.suite == FABRIC_SUITE


def is_kept_for_fabric(node: Node) -> bool:
    """Whether *node* is reserved for what is between nodes, so that no suite of its own is due."""
    return node.desired_hold is Hold.RESERVATION and node.suite == FABRIC_SUITE


def is_gone(node: Node, now: float) -> bool:
    """Whether the scheduler has not named *node* for more than `GONE_AFTER_S`."""
    return bool(node.missing_since) and now - node.missing_since > GONE_AFTER_S


class Ticket(Struct, frozen=True):
    """
    The order for one verification of a node, by which its run is recognized.

    Numbers rise in the order of issue. They alone decide what came after what: the
    clocks of nodes do not matter.
    """

    number: int
    node: str
    token: str
    """A secret of the job and the controller."""
    purpose: str
    """sweep, confirm, return or admission."""
    suite: str
    made: float
    job: int
    """0: it is not known yet whether the scheduler took it."""
    ended: float
    """0: it is under way."""
    ending: str
    run: str


class NodeChange(Struct, frozen=True, kw_only=True):
    """A node as it is from now on, and its line in the audit log."""

    node: Node
    what: str
    detail: str = ""
    lost: bool = False
    """Whether our hold of it is gone."""
