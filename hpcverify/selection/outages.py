"""
What the ranking of nodes knows of a fleet: its nodes, their places, and their outages.

Times are days, from any common start.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from math import inf

from msgspec import Struct

MASS_SHARE, MASS_DAYS = 0.05, 1 / 24
"""If more than this share of the nodes goes out within this time, it is maintenance, or what
they share (power, a switch, a file system): it says nothing of a node."""
MIN_MASS = 10
"""Fewer nodes are never taken for that."""


class PastOutage(Struct, frozen=True):
    """A time in which a node was out of service."""

    node: str
    began: float
    ended: float = inf
    """Infinity: under way."""


class FleetNode(Struct, frozen=True):
    """A node of the fleet, whether it ever failed or not."""

    name: str
    since: float = 0.0
    """When it joined the fleet."""
    places: tuple[str, ...] = ()
    """What it is in with others, the widest first: row, rack, chassis, switch."""
    positions: tuple[str, ...] = ()
    """Where it is in such a place, and with which batch it came: nodes of other racks have the
    same ones."""

    def list_groups(self) -> tuple[str, ...]:
        """List its places and positions."""
        return (*self.places, *self.positions)


class FleetHistory(Struct, frozen=True):
    """All that the ranking knows."""

    nodes: Mapping[str, FleetNode]
    outages: Sequence[PastOutage]
    """By their beginning; those of one node do not overlap."""


def make_history(nodes: Iterable[FleetNode], outages: Iterable[PastOutage]) -> FleetHistory:
    """Make a history of *outages* in any order; those of other nodes are left out."""
    known = {node.name: node for node in nodes}
    by_node: dict[str, list[PastOutage]] = defaultdict(list)
    for each in sorted(outages, key=lambda o: (o.began, o.ended)):
        if each.node not in known:
            continue
        own = by_node[each.node]
        if own and each.began <= own[-1].ended:
            own[-1] = PastOutage(each.node, own[-1].began, max(own[-1].ended, each.ended))
        else:
            own.append(each)
    merged = sorted((o for own in by_node.values() for o in own), key=lambda o: o.began)
    return FleetHistory(known, tuple(_drop_mass_outages(merged, len(known))))


def _drop_mass_outages(outages: Sequence[PastOutage], count: int) -> Iterable[PastOutage]:
    """Drop those that began with so many others that it was not the node's doing."""
    most = max(MIN_MASS, MASS_SHARE * count)
    first = last = 0
    for each in outages:
        while outages[first].began < each.began - MASS_DAYS:
            first += 1
        while last < len(outages) and outages[last].began <= each.began + MASS_DAYS:
            last += 1
        if last - first <= most:
            yield each
