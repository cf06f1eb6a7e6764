"""
Find out whether all parts of one place, or with one version, are worse than the rest.

A group is named if it is as far as a part would have to be, for its size: the median of k units
is known 1 / sqrt(k) times as well as one of them. Where there are enough groups, their own
differences count too: no two racks are equal.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from msgspec import Struct

from hpcverify.peers.level import find_tail
from hpcverify.peers.rule import FALSE_NAMES, MIN_PEERS, SCREEN_SCORE
from hpcverify.stats import MAD_SCALE, MEDIAN_ERROR, find_mad, median

MIN_UNITS = 3
"""Fewer units, such as the nodes of a rack, are judged one by one."""
MIN_GROUPS = 4
"""Fewer other groups have no spread of their own."""
MOST = 0.75
"""The share of a group's units that are beyond the floor themselves."""
MIN_PURITY = 0.95
"""The share of units that a field puts on their side of a split."""
FEW = 3
"""A field explains a split if it has so many times fewer values than there are units."""


class GroupOutlier(Struct, frozen=True):
    """A group that is worse than the rest, and by how much."""

    name: str
    distance: float


def find_group_outliers(
    units: Mapping[str, Sequence[float]], floor: float, least_units: int = MIN_UNITS
) -> list[GroupOutlier]:
    """Find the groups that are worse than the rest, of *units*: the distances of each group's."""
    middles = {name: median(ds) for name, ds in units.items() if len(ds) >= least_units}
    everyone = [d for ds in units.values() for d in ds]
    usual = median(everyone) if everyone else 0.0
    outliers = []
    for name, middle in middles.items():
        members = units[name]
        if middle - usual < floor / 2:  # those of half the fleet move the median of all half-way
            continue
        rest = [d for other, ds in units.items() if other != name for d in ds]
        if len(rest) < max(MIN_PEERS, len(members)):
            continue
        centre = median(rest)
        distance = middle - centre
        error = MEDIAN_ERROR * MAD_SCALE * find_mad(rest, centre) / math.sqrt(len(members))
        others = [m for other, m in middles.items() if other != name]
        if len(others) >= MIN_GROUPS:
            error = max(error, MAD_SCALE * find_mad(others, median(others)))
        beyond = sum(d - centre >= floor for d in members)
        if (
            distance >= max(floor, SCREEN_SCORE * error)
            and beyond >= MOST * len(members)
            and find_tail(distance, error, len(everyone)) <= FALSE_NAMES / len(units)
        ):
            outliers.append(GroupOutlier(name, distance))
    return sorted(outliers, key=lambda group: -group.distance)


def explain_split(
    better: Sequence[Mapping[str, str]], worse: Sequence[Mapping[str, str]], fields: Sequence[str]
) -> str:
    """Name the field whose values are on one side of a split each; empty if there is none."""
    for field in fields:
        known = [[unit[field] for unit in side if unit.get(field)] for side in (better, worse)]
        names = set(known[0] + known[1])
        total = len(known[0]) + len(known[1])
        if len(names) < 2 or FEW * len(names) > total or not all(known):  # noqa: PLR2004 - sides
            continue
        counts = [(known[0].count(name), known[1].count(name)) for name in names]
        if sum(map(max, counts)) >= MIN_PURITY * total and total == len(better) + len(worse):
            return field
    return ""
