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
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from hpcverify.errors import ActionError
from hpcverify.quarantine.life import Hold, Node, State

REASON_MAX = 900
"""Characters of a reason that we write: Slurm keeps 5000, people read one line."""

SCHEDULERS = frozenset({"root", "slurm"})
"""Who Slurm's own drains are by: its ``SlurmUser``, which is one of these as a rule."""
HOOK_FAILED = frozenset({"Prolog error", "Epilog error"})
"""The reasons that Slurm gives when one of these ends badly, word for word."""

_MARK = re.compile(r"hpcverify\[[0-9a-f]{6,}\]")


class Seen(Struct, frozen=True, kw_only=True):
    """How a node was found to be held."""

    node: str
    ours: str = ""
    """The mark that its drain's reason begins with: a drain of ours, or one that says
    so."""
    reason: str = ""
    """Word for word."""
    by: str = ""
    """Who set the reason, where that is known."""
    drained: bool = False
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

    def drain(self, node: str, reason: str) -> None:
        """Keep all jobs off *node*, ours too; replaces the reason that it has."""
        ...

    def resume(self, node: str) -> None:
        """Take the drain of *node* back."""
        ...

    def restore(self, node: str, reason: str) -> None:
        """Give a drained *node* somebody else's reason back."""
        ...

    def reserve(self, node: str) -> None:
        """Keep *node* for our own jobs."""
        ...

    def unreserve(self, node: str) -> None:
        """Take our reservation of *node* back."""
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


def written(mark: str, reason: str) -> str:
    """Put *reason* as we write it: after its mark, on one line, of bounded length."""
    # Quotes and backslashes have a meaning in the commands that would carry them.
    plain = re.sub(r'["\\]', "'", " ".join(reason.split()))
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
    seen = keeper.see(node.name)
    if _lost_to_us(node, seen, hand):
        theirs = node.foreign
        seen = hand.do("restore", theirs, lambda: keeper.restore(node.name, theirs))
    done: set[str] = set()
    while True:
        node = as_found(node, seen, hand.marks())
        act = _due(node, seen, hand.marks())
        if act in done:
            raise ActionError(f"{node.name}: {act} did not take, it is {_words(seen)}")
        if not act:
            return node
        done.add(act)
        seen = _take(act, node, seen, hand)


def adopt(node: Node, seen: Seen, keeper: Keeper, book: Book) -> Node:
    """
    Make the drain of a prolog or epilog that failed ours, as *node*'s reason explains.

    Only what Slurm set itself is taken, and only if it is still as it was *seen*;
    else *node* comes back as it is now found. `settle` goes on from there.

    Raises:
        ActionError: the scheduler did not answer, or the write did not take.

    """
    hand = _Hand(node.name, keeper, book)
    now = keeper.see(node.name)
    if now == seen and _set_by_scheduler(now):
        reason = written(node.hold or _new_mark(), node.reason)
        now = hand.do(
            "adopt", reason, lambda: keeper.drain(node.name, reason), seen.reason
        )
    return as_found(node, now, hand.marks())


def _set_by_scheduler(seen: Seen) -> bool:
    hook = seen.drained and seen.reason in HOOK_FAILED and seen.by in SCHEDULERS
    return hook and not seen.unavailable


def as_found(node: Node, seen: Seen, marks: Sequence[str]) -> Node:
    """Say what *seen* makes of *node*, *marks* being those of our writes to it."""
    marks = [*marks, *filter(None, [node.hold])]
    drain, reserved = _ours(seen, marks)
    if drain:
        return replace(node, hold=seen.ours, foreign="")
    foreign = _theirs(seen)
    if reserved:
        return replace(node, hold=marks[-1], foreign=foreign)
    if seen.unavailable and not seen.drained:  # ours, if it was, may be below that
        return replace(node, foreign=foreign)
    if node.hold and node.wanted is not Hold.NONE:
        return _let_go(node, foreign)
    return replace(node, hold="", foreign=foreign)


def _ours(seen: Seen, marks: Sequence[str]) -> tuple[bool, bool]:
    """Say whether the drain and whether the reservation of a node are ours."""
    return seen.drained and seen.ours in marks, seen.reserved and bool(marks)


def _theirs(seen: Seen) -> str:
    """Say why somebody else holds a node, empty if nobody does."""
    if seen.drained:
        return seen.reason or "drained, without a reason"
    if seen.unavailable:
        return seen.reason or seen.unavailable
    return ""


def _let_go(node: Node, foreign: str) -> Node:
    taken = f"somebody else took it over: {foreign}" if foreign else "somebody else let it go"
    was = f" (it was {node.state.value}: {node.reason})"
    return replace(
        node,
        state=State.UNVERIFIED,
        reason=taken + was,
        by="",
        enforced=False,
        hold="",
        foreign=foreign,
    )
