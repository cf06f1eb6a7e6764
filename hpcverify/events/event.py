"""
An event: one change in a fleet, as one line of JSON.

The controller writes an event in the transaction of the change, with a number that only
grows. Everything that a site collects is drawn from it: ``events.jsonl``, journald, OCSF
and CloudEvents. Fields are added, never renamed; `SCHEMA` counts what breaks a reader.
"""

from __future__ import annotations

import hashlib
from datetime import datetime
from enum import StrEnum
from typing import Literal

from msgspec import Struct

from hpcverify.model import Remedy, Source, Verdict

SCHEMA = 1
"""The version of the format."""


class EventKind(StrEnum):
    """What happened; the word before the dot is the subject."""

    NODE_CHANGED = "node.changed"
    HOLD_CHANGED = "hold.changed"
    FINDING_OPENED = "finding.opened"
    FINDING_CHANGED = "finding.changed"
    FINDING_CLOSED = "finding.closed"
    RUN_FINISHED = "run.finished"
    VERIFICATION_ENDED = "verification.ended"
    COMMAND_RUN = "command.run"
    CONFIGURATION_LOADED = "configuration.loaded"
    SUPPRESSION_BEGUN = "suppression.begun"
    SUPPRESSION_USED = "suppression.used"
    SUPPRESSION_ENDED = "suppression.ended"
    DOCUMENT_REFUSED = "document.refused"
    CLAIM_REFUSED = "claim.refused"
    BREAKER_TRIPPED = "breaker.tripped"
    BREAKER_RESET = "breaker.reset"
    CHECK_DOUBTED = "check.doubted"
    CHECK_TRUSTED = "check.trusted"
    ROLLOUT_BEGUN = "rollout.begun"
    ROLLOUT_ENDED = "rollout.ended"
    OUTLIER_OPENED = "outlier.opened"
    OUTLIER_CLOSED = "outlier.closed"
    LINK_FAILED = "link.failed"
    LINK_RECOVERED = "link.recovered"
    NIGHT_JUDGED = "night.judged"
    MALFUNCTION_BEGUN = "malfunction.begun"
    MALFUNCTION_ENDED = "malfunction.ended"
    HEARTBEAT = "controller.heartbeat"


class Severity(StrEnum):
    """How grave an event is. What is only observed is at most low."""

    INFORMATIONAL = "informational"
    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"
    CRITICAL = "critical"


class Actor(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Who caused an event."""

    name: str
    """The login of a person, the one behind sudo; or "hpcverify"."""
    host: str
    """Where the program ran."""
    is_person: bool = False


class FindingState(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A fault of a part, the same *uid* from its opening to its closing."""

    uid: str
    """It follows from node, part, check and code, not from the run."""
    part: str
    """What survives a reseat: a UUID, a serial number, an address; or "node"."""
    label: str
    """The name of the part for people."""
    check: str
    code: str
    """The code of the finding, or the metric that is outside its limit."""
    verdict: Verdict
    remedy: Remedy
    enforced: bool = False
    """Whether the site acts on it."""
    source: Source = Source.RUN
    """Who found it."""


def make_finding_uid(node: str, part: str, check: str, code: str) -> str:
    """Make the uid of a finding: the same for each run that has it."""
    return hashlib.sha256(f"{node}\0{part}\0{check}\0{code}".encode()).hexdigest()[:32]


class RunOutcome(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A run of a suite on a node."""

    id: str
    suite: str
    verdict: Verdict
    coverage: str = ""
    """What was verified, in one line."""


class StateChange(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What something was, and what it is now."""

    subject: str
    """The name of what changed: a check, a file, a link; empty for the node itself."""
    before: str
    """Empty if it was not there."""
    after: str
    """Empty if it is gone."""
    enforced: bool = False
    """Whether the new state of a node is acted on."""
    checks: tuple[str, ...] = ()
    """The checks that the node failed and has not passed since."""
    run: str = ""
    """The id of the run that is the evidence."""


class Command(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A command that changes something."""

    name: str
    """As ``hold`` or ``fleet breaker reset``."""
    outcome: Literal["done", "refused", "failed"]
    exit_status: int


class Event(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One change. The free text is last."""

    schema: int
    number: int
    """Only grows, without a gap."""
    id: str
    """
    The identity of the ledger, the number, and random digits: unique among all clusters of a
    site, also after a ledger was restored from a backup.
    """
    time: datetime
    kind: EventKind
    severity: Severity
    actor: Actor
    previous: str
    """The SHA-256 of the line before, without its newline, in hexadecimal digits."""
    node: str = ""
    """Empty for what is about the fleet."""
    change: StateChange | None = None
    finding: FindingState | None = None
    run: RunOutcome | None = None
    command: Command | None = None
    what: str = ""
    """What was done, in a few words, such as "quarantined", "drain" or "release by force"."""
    oldest: int = 0
    """In a heartbeat: the number of the oldest event that the ledger keeps."""
    detail_digest: str = ""
    """
    The HMAC-SHA-256, by a key in the ledger, of the detail that only the ledger has, in
    hexadecimal digits; empty if there is none.
    """
    text: str = ""
    """For people; nothing needs to be read out of it."""


def summarize_event(event: Event) -> str:
    """Give the text of *event*, or what happened where in a few words."""
    words = [event.kind, event.node, event.what]
    if event.change:
        words += [event.change.subject, f"({event.change.before} -> {event.change.after})"]
    return event.text or " ".join(word for word in words if word)
