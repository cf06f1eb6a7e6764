"""
How a node is held: what stands at the scheduler is made what `Node.wanted` says.

`settle` looks, does the one thing that is due, and looks again, until nothing is due.
It remembers nothing of its own: a controller that died at any point just runs it
again. A new hold always stands before the old one goes, so that no job slips in
between, and whatever somebody else holds is left alone, reason and all.

A drain is ours if its reason begins with a mark that a write of ours was to put on
that very node. No scheduler has a write with a condition (Slurm's replaces whatever
reason there is and keeps no other), so each write directly follows a read, and what
comes between those two, some 10 ms, is not seen.
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
from hpcverify.quarantine.life import Hold, Node, State

REASON_MAX = 900
"""Characters of a reason that we write: Slurm keeps 5000, people read one line."""

UNSAID = "and nobody said why"
"""Ends what is told of a hold that has no reason."""

_NEXT = {
    (Hold.NONE, True, False): "resume",
    (Hold.NONE, True, True): "resume",
    (Hold.NONE, False, True): "unreserve",
    (Hold.RESERVATION, False, False): "reserve",
    (Hold.RESERVATION, True, False): "reserve",
    (Hold.RESERVATION, True, True): "resume",
    (Hold.DRAIN, False, False): "drain",
    (Hold.DRAIN, False, True): "drain",
    (Hold.DRAIN, True, True): "unreserve",
}
"""What is due by what is wanted, whether our drain stands, and our reservation."""

_MARK = re.compile(r"hpcverify\[[0-9a-f]{6,}\]")


class Seen(Struct, frozen=True, kw_only=True):
    """How a node was found to be held."""

    node: str
    ours: str = ""
    """The mark that its reason begins with: of a drain of ours, of one that says so, or
    of one that is over, for a resume of Slurm 24.11 leaves the reason behind."""
    reason: str = ""
    """Word for word."""
    by: str = ""
    """Who set the reason, where that is known."""
    drained: bool = False
    hook_failed: bool = False
    """The scheduler drained it by itself, since a prolog or an epilog ended badly."""
    unavailable: str = ""
    """Why nobody but the one who put it into this state may touch it: DOWN, MAINT, …"""
    reserved: bool = False
    """Our reservation stands."""


class Keeper(Protocol):
    """
    A scheduler, or what stands for one.

    All writes may be repeated. Every method raises an ActionError if it did not work,
    or if that is not known: the write may have been done, or may yet be.
    """

    def look(self) -> Mapping[str, Seen]:
        """Give all nodes."""
        ...

    def see(self, node: str) -> Seen:
        """Give one node, as it is now."""
        ...

    def began(self) -> float:
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


class Book(Protocol):
    """Where each write is written down before it is made, and what came of it."""

    def intend(self, node: str, act: str, reason: str, before: str) -> int:
        """Write down what is about to be done, and the reason that stands there now."""
        ...

    def outcome(self, intent: int, text: str) -> None:
        """Write down what came of it; without, it may have been done, or not."""
        ...

    def reasons(self, node: str) -> Sequence[str]:
        """List every reason that was ever meant to be written to *node*, in order."""
        ...


def mark_of(reason: str) -> str:
    """Give the mark that *reason* begins with, empty if it has none."""
    found = _MARK.match(reason)
    return "" if found is None else found[0]


def marks_of(node: Node, book: Book) -> Sequence[str]:
    """List the marks that we ever gave the holds of *node*, the present one last."""
    given = [*map(mark_of, book.reasons(node.name)), node.hold]
    return [mark for mark in given if mark]


def written(mark: str, reason: str) -> str:
    """Put *reason* as we write it: after its mark, on one line, of bounded length."""
    # A node's own words come into it: nothing that steers a terminal.
    plain = "".join(c if c.isprintable() else "?" for c in " ".join(reason.split()))
    return f"{mark} {plain}"[:REASON_MAX].rstrip()


def settle(node: Node, keeper: Keeper, book: Book) -> Node:
    """
    Hold *node* as it wants to be held; give it with what was found of its hold.

    A node that somebody else holds comes back with their reason as `Node.foreign`. One
    whose hold somebody else has lifted or taken over is not held again against them:
    it comes back as unverified, with that for a reason.

    Raises:
        ActionError: the scheduler did not answer, in which case nothing was concluded
            from it, or a write did not take.

    """
    hand = _Hand(node.name, keeper, book)
    seen = _given_back(node, keeper.see(node.name), hand)
    just_left = bool(node.foreign)
    tried: set[str] = set()
    while True:
        marks = hand.marks(node)
        node = as_found(node, seen, marks)
        act = _due(node, seen, marks)
        # That they have left is written down first: see `_given_back`.
        if not act or (act == "drain" and just_left):
            return node
        if act in tried:
            return _undone(act, node, seen)
        tried.add(act)
        seen = _taken(act, node, seen, hand)


def _undone(act: str, node: Node, seen: Seen) -> Node:
    """Put up with a reservation that stays until our job in it ends, and no more."""
    if act == "unreserve":
        return node
    raise ActionError(f"{node.name}: {act} did not take: it is {_words(seen)}")


def adopt(node: Node, seen: Seen, keeper: Keeper, book: Book) -> Node:
    """
    Make the drain of a prolog or epilog that failed ours, as *node*'s reason explains.

    Only what Slurm set itself is taken, and only if it still is as it was *seen*; else
    *node* comes back as it is now found. `settle` goes on from there.

    Raises:
        ActionError: the scheduler did not answer.

    """
    hand = _Hand(node.name, keeper, book)
    if seen.drained and seen.hook_failed and not seen.unavailable:
        seen = _taken("drain", node, seen, hand)
    else:
        seen = keeper.see(node.name)
    return as_found(node, seen, hand.marks(node))


def as_found(node: Node, seen: Seen, marks: Sequence[str]) -> Node:
    """Say what *seen* makes of *node*, *marks* being those that we gave its holds."""
    drain, reserved = _ours(seen, marks)
    if drain:
        return replace(node, hold=seen.ours, foreign="")
    foreign = _theirs(seen, reserved=reserved)
    if reserved:
        return replace(node, hold=marks[-1], foreign=foreign)
    if seen.unavailable and not seen.drained:
        return replace(node, foreign=foreign)  # our hold is looked for once that ends
    if node.hold and node.wanted is not Hold.NONE:
        return _lost(node, foreign)
    return replace(node, hold="", foreign=foreign)


def _ours(seen: Seen, marks: Sequence[str]) -> tuple[bool, bool]:
    """Say whether the drain and whether the reservation of a node are ours."""
    return seen.drained and seen.ours in marks, seen.reserved and bool(marks)


def _theirs(seen: Seen, *, reserved: bool) -> str:
    """Say why somebody else holds a node, empty if nobody does."""
    if seen.drained or seen.unavailable:
        return seen.reason or f"{seen.unavailable or 'drained'}, {UNSAID}"
    if seen.reserved and not reserved:  # of a ledger that is lost, or another one
        return f"reserved in our name, {UNSAID}"
    return ""


def _lost(node: Node, foreign: str) -> Node:
    """Make *node* one that somebody else has taken out of our hands."""
    taken = f"somebody else took it over ({foreign})"
    told = taken if foreign else "somebody else let it go"
    return replace(
        node,
        state=State.UNVERIFIED,
        reason=f"{told}; it was {node.state}: {node.reason}",
        by="",
        enforced=False,
        hold="",
        foreign=foreign,
    )


def _due(node: Node, seen: Seen, marks: Sequence[str]) -> str:
    """Say which write comes next, if any."""
    drain, reserved = _ours(seen, marks)
    if seen.unavailable:
        return ""
    if seen.drained and not drain:
        return "unreserve" if reserved and node.wanted is Hold.NONE else ""
    if seen.reserved and not reserved:
        return ""
    # Slurm keeps a reason that is there when it drains the node by itself next time,
    # and that drain would pass for ours.
    left_behind = not seen.drained and seen.ours in marks
    return _NEXT.get((node.wanted, drain, reserved), "wipe" * left_behind)


def _given_back(node: Node, seen: Seen, hand: _Hand) -> Seen:
    """
    Give a drain back whose reason a late write of ours has replaced.

    A command that timed out may yet be done, when somebody else has drained the node
    since. That we had read their reason and now find ours tells, for `settle` drains
    nothing in the turn in which it finds that they have left.
    """
    drain, _ = _ours(seen, hand.marks(node))
    reason = node.foreign
    if not drain or not reason or reason.endswith(UNSAID):
        return seen
    give_back = partial(hand.keeper.restore, hand.node, reason)
    return hand.do("restore", f"theirs: {reason}", seen, give_back)


def _taken(act: str, node: Node, seen: Seen, hand: _Hand) -> Seen:
    """Take the write *act* to *node* that is due since it was *seen*."""
    keeper, name = hand.keeper, node.name
    said = f"{node.by}: {node.reason}" if node.by else node.reason
    reason = written(node.hold or new_mark(), said)
    match act:
        case "drain":
            return hand.do(act, reason, seen, partial(keeper.drain, name, reason))
        case "reserve":
            return hand.do(act, reason, seen, partial(keeper.reserve, name))
        case "resume":
            return hand.do(act, "", seen, partial(keeper.resume, name))
        case "wipe":
            return hand.do(act, "", seen, partial(keeper.restore, name, " "))
        case _:
            return hand.do(act, "", seen, partial(keeper.unreserve, name))


@dataclass(frozen=True)
class _Hand:
    """Makes writes to one node, each between two reads and two lines in the book."""

    node: str
    keeper: Keeper
    book: Book

    def marks(self, node: Node) -> Sequence[str]:
        return marks_of(node, self.book)

    def do(self, act: str, reason: str, seen: Seen, write: Callable[[], None]) -> Seen:
        """Call *write* if the node still is as it was *seen*; say how it is then."""
        intent = self.book.intend(self.node, act, reason, seen.reason)
        now = self.keeper.see(self.node)
        if now != seen:
            self.book.outcome(intent, f"not done, for it now is {_words(now)}")
            return now
        write()
        now = self.keeper.see(self.node)
        self.book.outcome(intent, f"it is {_words(now)}")
        return now


def new_mark() -> str:
    """Make the mark of a new hold of ours."""
    return f"hpcverify[{secrets.token_hex(3)}]"


def _words(seen: Seen) -> str:
    """Describe how a node is held."""
    held = "reserved" * seen.reserved, "drained" * seen.drained, seen.unavailable
    told = " and ".join(filter(None, held)) or "free"
    return f"{told} ({seen.reason})" if seen.reason else told
