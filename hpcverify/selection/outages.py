"""
What the ranking of nodes knows of a fleet: its nodes, their places, and their outages.

Times are days, from any common start.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from hpcverify.reliability.outages import Outage

MASS_SHARE, MASS_DAYS = 0.05, 1 / 24
"""If more than this share of the nodes goes out within this time, it is maintenance, or what
they share (power, a switch, a file system): it says nothing of a node."""
MIN_MASS = 10
"""Fewer nodes are never taken for that."""


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
    outages: Sequence[Outage]
    """By their beginning; those of one node do not overlap."""


def make_history(nodes: Iterable[FleetNode], outages: Iterable[Outage]) -> FleetHistory:
    """Make a history of *outages* in any order; those of other nodes are left out."""
    known = {node.name: node for node in nodes}
    by_node: dict[str, list[Outage]] = defaultdict(list)
    for outage in sorted(outages, key=lambda o: (o.began, o.ended)):
        if outage.node not in known:
            continue
        own = by_node[outage.node]
        if own and outage.began <= own[-1].ended:
            own[-1] = Outage(outage.node, own[-1].began, max(own[-1].ended, outage.ended))
        else:
            own.append(outage)
    merged = sorted((o for own in by_node.values() for o in own), key=lambda o: o.began)
    return FleetHistory(known, tuple(_drop_mass_outages(merged, len(known))))


def _drop_mass_outages(outages: Sequence[Outage], count: int) -> Iterable[Outage]:
    """Drop those that began with so many others that it was not the node's doing."""
    most = max(MIN_MASS, MASS_SHARE * count)
    first = last = 0
    for outage in outages:
        while outages[first].began < outage.began - MASS_DAYS:
            first += 1
        while last < len(outages) and outages[last].began <= outage.began + MASS_DAYS:
            last += 1
        if last - first <= most:
            yield outage
