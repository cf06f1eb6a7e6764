"""What a test of a group of members is for, and what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum, auto

from msgspec import Struct

MAX_NAMED = 8

Members = tuple[str, ...]
"""Nodes, or switches with all their nodes."""

TWO = 2
"""The fewest that a collective needs."""


class GroupOutcome(StrEnum):
    """What came of a test."""

    PASSED = auto()
    FAILED = auto()
    UNKNOWN = auto()
    """It did not come to its end for another reason. It is planned again."""


class GroupPurpose(StrEnum):
    """What a test is for."""

    GROUP = auto()
    PAIRS = auto()
    """Any two, after most groups failed."""
    HALF = auto()
    PAIR = auto()
    """Its first member, with one that has passed."""
    REST = auto()
    """All others that have not passed twice yet."""
    WHOLE = auto()
    """A group that failed, once more."""
    BETWEEN = auto()
    """Parts of two groups that pass, and fail together."""
    SEND = auto()
    """The first of two sends to the second."""
    INSIDE = auto()
    """A node alone, its GPUs by way of its own network adapters."""
    CONTROL = auto()
    """Two members that have passed: does the round judge fairly?"""


class GroupTest(Struct, frozen=True):
    """One collective over two or more *members*."""

    members: Members
    purpose: GroupPurpose


Round = tuple[GroupTest, ...]

Outcomes = Sequence[GroupOutcome] | None
"""The outcomes of a round, test by test; None: no further round may run."""


def name_members(members: Sequence[str]) -> str:
    """Name the members of a test, or the first `MAX_NAMED` of many."""
    more = len(members) - MAX_NAMED
    return ", ".join(members[:MAX_NAMED]) + (f" and {more} more" if more > 0 else "")
