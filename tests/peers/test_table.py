"""Tables of other tools are read as they are, and a wrong cell is named."""

from __future__ import annotations

import math

import pytest

from hpcverify.errors import ConfigError
from hpcverify.peers.table import choose_columns, collect_runs
from hpcverify.peers.values import MetricName
from tests.peers.fleets import collect

HEADER = ("gpu", "cabinet", "node", "unix_time", "milliseconds", "mhz")


def test_columns_of_other_tools_are_found_by_their_names() -> None:
    collected = collect(HEADER, [("g1", "c7", "5", "1591118862", "2454.7", "1350")])

    ((name, parts),) = collected.items()
    ((key, runs),) = parts.items()
    assert name == MetricName("milliseconds", unit="ms")
    assert key == ("c7-5", "g1")
    assert (runs.values, runs.times) == ([2454.7], [1591118862.0])
    assert (runs.sensors["clock"], runs.groups) == ([1350.0], {"cabinet": "c7"})


def test_parts_of_another_model_are_no_peers() -> None:
    header = ["host", "uuid", "gpu_model", "suite", "ms"]
    rows = [["n1", "a", "Instinct MI250X", "idle", "5"], ["n1", "b", "A100", "idle", "3"]]

    assert [str(name) for name in sorted(collect(header, rows))] == [
        "ms (idle, A100)",
        "ms (idle, Instinct MI250X)",
    ]


def test_a_run_without_a_node_goes_to_the_only_one_that_its_part_is_known_on() -> None:
    rows = [("g1", "-1", "-1", "1", "10", "1350"), ("g1", "c7", "5", "2", "11", "1350")]
    (parts,) = collect(HEADER, rows).values()
    (runs,) = parts.values()
    assert (runs.node, sorted(runs.values)) == ("c7-5", [10.0, 11.0])


def test_a_part_that_ran_on_two_nodes_is_two() -> None:
    rows = [("0", "c7", "5", "1", "10", "1"), ("0", "c7", "6", "2", "11", "1")]
    (parts,) = collect(HEADER, rows).values()
    assert set(parts) == {("c7-5", "0"), ("c7-6", "0")}


def test_columns_can_be_named() -> None:
    header = ("where", "tflops", "zone")
    columns = choose_columns(header, {"node": "where", "value": "tflops"}, ("zone",))
    collected = collect_runs([dict(zip(header, ("n1", "512.5", "a"), strict=True))], columns)
    assert collected[MetricName("tflops", unit="TFLOP/s")]["n1", "node"].groups == {"zone": "a"}


def test_a_time_is_in_seconds_or_a_date_of_utc() -> None:
    rows = [
        ("g1", "c7", "5", when, "10", "1350")
        for when in ("1970-01-02T00:00:00", "1970-01-02 02:00:00+02:00", "86400", "-1", "")
    ]

    (parts,) = collect(HEADER, rows).values()

    (runs,) = parts.values()
    assert runs.times[:3] == [86400.0] * 3
    assert all(map(math.isnan, runs.times[3:]))


@pytest.mark.parametrize("said", ["", "nan", "N/A", "[N/A]", "[Not Supported]", "inf"])
def test_what_a_tool_does_not_know_is_no_value(said: str) -> None:
    (parts,) = collect(HEADER, [("g1", "c7", "5", "1", said, said)]).values()
    (runs,) = parts.values()
    assert not any(map(math.isfinite, runs.values))
    assert not any(map(math.isfinite, runs.sensors["clock"]))


@pytest.mark.parametrize(
    ("header", "row", "message"),
    [
        (HEADER, ("g1", "c7", "5", "1", "fast", "1"), "row 1: the value 'fast' is not a number"),
        (HEADER, ("g1", "c7", "5", "noon", "1", "1"), "row 1: the time 'noon' is not a number"),
        (("gpu", "metric"), ("g1", "1"), "no column has the values"),
        (("gpu",), ("g1",), "no column has the values"),
        (("value", "speed"), ("1", "1"), "no column has the node or the part"),
    ],
)
def test_what_cannot_be_read_is_named(
    header: tuple[str, ...], row: tuple[str, ...], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        collect(header, [row])
