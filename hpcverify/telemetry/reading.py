"""What a reader of the hardware gives: one number of one part, now."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from msgspec import Struct

MAX_CELSIUS = 200
"""A driver without a sensor may give more, which DCGM 4.6 drops (DcgmCacheManager.cpp)."""


class Reading(Struct, frozen=True):
    """One number; *part_id* is the id of a part, *unit* one of `hpcverify.units`."""

    name: str
    value: float
    unit: str
    part_id: str


class Reader(Protocol):
    """Something that can be read again and again while a check loads the node."""

    def read(self) -> Iterator[Reading]:
        """Yield what can be read now; what cannot be read is left out."""

    def close(self) -> None:
        """Let go of what the reader holds; it is not read again."""
