"""
Where nodes are, by their names, their switches and when they came.

A name with several numbers, as r12c3n4, tells its place: what stands before the last number
is a rack, a chassis. A name with one number tells none: n17 may be next to n18, or not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta

from hpcverify.selection.outages import FleetNode

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def locate_nodes(
    since: Mapping[str, float], switches: Mapping[str, str] | None = None
) -> Iterable[FleetNode]:
    """Locate the nodes of *since* (days since 1970) by *switches* or name."""
    at = switches or {}
    several = len({_name_batch(day) for day in since.values()}) > 1
    for name, day in since.items():
        places, positions = read_place(name)
        switch = (f"switch {at[name]}",) if name in at else ()
        batch = (_name_batch(day),) if several else ()
        yield FleetNode(name, day, (*switch, *places), (*positions, *batch))


def read_place(name: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Read the places and positions in a node's *name*: r12c3 gives r12, and r*c3."""
    numbers = list(re.finditer(r"\d+", name))
    places = tuple(name[: match.end()] for match in numbers[:-1])
    positions = tuple(
        re.sub(r"\d+", "*", name[: match.start()])
        + match[0]
        + re.sub(r"\d+", "*", name[match.end() :])
        for match in numbers[1:]
    )
    return places, positions


def find_rack(name: str) -> str:
    """Find the rack or chassis in a node's *name*, its narrowest place; empty if it has none."""
    places, _ = read_place(name)
    return places[-1] if places else ""


def _name_batch(day: float) -> str:
    return f"the batch of {EPOCH + timedelta(days=day):%Y-%m}"
