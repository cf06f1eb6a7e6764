"""The explanation of each code that a result may have: a title, a meaning and a fix."""

from __future__ import annotations

from msgspec import Struct


class Explanation(Struct, frozen=True, forbid_unknown_fields=True):
    """What a code means; *title* follows the name of a part, as "row remapping failed"."""

    title: str
    meaning: str
    fix: str = ""
    """A command or a clear step; empty if there is nothing to do."""


def find_explanation(check: str, code: str) -> Explanation | None:  # noqa: ARG001 - no table yet
    """Find what *code* means in a result of *check*; None if no table has it."""
    return None
