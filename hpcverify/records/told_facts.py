"""The facts that a source told of a node for some time, as the store returns them."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct


class ToldFacts(Struct, frozen=True, kw_only=True):
    """What *source* told of *node* in its runs from *first* to *last*, in s since 1970."""

    node: str
    source: str
    first: float
    last: float
    facts: Mapping[str, str]
    """Value by name; rows that tell the same share it."""
