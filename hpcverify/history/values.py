"""
The values of parts as their peers are compared, with all that the history knows of them.

What a part reached comes with the driver and the firmware that it ran, and with the clock, the
temperature and the power that the same runs measured under load; whoever asks says where each
node is. Only metrics in which something is far are read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from hpcverify.history.duck import quote
from hpcverify.history.screen import PeerMetric, Screen
from hpcverify.peers.floors import PeerFloor, find_floor, find_worse_side
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

    def find_line(metric: PeerMetric) -> PeerFloor:
        return find_floor(metric.check, metric.metric, of_site)

    metrics = [
        metric
        for metric in screen.metrics
        if find_worse_side(find_line(metric), metric.unit) is not None
    ]
    far = {
        one.of
        for one in screen.screen(lambda metric: find_line(metric).floor)
        if one.needs_judgement
    }
    judged = [metric for metric in metrics if metric in far]
    return ScreenedFleet(
        values={name_metric(metric): read_values(screen, metric, locate) for metric in judged},
        suites={name_metric(metric): metric.suite for metric in judged},
        screened=len(metrics) - len(judged),
    )


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
