"""The facts that a source reported of a node for some time, as the store returns them."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct


class ReportedFacts(Struct, frozen=True, kw_only=True):
    """What *source* reported of *node* in its runs from *first* to *last*, in s since 1970."""

    node: str
    source: str
    first: float
    last: float
    facts: Mapping[str, str]
    """Value by name; rows that tell the same share it."""
