"""
The values of parts as their peers are compared, with all that the history knows of them.

What a part reached comes with the driver and the firmware that it ran, and with the clock, the
temperature and the power that the same runs measured under load; whoever asks says where each
node is. Only metrics in which something is far are read.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from statistics import median
from sys import intern
from typing import Any

from msgspec import Struct

from hpcverify.history.duck import quote
from hpcverify.history.screen import END_VALUES, PeerMetric, Screen, ScreenedList
from hpcverify.peers.floors import FindFloor, Worse
from hpcverify.peers.groups import MIN_UNITS, find_group_outliers
from hpcverify.peers.rule import MIN_COMPARED, find_distance
from hpcverify.peers.screen import ListSummary
from hpcverify.peers.values import NODE_PART, MetricName, PartValue

SENSOR_METRICS = {
    "clock.mean": "clock",
    "temperature.max": "temperature",
    "power.mean": "power",
}
"""What measures a sensor under load, as `thermal` does in the same run."""
Locate = Callable[[str], Mapping[str, str]]
"""Says where a node is: its switch, its rack, as far as that is known."""
FindGroups = Callable[[str, str | None, str | None], Mapping[str, str]]
"""Finds the place and the versions of a node, by its name, its driver and its firmware."""
_Group = tuple[str, str]
NO_SENSORS: Mapping[str, float] = {}
MAX_TIMES_BETTER = 100
"""A part that claims to be so many times better than the usual one has measured nothing."""
MIN_NODES_BEYOND = (MIN_UNITS + 1) // 2
"""In a group that is worse than the rest, at least half of the nodes are beyond the floor."""


class ScreenedFleet(Struct, frozen=True):
    """The metrics of a fleet that have to be judged in full."""

    values: Mapping[MetricName, Sequence[PartValue]]
    suites: Mapping[MetricName, str]
    screened: int
    """Metrics that need not be judged: in them, nothing is far."""
    least: Mapping[str, float]
    """How much worse than its peers a single part has to be until it is named, in those."""
    compared: frozenset[str] = frozenset()
    """Nodes with a value in a metric that enough parts have."""
    alone: frozenset[str] = frozenset()
    """Nodes of which no metric has enough parts like theirs."""
    too_few: tuple[str, ...] = ()
    """Metrics that so few parts have that none of them can be compared."""
    absurd: Mapping[MetricName, Sequence[str]] = {}
    """Nodes of parts that are not compared, since they claim more than any part can reach."""
    unjudged: tuple[str, ...] = ()
    """Metrics whose worse side is unknown."""
    summaries: Mapping[PeerMetric, ListSummary] = {}
    """What the parts of the fleet reached in each metric that has a worse side."""


def read_fleet(screen: Screen, find_floor: FindFloor, locate: Locate) -> ScreenedFleet:
    """Read the values of each metric that has to be judged in full, by its name."""
    find_groups = _make_group_finder(locate)

    lines = {metric: find_floor(metric.check, metric.metric) for metric in screen.metrics}
    metrics: dict[PeerMetric, Worse] = {
        metric: line.worse_side for metric, line in lines.items() if line.worse_side
    }
    far: set[PeerMetric] = set()
    least: dict[PeerMetric, float] = {}
    screened: list[ScreenedList] = []
    summaries: dict[PeerMetric, ListSummary] = {}
    for entry in screen.screen(lambda metric: lines[metric].floor):
        if entry.of in metrics and not entry.whole_nodes:
            summaries[entry.of] = entry.summary
            if entry.summary.peers >= MIN_COMPARED and entry.summary.centre:
                least[entry.of] = entry.summary.find_least(lines[entry.of].floor)
        if entry.needs_judgement:
            far.add(entry.of)
        elif entry.beyond_floor:
            screened.append(entry)
    groups = _FarGroups(screen, find_groups)
    far |= {
        entry.of
        for entry in screened
        if entry.of in metrics.keys() - far
        and groups.has_any(entry, lines[entry.of].floor, metrics[entry.of])
    }
    too_few = {metric for metric, summary in summaries.items() if summary.peers < MIN_COMPARED}
    judged = [metric for metric in metrics if metric in far - too_few]
    values: dict[MetricName, Sequence[PartValue]] = {}
    absurd: dict[MetricName, Sequence[str]] = {}
    for metric in judged:
        name, parts = metric.name, read_values(screen, metric, find_groups)
        values[name] = sound = list_sound_values(parts, metrics[metric])
        if len(sound) < len(parts):
            kept = {part.name for part in sound}
            absurd[name] = sorted({part.node for part in parts if part.name not in kept})
    like = {(m.suite, m.kind, m.model) for m in summaries.keys() - too_few}
    nodes = screen.list_nodes()
    compared = frozenset(node for node, kinds in nodes.items() if not like.isdisjoint(kinds))
    return ScreenedFleet(
        values=values,
        suites={metric.name: metric.suite for metric in judged},
        screened=len(metrics) - len(judged) - len(too_few),
        compared=compared,
        alone=frozenset(nodes) - compared,
        too_few=tuple(str(metric.name) for metric in sorted(too_few)),
        absurd=absurd,
        least={str(m.name): d for m, d in least.items() if m not in far},
        unjudged=tuple(str(m.name) for m, line in lines.items() if line.worse is None),
        summaries=summaries,
    )


def list_sound_values(parts: Sequence[PartValue], worse: Worse) -> list[PartValue]:
    """
    List the values but those that are better than anything can be: one of them says nothing.

    A single one makes far values look common, which would hide the slow parts of others. What
    is as much worse stays, of course.
    """
    if not (centre := median(part.value for part in parts)):
        return list(parts)
    low = worse == "low"
    return [
        part
        for part in parts
        if find_distance(part.value, centre, low_is_bad=low) >= -MAX_TIMES_BETTER
    ]


class _FarGroups:
    """Places and versions that are worse than the rest, by one value of each node."""

    def __init__(self, screen: Screen, find_groups: FindGroups) -> None:
        self._screen, self._find_groups = screen, find_groups
        self._minorities: dict[tuple[str, str, str], Mapping[str, frozenset[_Group]]] = {}

    def has_any(self, entry: ScreenedList, floor: float, worse: Worse) -> bool:
        """Whether there is one in the list *entry* of whole nodes, while none is far."""
        nodes, metric = entry.beyond_floor[worse], entry.of
        if len(nodes) < END_VALUES and not self._share_any(metric, nodes):
            return False
        groups: defaultdict[str, dict[str, list[float]]] = defaultdict(dict)
        for node, value, driver, firmware in self._read_nodes(metric):
            distance = find_distance(value, entry.summary.centre, low_is_bad=worse == "low")
            for field, name in self._find_groups(node, driver, firmware).items():
                groups[field].setdefault(name, []).append(distance)
        return any(find_group_outliers(units, floor) for units in groups.values())

    def _share_any(self, metric: PeerMetric, nodes: Sequence[str]) -> bool:
        if len(nodes) < MIN_NODES_BEYOND:
            return False
        like = (metric.suite, metric.kind, metric.model)
        if like not in self._minorities:
            self._minorities[like] = self._find_minorities(metric)
        minorities = self._minorities[like]
        if not minorities.keys() >= set(nodes):
            return True  # they were found in a metric that fewer nodes have
        counts = Counter(group for node in nodes for group in minorities[node])
        return max(counts.values(), default=0) >= MIN_NODES_BEYOND

    def _find_minorities(self, metric: PeerMetric) -> dict[str, frozenset[_Group]]:
        groups = {
            node: frozenset(self._find_groups(node, driver, firmware).items())
            for node, _, driver, firmware in self._read_nodes(metric)
        }
        sizes = Counter(group for own in groups.values() for group in own)
        large = frozenset(group for group, size in sizes.items() if 2 * size > len(groups))
        return {node: own - large for node, own in groups.items()}

    def _read_nodes(self, metric: PeerMetric) -> Iterator[tuple[Any, ...]]:
        return self._screen.fetch(
            "select node, median(value), max(driver), max(firmware) from (select node, part,"
            " median(value) as value, max(driver) as driver, max(firmware) as firmware"
            f" from {self._screen.select(metric)} group by node, part) group by node"
        )


def _make_group_finder(locate: Locate) -> FindGroups:
    @cache
    def find(node: str, driver: str | None, firmware: str | None) -> Mapping[str, str]:
        versions = {"driver": driver, "firmware": firmware}
        return {**locate(node), **{field: text for field, text in versions.items() if text}}

    return find


def name_part(part: str, label: str) -> str:
    """Name a part of the history as people call it on its node."""
    return label if label and part != NODE_PART else NODE_PART


def read_values(screen: Screen, metric: PeerMetric, find_groups: FindGroups) -> list[PartValue]:
    """Read the value of each part in *metric*."""
    sensors = _read_sensors(screen, metric)
    query = (
        "select node, part, max(label), median(value), count(*), epoch(min(started)),"
        f" epoch(max(started)), max(driver), max(firmware) from {screen.select(metric)}"
        " group by node, part order by node, part"
    )
    return [
        PartValue(
            node=intern(node),  # of hundreds of thousands of parts, few names differ
            part=intern(name_part(part, label)),
            value=value,
            runs=runs,
            spread=None,
            groups=find_groups(node, driver, firmware),
            sensors=sensors.get((node, part), NO_SENSORS),
            times=(first, last),
        )
        for node, part, label, value, runs, first, last, driver, firmware in screen.fetch(query)
    ]


def _read_sensors(screen: Screen, metric: PeerMetric) -> dict[tuple[str, str], dict[str, float]]:
    sensors: dict[tuple[str, str], dict[str, float]] = {}
    like = " and ".join(
        f"{field} = {quote(value)}"
        for field, value in (
            ("suite", metric.suite),
            ("kind", metric.kind),
            ("model", metric.model),
        )
    )
    names = ", ".join(map(quote, SENSOR_METRICS))
    query = (
        f"select node, part, metric, median(value) from {screen.rows} where {like}"
        f" and metric in ({names}) group by node, part, metric"
    )
    for node, part, name, value in screen.fetch(query):
        sensors.setdefault((node, part), {})[SENSOR_METRICS[name]] = value
    return sensors
