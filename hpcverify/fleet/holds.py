"""
How a node is held: makes the scheduler's state what `Node.desired_hold` says.

`apply_hold` reads, makes the one write that is due, and reads again, until none is due. It
keeps no state of its own: after a crash it simply runs again. A new hold is always in
place before the old one goes, so that no job slips in between. What somebody else
holds is left alone, reason included.

A drain is ours if its reason is, word for word, that of our last drain of the node, or
one that a pending write of ours may still set. A person who adds a note to it, changes
it, or drains the node again with an old reason of ours has taken the node over. A drain
that we removed is ours again if it dates from when we set it: a scheduler that is
killed forgets the last changes.

No scheduler has a conditional write (Slurm's replaces whatever reason there is and
keeps no other). So each write directly follows a read; a change in between, within some
10 ms, goes unseen.
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
from hpcverify.summary.verdict import shorten

MAX_WRITTEN_REASON_CHARS = 900
"""Characters of a reason that we write: Slurm keeps 5000, people read one line."""

NO_REASON_SUFFIX = "no reason given"
"""Ends the description of a hold that has no reason."""

DRAIN, RESUME = "drain", "resume"

PROLOG_ERROR, EPILOG_ERROR = "Prolog error", "Epilog error"
"""Slurm's own reasons for a node whose prolog or epilog failed, word for word."""

MAX_CLOCK_SKEW_S = 5.0
"""How far the scheduler's clock may be off ours."""
MAX_DRAIN_DELAY_S = 60.0
"""Seconds after which a drain that was intended is surely made."""

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
"""The write that is due, by (hold wanted, whether drained by us, reserved by us)."""

_HOLD_ID_PATTERN = re.compile(r"hpcverify\[[0-9a-f]{6,}\]")
_SLURM_SUFFIX_PATTERN = re.compile(
    r"(?: : (?:reboot (?:requested|issued|complete|timed out)|Not responding"
    r"|ResumeTimeout reached))+$"
)
"""
What slurmctld itself appends to the reason of a drained node: 22.05 when it reboots,
later versions also when it goes down (``set_node_reason`` in node_mgr.c).
"""
_UNRELIABLE_CHARS_PATTERN = re.compile(r"[^!-~]|[\"'\\]")
"""Characters that some version of Slurm changes: blanks, quotes, backslashes, and all
beyond ASCII."""


class HoldReading(Struct, frozen=True, kw_only=True):
    """How a node was found to be held."""

    node: str
    hold_id: str = ""
    """The id that its reason begins with: of our drain, of a copy of its reason, or of
    one that is over, since a resume in Slurm 24.11 leaves the reason behind."""
    reason: str = ""
    """Word for word."""
    by: str = ""
    """Who set the reason, if known."""
    at: float = 0.0
    """When it was set, in seconds since 1970 by the scheduler's clock; 0: unknown."""
    drained: bool = False
    hook_failed: bool = False
    """Whether the scheduler drained it because a prolog or an epilog failed."""
    unavailable: str = ""
    """Why only whoever put it into this state may touch it: DOWN, MAINT, …"""
    unregistered: bool = False
    """Whether the scheduler has restarted and not heard of it yet: nobody put it into that state,
    and it says nothing of a hold. It is unavailable, too."""
    reserved: bool = False
    """Whether our reservation of it exists."""


class Intent(Struct, frozen=True):
    """A write to the scheduler, as the log has it."""

    number: int
    act: str
    reason: str
    """The reason to be written."""
    reason_before: str
    """The node's reason just before the write."""
    drain_after: str | None = None
    """The reason of the drain afterwards, empty if the node was not drained; None:
    unknown, or the write may still take effect."""
    at: float = 0.0
    """When, in seconds since 1970 by our clock."""


class HoldHistory(Struct, frozen=True):
    """What identifies our holds of one node; reasons as `_normalize_reason` has them."""

    hold_ids: tuple[str, ...] = ()
    """Every id that we gave its holds, the current one last."""
    drain_reason: str = ""
    """That of our drain that was last seen in place."""
    awaited_reasons: frozenset[str] = frozenset()
    """Reasons of drains never seen in place that may still appear: their command was
    killed or timed out."""
    lifted_reason: str = ""
    """The reason of our drain that we last removed."""
    lifted_drained_at: float = 0.0
    lifted_at: float = 0.0
    """When we were about to set that drain, and to remove it."""

    def owns_drain(self, seen: HoldReading) -> bool:
        """Whether the node, as *seen*, is drained by us."""
        if not (seen.drained and seen.hold_id):
            return False
        reason = _normalize_reason(seen.reason)
        if reason in {self.drain_reason, *self.awaited_reasons}:
            return True
        first = self.lifted_drained_at - MAX_CLOCK_SKEW_S
        last = self.lifted_drained_at + MAX_DRAIN_DELAY_S
        lifted = first < seen.at < min(last, self.lifted_at - MAX_CLOCK_SKEW_S)
        return reason == self.lifted_reason and lifted

    def has_awaited_drain(self, seen: HoldReading) -> bool:
        """Whether the node, as *seen*, has a drain that was awaited."""
        return seen.drained and _normalize_reason(seen.reason) in self.awaited_reasons

    def owns_reservation(self, seen: HoldReading) -> bool:
        """Whether the node, as *seen*, is reserved by us."""
        return seen.reserved and bool(self.hold_ids)


def _normalize_reason(reason: str) -> str:
    return _UNRELIABLE_CHARS_PATTERN.sub("", _SLURM_SUFFIX_PATTERN.sub("", reason))


class HoldBackend(Protocol):
    """
    A scheduler, or a site's script in place of one.

    All writes may be repeated. Every method raises an ActionError if it failed, or if
    its outcome is unknown: the write may have been made, or may still be made.
    """

    def read_holds(self) -> Mapping[str, HoldReading]:
        """Read how all nodes are held, by name."""
        ...

    def read_hold(self, node: str) -> HoldReading:
        """Read how one node is held now."""
        ...

    def read_start_time(self) -> float:
        """Say when it last started, in seconds since 1970; 0: it forgets nothing then."""
        ...

    def drain(self, node: str, reason: str) -> None:
        """Keep all jobs off *node*, ours too; replaces its reason."""
        ...

    def resume(self, node: str) -> None:
        """Remove the drain of *node*."""
        ...

    def restore(self, node: str, reason: str) -> None:
        """Set somebody else's reason of *node* again, or a blank one if there was none."""
        ...

    def reserve(self, node: str) -> None:
        """Keep *node* for our own jobs."""
        ...

    def unreserve(self, node: str) -> None:
        """Remove our reservation of *node*, unless a job of ours is still in it."""
        ...


class IntentLog(Protocol):
    """Where each write is recorded before it is made, and its outcome afterwards."""

    def record_intent(self, node: str, act: str, reason: str, before: str) -> int:
        """Record what is about to be done, and the node's reason *before* it."""
        ...

    def record_outcome(self, intent: int, text: str, drain_after: str | None = None) -> None:
        """Record the outcome of *intent*; see `Intent.drain_after`."""
        ...

    def record_found_drain(self, node: str, drain_reason: str) -> None:
        """Record which drain of ours was found on *node*; empty: none."""
        ...

    def list_intents(self, node: str) -> Sequence[Intent]:
        """List every write to *node* that was ever intended, in order."""
        ...


def parse_hold_id(reason: str) -> str:
    """Return the hold id that *reason* begins with, empty if it has none."""
    match = _HOLD_ID_PATTERN.match(reason)
    return "" if match is None else match[0]


def read_hold_history(node: Node, log: IntentLog) -> HoldHistory:
    """Read in the *log* what identifies our holds of *node*."""
    intents = log.list_intents(node.name)
    hold_ids = [*(parse_hold_id(intent.reason) for intent in intents), node.hold_id]
    drain_in_place = lifted = ""
    lifted_at = 0.0
    made: dict[str, float] = {}
    awaited: set[str] = set()
    for intent in intents:
        drain = _normalize_reason(intent.reason) if intent.act == DRAIN else ""
        made[drain] = intent.at
        for stood in (intent.reason_before, intent.drain_after):
            if stood is not None and _normalize_reason(stood) in awaited:
                drain_in_place = _normalize_reason(stood)
                awaited.remove(drain_in_place)
        if intent.drain_after is None:
            awaited |= {drain} - {""}
            continue
        stood = _normalize_reason(intent.drain_after)
        if intent.act == RESUME and drain_in_place and not stood:
            lifted, lifted_at = drain_in_place, intent.at
        # If others write the same words later, that drain is theirs.
        drain_in_place = stood if stood in (drain, drain_in_place) else ""
    return HoldHistory(
        hold_ids=tuple(filter(None, hold_ids)),
        drain_reason=drain_in_place,
        awaited_reasons=frozenset(awaited),
        lifted_reason=lifted,
        lifted_drained_at=made.get(lifted, 0.0),
        lifted_at=lifted_at,
    )


def format_reason(hold_id: str, reason: str) -> str:
    """Format *reason* as we write it: after its hold id, one line, of bounded length."""
    # It contains text from a node: no control characters for the terminal.
    plain = "".join(c if c.isprintable() else "?" for c in " ".join(reason.split()))
    return shorten(f"{hold_id} {plain}", MAX_WRITTEN_REASON_CHARS)


def plan_next_write(node: Node, seen: HoldReading, marks: HoldHistory) -> tuple[Node, str]:
    """Update *node* from *seen*, and name what `apply_hold` is to do then, if anything."""
    current = apply_reading(node, seen, marks)
    if _must_restore_reason(node, seen, marks):
        return current, "restore"
    act = _choose_next_write(current, seen, marks)
    # First record that they have left: see `_must_restore_reason`.
    if not act or (act == DRAIN and node.foreign):
        return current, "note" if marks.has_awaited_drain(seen) else ""
    return current, act


def is_hold_lost(before: Node, after: Node) -> bool:
    """Whether somebody else has lifted or taken over the hold that a node had."""
    return before.desired_hold is not Hold.NONE and bool(before.hold_id) and not after.hold_id


def apply_hold(
    node: Node, backend: HoldBackend, log: IntentLog, seen: HoldReading | None = None
) -> Node:
    """
    Hold *node* as `Node.desired_hold` says; return it with the hold that it has then.

    *seen* is a fresh reading of it, if there is one; before each write it is read again.

    A node that somebody else holds comes back with their reason as `Node.foreign`. If
    somebody else has lifted or taken over our hold, we do not hold it again: it comes
    back as unverified, and its reason says so.

    Raises:
        ActionError: the scheduler did not answer, and nothing was concluded; or a write
            had no effect.

    """
    hand = _HoldWriter(node.name, backend, log)
    seen = seen or backend.read_hold(node.name)
    if _must_restore_reason(node, seen, read_hold_history(node, log)):
        restore = partial(backend.restore, node.name, node.foreign)
        seen = hand.perform("restore", f"theirs: {node.foreign}", seen, restore)
    just_left = bool(node.foreign)
    tried: set[str] = set()
    while True:
        marks = read_hold_history(node, hand.log)
        if marks.has_awaited_drain(seen):
            log.record_found_drain(node.name, seen.reason)
        current = apply_reading(node, seen, marks)
        if is_hold_lost(node, current):
            log.record_found_drain(node.name, "")
        node = current
        act = _choose_next_write(node, seen, marks)
        if not act or (act == DRAIN and just_left):
            return node
        if act == "unreserve" and act in tried:  # it stays until our job in it ends
            return node
        if act in tried:
            raise ActionError(f"{node.name}: {act} had no effect: it is {_describe_reading(seen)}")
        tried.add(act)
        seen = _perform_write(act, node, seen, hand)


def take_over_hook_drain(
    node: Node, seen: HoldReading, backend: HoldBackend, log: IntentLog
) -> Node:
    """
    Take over the drain of a failed prolog or epilog, giving it *node*'s reason.

    Only if Slurm itself set it and it is still as it was *seen*; otherwise *node* comes
    back as it is now. `apply_hold` continues from there.

    Raises:
        ActionError: the scheduler did not answer.

    """
    hand = _HoldWriter(node.name, backend, log)
    if seen.drained and seen.hook_failed and not seen.unavailable:
        seen = _perform_write(DRAIN, node, seen, hand)
    else:
        seen = backend.read_hold(node.name)
    return apply_reading(node, seen, read_hold_history(node, hand.log))


def undo_hook_drain(
    node: Node, seen: HoldReading, backend: HoldBackend, log: IntentLog
) -> HoldReading:
    """
    Remove the drain of a failed prolog, and return how *node* is held then.

    Only if it is still as it was *seen*.

    Raises:
        ActionError: the scheduler did not answer.

    """
    return _HoldWriter(node.name, backend, log).perform(
        RESUME, "", seen, partial(backend.resume, node.name)
    )


def apply_reading(node: Node, seen: HoldReading, marks: HoldHistory) -> Node:
    """Update *node* from *seen*; *marks* identify our holds."""
    if marks.owns_drain(seen):
        return replace(node, hold_id=seen.hold_id, foreign="")
    reserved = marks.owns_reservation(seen)
    is_unheard = seen.unregistered and not seen.drained
    foreign = node.foreign if is_unheard else _describe_other_holder(seen, reserved=reserved)
    if reserved:
        return replace(node, hold_id=marks.hold_ids[-1], foreign=foreign)
    if seen.unavailable and not seen.drained:
        return replace(node, foreign=foreign)  # look for our hold once that ends
    if node.hold_id and node.desired_hold is not Hold.NONE:
        return give_up_hold(node, foreign)
    if node.foreign and not foreign and node.owed_checks and not node.has_returned:
        return explain_return(replace(node, foreign=""), node.full_reason)
    return replace(node, hold_id="", foreign=foreign)


def _describe_other_holder(seen: HoldReading, *, reserved: bool) -> str:
    if seen.drained or seen.unavailable:
        return seen.reason or f"{seen.unavailable or 'drained'}, {NO_REASON_SUFFIX}"
    if seen.reserved and not reserved:  # by another ledger, or one that is lost
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
    # Slurm keeps an old reason when it next drains the node itself, and that drain
    # would pass for ours.
    left_behind = not seen.drained and seen.hold_id in marks.hold_ids
    otherwise = "wipe" if left_behind else ""
    return _NEXT_WRITE.get((node.desired_hold, drain, reserved), otherwise)


def _must_restore_reason(node: Node, seen: HoldReading, marks: HoldHistory) -> bool:
    """
    Whether a late write of ours has replaced the reason of somebody else's drain.

    A command that timed out may take effect after somebody else has drained the node.
    We know by having read their reason before and ours now: `apply_hold` drains nothing in
    the cycle in which it finds that they have left.
    """
    theirs = bool(node.foreign) and not node.foreign.endswith(NO_REASON_SUFFIX)
    return theirs and marks.owns_drain(seen)


def _perform_write(act: str, node: Node, seen: HoldReading, hand: _HoldWriter) -> HoldReading:
    backend, name = hand.backend, node.name
    text = f"{node.by}: {node.full_reason}" if node.by else node.full_reason
    reason = format_reason(node.hold_id or make_hold_id(), text)
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
        """Call *write* if the node is still as it was *seen*; read and return it then."""
        intent = self.log.record_intent(self.node, act, reason, seen.reason)
        now = self.backend.read_hold(self.node)
        if now != seen:
            text = f"not done, since it is now {_describe_reading(now)}"
            self.log.record_outcome(intent, text, _get_drain_reason(now))
            return now
        write()
        now = self.backend.read_hold(self.node)
        drain = _get_drain_reason(now)
        # A drain that is not there yet may still come: commands can be late.
        late = act == DRAIN and _normalize_reason(reason) != _normalize_reason(drain)
        text = f"it is {_describe_reading(now)}"
        self.log.record_outcome(intent, text, None if late else drain)
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
    text = " and ".join(held) or "free"
    return f"{text} ({seen.reason})" if seen.reason else text
