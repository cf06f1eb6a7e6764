"""
The values of parts as their peers are compared, with all that the history knows of them.

What a part reached comes with the driver and the firmware that it ran, and with the clock, the
temperature and the power that the same runs measured under load; whoever asks says where each
node is. Only metrics in which something is far are read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from statistics import median

from msgspec import Struct

from hpcverify.history.duck import quote
from hpcverify.history.screen import PeerMetric, Screen
from hpcverify.peers.floors import PeerFloor, Worse, find_floor, find_worse_side
from hpcverify.peers.groups import find_group_outliers
from hpcverify.peers.rule import find_distance
from hpcverify.peers.values import NODE_PART, MetricName, PartValue

SENSOR_METRICS = {
    "clock.mean": "clock",
    "temperature.max": "temperature",
    "power.mean": "power",
}
"""What measures a sensor under load, as `thermal` does in the same run."""
Locate = Callable[[str], Mapping[str, str]]
"""Says where a node is: its switch, its rack, as far as that is known."""


class ScreenedFleet(Struct, frozen=True):
    """The metrics of a fleet that have to be judged in full."""

    values: Mapping[MetricName, Sequence[PartValue]]
    suites: Mapping[MetricName, str]
    screened: int
    """Metrics that need not be judged: in them, nothing is far."""


def read_fleet(screen: Screen, of_site: Sequence[PeerFloor], locate: Locate) -> ScreenedFleet:
    """Read the values of each metric that has to be judged in full, by its name."""
    find_place = cache(locate)

    def find_line(metric: PeerMetric) -> PeerFloor:
        return find_floor(metric.check, metric.metric, of_site)

    metrics: dict[PeerMetric, Worse] = {
        metric: worse
        for metric in screen.metrics
        if (worse := find_worse_side(find_line(metric), metric.unit)) is not None
    }
    far: set[PeerMetric] = set()
    crowded: set[PeerMetric] = set()
    for one in screen.screen(lambda metric: find_line(metric).floor):
        if one.needs_judgement:
            far.add(one.of)
        elif one.may_have_group:
            crowded.add(one.of)
    judged = [
        metric
        for metric, worse in metrics.items()
        if metric in far
        or (
            metric in crowded
            and _has_far_group(screen, metric, find_line(metric).floor, worse, find_place)
        )
    ]
    return ScreenedFleet(
        values={name_metric(metric): read_values(screen, metric, find_place) for metric in judged},
        suites={name_metric(metric): metric.suite for metric in judged},
        screened=len(metrics) - len(judged),
    )


def _has_far_group(
    screen: Screen, metric: PeerMetric, floor: float, worse: Worse, locate: Locate
) -> bool:
    """Whether a place or a version is worse than the rest, by one value of each node."""
    query = (
        "select node, median(value), max(driver), max(firmware) from (select node, part,"
        " median(value) as value, max(driver) as driver, max(firmware) as firmware"
        f" from {screen.select(metric)} group by node, part) group by node"
    )
    nodes = list(screen.fetch(query))
    centre = median(value for _, value, *_ in nodes)
    if not centre:
        return False
    groups: defaultdict[str, dict[str, list[float]]] = defaultdict(dict)
    for node, value, driver, firmware in nodes:
        distance = find_distance(value, centre, low_is_bad=worse == "low")
        for field, name in {**locate(node), **_list_versions(driver, firmware)}.items():
            groups[field].setdefault(name, []).append(distance)
    return any(find_group_outliers(units, floor) for units in groups.values())


def name_metric(metric: PeerMetric) -> MetricName:
    """Name a metric of the history: values of one suite and of one kind of part are alike."""
    mode = ", ".join(filter(None, [metric.suite, metric.model]))
    return MetricName(metric.metric, metric.check, mode, metric.unit)


def name_part(part: str, label: str) -> str:
    """Name a part of the history as people call it on its node."""
    return label if label and part != NODE_PART else NODE_PART


def read_values(screen: Screen, metric: PeerMetric, locate: Locate) -> list[PartValue]:
    """Read the value of each part in *metric*."""
    sensors = _read_sensors(screen, metric)
    query = (
        "select node, part, max(label), median(value), count(*), epoch(min(started)),"
        f" epoch(max(started)), max(driver), max(firmware) from {screen.select(metric)}"
        " group by node, part order by node, part"
    )
    return [
        PartValue(
            node=node,
            part=name_part(part, label),
            value=value,
            runs=runs,
            spread=None,
            groups={**locate(node), **_list_versions(driver, firmware)},
            sensors=sensors.get((node, part), {}),
            times=(first, last),
        )
        for node, part, label, value, runs, first, last, driver, firmware in screen.fetch(query)
    ]


def _list_versions(driver: str | None, firmware: str | None) -> dict[str, str]:
    versions = {"driver": driver, "firmware": firmware}
    return {field: text for field, text in versions.items() if text}


def _read_sensors(screen: Screen, metric: PeerMetric) -> dict[tuple[str, str], dict[str, float]]:
    """Read what was measured of the parts of *metric* under load, by node and part."""
    found: dict[tuple[str, str], dict[str, float]] = {}
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
        found.setdefault((node, part), {})[SENSOR_METRICS[name]] = value
    return found
