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

    @property
    def kept_free(self) -> bool:
        """Whether it is kept for its turn alone, and nothing is held against it."""
        return self.state is State.VERIFYING and not self.by

    @property
    def wanted(self) -> Hold:
        """How it is to be held."""
        return HOLDS[self.state] if self.enforced else Hold.NONE
