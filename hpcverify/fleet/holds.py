"""
How a node is held: the scheduler's state is made what `Node.desired_hold` says.

`settle` looks, does the one thing that is due, and looks again, until nothing is due.
It remembers nothing of its own: a controller that died at any point just runs it
again. A new hold always stands before the old one goes, so that no job slips in
between, and whatever somebody else holds is left alone, reason and all.

A drain is ours if its reason is, word for word, the one that our last drain of that
node gave it, or one that a write of ours may still give it. A person who adds a note
to it, changes it, or drains the node again with a reason that we once used has taken
the node over. A drain that we took back is ours again if it was set when we set it: a
scheduler that is killed forgets what it was told last.

No scheduler has a write with a condition (Slurm's replaces whatever reason there is and
keeps no other), so each write directly follows a read, and what comes between those
two, some 10 ms, is not seen.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from hpcverify.errors import ActionError
from hpcverify.fleet.states import Hold, Node
from hpcverify.fleet.transitions import explain_return, give_up_hold

MAX_WRITTEN_REASON_CHARS = 900
"""Characters of a reason that we write: Slurm keeps 5000, people read one line."""

NO_REASON_SUFFIX = "no reason given"
"""Ends what is told of a hold that has no reason."""

DRAIN = "drain"
"""The act that has a node drained."""
RESUME = "resume"
"""The act that takes a drain of ours back."""

MAX_CLOCK_SKEW_S = 5.0
"""That the scheduler's clock may differ from ours."""
MAX_DRAIN_DELAY_S = 60.0
"""From the intent of a drain until it is surely made."""

_NEXT_WRITE = {
    (Hold.NONE, True, False): RESUME,
    (Hold.NONE, True, True): RESUME,
    (Hold.NONE, False, True): "unreserve",
    (Hold.RESERVATION, False, False): "reserve",
    (Hold.RESERVATION, True, False): "reserve",
    (Hold.RESERVATION, True, True): RESUME,
    (Hold.DRAIN, False, False): DRAIN,
    (Hold.DRAIN, False, True): DRAIN,
    (Hold.DRAIN, True, True): "unreserve",
}
"""What is due by what is wanted, whether our drain stands, and our reservation."""

_HOLD_ID_PATTERN = re.compile(r"hpcverify\[[0-9a-f]{6,}\]")
_SLURM_SUFFIX_PATTERN = re.compile(
    r"(?: : (?:reboot (?:requested|issued|complete|timed out)|Not responding"
    r"|ResumeTimeout reached))+$"
)
"""
What slurmctld appends to the reason of a drained node by itself: 22.05 when it is
rebooted, later versions also when it goes down (``set_node_reason`` in node_mgr.c).
"""
_UNRELIABLE_CHARS_PATTERN = re.compile(r"[^!-~]|[\"'\\]")
"""Characters that a version of Slurm may print otherwise than they were given to it:
blanks, quotes, backslashes, and all beyond ASCII."""


class HoldReading(Struct, frozen=True, kw_only=True):
    """How a node was found to be held."""

    node: str
    hold_id: str = ""
    """The id that its reason begins with: of a drain of ours, of one that says so, or
    of one that is over, for a resume of Slurm 24.11 leaves the reason behind."""
    reason: str = ""
    """Word for word."""
    by: str = ""
    """Who set the reason, where that is known."""
    at: float = 0.0
    """When it was set, in seconds since 1970 by the scheduler's clock; 0: unknown."""
    drained: bool = False
    hook_failed: bool = False
    """The scheduler drained it by itself, since a prolog or an epilog ended badly."""
    unavailable: str = ""
    """Why nobody but the one who put it into this state may touch it: DOWN, MAINT, …"""
    reserved: bool = False
    """Our reservation stands."""


class Intent(Struct, frozen=True):
    """A write to the scheduler, as the log has it."""

    number: int
    act: str
    reason: str
    """What it was to write."""
    reason_before: str
    """The reason that stood there when it was about to be made."""
    drain_after: str | None = None
    """The reason of the drain that stood afterwards, empty if none did; None: nobody
    knows, or the write may still take effect."""
    at: float = 0.0
    """When, in seconds since 1970 by our clock."""


class HoldHistory(Struct, frozen=True):
    """What a hold of ours is recognized by, on one node."""

    hold_ids: tuple[str, ...] = ()
    """The ids that we ever gave its holds, the present one last."""
    standing_reason: str = ""
    """
    The reason of our drain that was last seen to stand, as `_normalize_reason` has it.
    """
    awaited_reasons: frozenset[str] = frozenset()
    """Those of drains that were never seen to stand, and may have been made or yet
    be: their command was killed, or has timed out."""
    lifted_reason: str = ""
    """The reason of our drain that we last took back."""
    lifted_drained_at: float = 0.0
    lifted_at: float = 0.0
    """When we were about to make it, and to take it back."""

    def owns_drain(self, seen: HoldReading) -> bool:
        """Whether the node, as *seen*, is drained by us."""
        if not (seen.drained and seen.hold_id):
            return False
        reason = _normalize_reason(seen.reason)
        return reason in {self.standing_reason, *self.awaited_reasons} or (
            reason == self.lifted_reason and self._is_lifted_drain(seen)
        )

    def _is_lifted_drain(self, seen: HoldReading) -> bool:
        first, last = (
            self.lifted_drained_at - MAX_CLOCK_SKEW_S,
            self.lifted_drained_at + MAX_DRAIN_DELAY_S,
        )
        return first < seen.at < min(last, self.lifted_at - MAX_CLOCK_SKEW_S)

    def has_awaited_drain(self, seen: HoldReading) -> bool:
        """Whether a drain stands on the node, as *seen*, that was awaited."""
        return seen.drained and _normalize_reason(seen.reason) in self.awaited_reasons

    def owns_reservation(self, seen: HoldReading) -> bool:
        """Whether the node, as *seen*, is reserved by us."""
        return seen.reserved and bool(self.hold_ids)


def _normalize_reason(reason: str) -> str:
    """Keep of *reason* what somebody wrote, and every Slurm gives back as it was."""
    return _UNRELIABLE_CHARS_PATTERN.sub("", _SLURM_SUFFIX_PATTERN.sub("", reason))


class HoldBackend(Protocol):
    """
    A scheduler, or what stands for one.

    All writes may be repeated. Every method raises an ActionError if it did not work,
    or if that is not known: the write may have been done, or may yet be.
    """

    def read_holds(self) -> Mapping[str, HoldReading]:
        """Give all nodes."""
        ...

    def read_hold(self, node: str) -> HoldReading:
        """Give one node, as it is now."""
        ...

    def read_start_time(self) -> float:
        """Say when it was last started, if it forgets by that what it was just told."""
        ...

    def drain(self, node: str, reason: str) -> None:
        """Keep all jobs off *node*, ours too; replaces the reason that it has."""
        ...

    def resume(self, node: str) -> None:
        """Take the drain of *node* back."""
        ...

    def restore(self, node: str, reason: str) -> None:
        """Give *node* somebody else's reason back, or a blank one if there was none."""
        ...

    def reserve(self, node: str) -> None:
        """Keep *node* for our own jobs."""
        ...

    def unreserve(self, node: str) -> None:
        """Take our reservation of *node* back, unless a job of ours is still in it."""
        ...


class IntentLog(Protocol):
    """Where each write is written down before it is made, and what came of it."""

    def record_intent(self, node: str, act: str, reason: str, before: str) -> int:
        """Write down what is about to be done, and the reason that stands there now."""
        ...

    def record_outcome(self, intent: int, text: str, drain_after: str | None = None) -> None:
        """Write down what came of it, and which drain stood then: `Intent.drain_after`."""
        ...

    def record_found_drain(self, node: str, drain_reason: str) -> None:
        """Write down which drain of ours was found on *node*; empty: there is none."""
        ...

    def list_intents(self, node: str) -> Sequence[Intent]:
        """List every write to *node* that was ever meant to be made, in order."""
        ...


def parse_hold_id(reason: str) -> str:
    """Give the hold id that *reason* begins with, empty if it has none."""
    found = _HOLD_ID_PATTERN.match(reason)
    return "" if found is None else found[0]


def read_hold_history(node: Node, log: IntentLog) -> HoldHistory:
    """Read in the *log* what our holds of *node* are recognized by."""
    intents = log.list_intents(node.name)
    given = [*(parse_hold_id(each.reason) for each in intents), node.hold_id]
    standing = lifted = ""
    lifted_at = 0.0
    made: dict[str, float] = {}
    awaited: set[str] = set()
    for each in intents:
        drain = _normalize_reason(each.reason) if each.act == DRAIN else ""
        made[drain] = each.at
        for stood in (each.reason_before, each.drain_after):
            if stood is not None and _normalize_reason(stood) in awaited:
                standing = _normalize_reason(stood)
                awaited.remove(standing)
        if each.drain_after is None:
            awaited |= {drain} - {""}
            continue
        stood = _normalize_reason(each.drain_after)
        if each.act == RESUME and standing and not stood:
            lifted, lifted_at = standing, each.at
        # What others write later in the same words is theirs.
        standing = stood if stood in (drain, standing) else ""
    return HoldHistory(
        hold_ids=tuple(filter(None, given)),
        standing_reason=standing,
        awaited_reasons=frozenset(awaited),
        lifted_reason=lifted,
        lifted_drained_at=made.get(lifted, 0.0),
        lifted_at=lifted_at,
    )


def format_reason(hold_id: str, reason: str) -> str:
    """Put *reason* as we write it: after its hold id, on one line, of bounded length."""
    # A node's own words come into it: nothing that steers a terminal.
    plain = "".join(c if c.isprintable() else "?" for c in " ".join(reason.split()))
    return f"{hold_id} {plain}"[:MAX_WRITTEN_REASON_CHARS].rstrip()


def plan_next_write(node: Node, seen: HoldReading, marks: HoldHistory) -> tuple[Node, str]:
    """Say what *seen* makes of *node*, and what `settle` is to do then, if anything."""
    found = apply_reading(node, seen, marks)
    if _must_restore_reason(node, seen, marks):
        return found, "restore"
    act = _choose_next_write(found, seen, marks)
    # That they have left is written down first: see `_must_restore_reason`.
    if not act or (act == DRAIN and node.foreign):
        return found, "note" if marks.has_awaited_drain(seen) else ""
    return found, act


def is_hold_lost(before: Node, after: Node) -> bool:
    """Whether somebody else has lifted or taken over the hold that a node had."""
    return before.desired_hold is not Hold.NONE and bool(before.hold_id) and not after.hold_id


def settle(
    node: Node, backend: HoldBackend, log: IntentLog, seen: HoldReading | None = None
) -> Node:
    """
    Hold *node* as it wants to be held; give it with what was found of its hold.

    *seen* is how it was just found, if it was: before each write it is asked for again.

    A node that somebody else holds comes back with their reason as `Node.foreign`. One
    whose hold somebody else has lifted or taken over is not held again against them:
    it comes back as unverified, with that for a reason.

    Raises:
        ActionError: the scheduler did not answer, in which case nothing was concluded
            from it, or a write did not take.

    """
    hand = _HoldWriter(node.name, backend, log)
    seen = _restore_reason(node, seen or backend.read_hold(node.name), hand)
    just_left = bool(node.foreign)
    tried: set[str] = set()
    while True:
        marks = read_hold_history(node, hand.log)
        if marks.has_awaited_drain(seen):
            log.record_found_drain(node.name, seen.reason)
        found = apply_reading(node, seen, marks)
        if is_hold_lost(node, found):
            log.record_found_drain(node.name, "")
        node = found
        act = _choose_next_write(node, seen, marks)
        if not act or (act == DRAIN and just_left):
            return node
        if act in tried:
            return _accept_or_raise(act, node, seen)
        tried.add(act)
        seen = _perform_write(act, node, seen, hand)


def _accept_or_raise(act: str, node: Node, seen: HoldReading) -> Node:
    """Put up with a reservation that stays until our job in it ends, and no more."""
    if act == "unreserve":
        return node
    raise ActionError(f"{node.name}: {act} did not take: it is {_describe_reading(seen)}")


def take_over_hook_drain(
    node: Node, seen: HoldReading, backend: HoldBackend, log: IntentLog
) -> Node:
    """
    Make the drain of a prolog or epilog that failed ours, as *node*'s reason explains.

    Only what Slurm set itself is taken, and only if it still is as it was *seen*; else
    *node* comes back as it is now found. `settle` goes on from there.

    Raises:
        ActionError: the scheduler did not answer.

    """
    hand = _HoldWriter(node.name, backend, log)
    if seen.drained and seen.hook_failed and not seen.unavailable:
        seen = _perform_write(DRAIN, node, seen, hand)
    else:
        seen = backend.read_hold(node.name)
    return apply_reading(node, seen, read_hold_history(node, hand.log))


def apply_reading(node: Node, seen: HoldReading, marks: HoldHistory) -> Node:
    """Say what *seen* makes of *node*, our holds being recognized by *marks*."""
    if marks.owns_drain(seen):
        return replace(node, hold_id=seen.hold_id, foreign="")
    reserved = marks.owns_reservation(seen)
    foreign = _describe_other_holder(seen, reserved=reserved)
    if reserved:
        return replace(node, hold_id=marks.hold_ids[-1], foreign=foreign)
    if seen.unavailable and not seen.drained:
        return replace(node, foreign=foreign)  # our hold is looked for once that ends
    if node.hold_id and node.desired_hold is not Hold.NONE:
        return give_up_hold(node, foreign)
    if node.foreign and not foreign and node.owed_checks and not node.has_returned:
        return explain_return(replace(node, foreign=""), node.full_reason)
    return replace(node, hold_id="", foreign=foreign)


def _describe_other_holder(seen: HoldReading, *, reserved: bool) -> str:
    if seen.drained or seen.unavailable:
        return seen.reason or f"{seen.unavailable or 'drained'}, {NO_REASON_SUFFIX}"
    if seen.reserved and not reserved:  # of a ledger that is lost, or another one
        return f"reserved in our name, {NO_REASON_SUFFIX}"
    return ""


def _choose_next_write(node: Node, seen: HoldReading, marks: HoldHistory) -> str:
    drain, reserved = marks.owns_drain(seen), marks.owns_reservation(seen)
    if seen.unavailable:
        return ""
    if seen.drained and not drain:
        return "unreserve" if reserved and node.desired_hold is Hold.NONE else ""
    if seen.reserved and not reserved:
        return ""
    # Slurm keeps a reason that is there when it drains the node by itself next time,
    # and that drain would pass for ours.
    left_behind = not seen.drained and seen.hold_id in marks.hold_ids
    otherwise = "wipe" if left_behind else ""
    return _NEXT_WRITE.get((node.desired_hold, drain, reserved), otherwise)


def _must_restore_reason(node: Node, seen: HoldReading, marks: HoldHistory) -> bool:
    """
    Whether a late write of ours has replaced the reason of somebody else's drain.

    A command that timed out may yet be done, when somebody else has drained the node
    since. That we had read their reason and now find ours tells, for `settle` drains
    nothing in the turn in which it finds that they have left.
    """
    theirs = bool(node.foreign) and not node.foreign.endswith(NO_REASON_SUFFIX)
    return theirs and marks.owns_drain(seen)


def _restore_reason(node: Node, seen: HoldReading, hand: _HoldWriter) -> HoldReading:
    """Give a drain back whose reason a late write of ours has replaced."""
    if not _must_restore_reason(node, seen, read_hold_history(node, hand.log)):
        return seen
    give_back = partial(hand.backend.restore, hand.node, node.foreign)
    return hand.perform("restore", f"theirs: {node.foreign}", seen, give_back)


def _perform_write(act: str, node: Node, seen: HoldReading, hand: _HoldWriter) -> HoldReading:
    backend, name = hand.backend, node.name
    said = f"{node.by}: {node.full_reason}" if node.by else node.full_reason
    reason = format_reason(node.hold_id or make_hold_id(), said)
    writes: dict[str, Callable[[], None]] = {
        DRAIN: partial(backend.drain, name, reason),
        RESUME: partial(backend.resume, name),
        "reserve": partial(backend.reserve, name),
        "unreserve": partial(backend.unreserve, name),
        "wipe": partial(backend.restore, name, " "),
    }
    return hand.perform(act, reason if act in (DRAIN, "reserve") else "", seen, writes[act])


@dataclass(frozen=True)
class _HoldWriter:
    """Makes writes to one node, each between two reads and two lines in the log."""

    node: str
    backend: HoldBackend
    log: IntentLog

    def perform(
        self, act: str, reason: str, seen: HoldReading, write: Callable[[], None]
    ) -> HoldReading:
        """Call *write* if the node still is as it was *seen*; say how it is then."""
        intent = self.log.record_intent(self.node, act, reason, seen.reason)
        now = self.backend.read_hold(self.node)
        if now != seen:
            told = f"not done, for it now is {_describe_reading(now)}"
            self.log.record_outcome(intent, told, _get_drain_reason(now))
            return now
        write()
        now = self.backend.read_hold(self.node)
        # A drain that does not stand yet may still come: commands can be late.
        late = act == DRAIN and _normalize_reason(reason) != _normalize_reason(
            _get_drain_reason(now)
        )
        self.log.record_outcome(
            intent, f"it is {_describe_reading(now)}", None if late else _get_drain_reason(now)
        )
        return now


def _get_drain_reason(seen: HoldReading) -> str:
    return seen.reason if seen.drained else ""


def make_hold_id() -> str:
    """Make the id of a new hold of ours."""
    return f"hpcverify[{secrets.token_hex(3)}]"


def _describe_reading(seen: HoldReading) -> str:
    held = ["reserved"] if seen.reserved else []
    held += ["drained"] if seen.drained else []
    held += [seen.unavailable] if seen.unavailable else []
    told = " and ".join(held) or "free"
    return f"{told} ({seen.reason})" if seen.reason else told
