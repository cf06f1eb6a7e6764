"""
The life of a node, as values and pure rules.

    unverified ─> verifying ─> healthy ─FAIL→ suspect ─confirmed, or hard evidence→
    quarantined ─repair→ verifying ─full pass→ healthy

A state says what is wanted; how a node is held to it (`Hold`) follows from the state
alone, so that a controller that died in between simply goes on. What somebody else
holds (`Node.foreign`) is shown as external, whatever its state, and never touched.
"""

from __future__ import annotations

import math
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace


class State(StrEnum):
    """Where a node is in its life: a closed list, best first."""

    HEALTHY = "healthy"
    UNVERIFIED = "unverified"
    """Nothing is known of it yet, or somebody else let it go."""
    VERIFYING = "verifying"
    """Kept for a verification of ours: new, or repaired."""
    SUSPECT = "suspect"
    """It failed once; a rerun is due."""
    HELD = "held"
    """By a person, through `hpcverify hold`, or until one decides."""
    QUARANTINED = "quarantined"
    LEMON = "lemon"
    """Quarantined too often: only a named person releases it."""


class Hold(StrEnum):
    """What keeps users' jobs off a node."""

    NONE = "none"
    DRAIN = "drain"
    """No job runs there, ours neither."""
    RESERVATION = "reservation"
    """Only our verification runs there."""


HOLDS = {
    State.HEALTHY: Hold.NONE,
    State.UNVERIFIED: Hold.NONE,
    State.VERIFYING: Hold.RESERVATION,
    State.SUSPECT: Hold.RESERVATION,
    State.HELD: Hold.DRAIN,
    State.QUARANTINED: Hold.DRAIN,
    State.LEMON: Hold.DRAIN,
}


WATCHED_S = 7 * 86400.0
"""
For how long a node that came back to service is the first to be verified again.

InfiniteHBD-Trace (github.com/stepfun-ai/InfiniteHBD-Trace, commit 7aacdc8: 400 GPU
servers, 348 days, 579 returns): 22 % of the nodes that came back were out of service
again within a day and 31 % within a week; of all nodes 0.4 % and 2.9 %.
"""
AT_MOST = 2
"""Returns within `WATCHED_S` after which a person should repair the node."""
REPAIR = "came back to service twice within 7 days: have a person repair it"
"""What is said of such a node."""
GONE_S = 3600.0
"""For how long no answer of the scheduler may name a node until it is shown as gone.
A single answer may leave a node out; collected every ten minutes, six have to."""


def elapsed(now: float, then: float) -> float:
    """
    Say how many seconds before *now* it was *then*; infinity if that is not known.

    It is not known of what never was (0), nor of a time in the future: the clock was
    ahead when that was written down, by hours or by years, and has been set back.
    """
    return now - then if 0 < then <= now else math.inf


class Node(Struct, frozen=True, kw_only=True):
    """
    One node, as the controller knows it: a row of the ledger.

    Times are seconds since 1970 by the controller's clock; 0 means never. Ask `elapsed`
    how long ago they were.
    """

    name: str
    state: State = State.UNVERIFIED
    since: float = 0.0
    """When it came into this state."""
    reason: str = ""
    """Why, in one sentence that an operator can act on."""
    by: str = ""
    """The person who put it there, if a person did."""
    enforced: bool = False
    """Whether the state is acted on: False while the site only observes."""
    checks: tuple[str, ...] = ()
    """The checks that failed: a release needs them to pass."""
    hard: bool = False
    """Whether a rerun could not take back what failed."""
    run: str = ""
    """The id of the run that is the evidence."""
    after: int = 0
    """A run counts only with a later ticket than this one."""
    suite: str = ""
    """What a verification under way has to run."""
    hold: str = ""
    """The mark of our hold, which its reason begins with; empty: we hold nothing."""
    stood: float = 0.0
    """When our hold was seen to stand, once the scheduler could not forget it again."""
    foreign: str = ""
    """Why somebody else holds it, if so."""
    passed: float = 0.0
    """The last full pass."""
    finished: float = 0.0
    """The last run of ours that came to its end, whatever the verdict."""
    verdict: str = ""
    """Of that run."""
    lemon: bool = False
    """Whether only a named person lets it go, whatever it passes."""
    flakes: int = 0
    """How often a rerun took back what had failed."""
    met: float = 0.0
    """When the scheduler first named it; 0: before that was kept."""
    missing: float = 0.0
    """Since when the scheduler's answers have not named it; 0: the last one did."""
    returned: tuple[float, ...] = ()
    """When it came back to service after it had failed: the last two times."""

    @property
    def kept_free(self) -> bool:
        """Whether it is kept for its turn alone, and nothing is held against it."""
        return self.state is State.VERIFYING and not self.by

    @property
    def owed(self) -> tuple[str, ...]:
        """What it failed before somebody else put it back, and has not passed since."""
        return self.checks if self.state is State.UNVERIFIED else ()

    @property
    def is_back(self) -> bool:
        """Whether it came back to service since it came into its state."""
        return bool(self.returned) and self.returned[-1] >= self.since

    @property
    def wanted(self) -> Hold:
        """How it is to be held."""
        return HOLDS[self.state] if self.enforced else Hold.NONE


def came_back(node: Node, now: float) -> Node:
    """Note that *node* is back in service since *now*, after it had failed."""
    return replace(node, returned=(*node.returned, now)[-AT_MOST:])


def is_watched(node: Node, now: float) -> bool:
    """Whether *node* came back to service less than `WATCHED_S` ago."""
    return bool(node.returned) and elapsed(now, node.returned[-1]) < WATCHED_S


def needs_repair(node: Node, now: float) -> bool:
    """Whether *node* came back so often lately that a person should repair it."""
    often = len(node.returned) >= AT_MOST
    return often and elapsed(now, node.returned[-AT_MOST]) < WATCHED_S


def is_gone(node: Node, now: float) -> bool:
    """Whether the scheduler has not named *node* for so long that it is gone."""
    return bool(node.missing) and now - node.missing > GONE_S
