"""The pictures of a node's page: each shows the numbers of the run, and none is made up."""

from __future__ import annotations

from datetime import date

import pytest
from msgspec.structs import replace

from hpcverify.insight.judgement import FleetJudgement
from hpcverify.model import Verdict
from hpcverify.peers.distribution import count_values
from hpcverify.peers.fleet import MetricJudgement
from hpcverify.peers.values import MetricName
from hpcverify.summary.run_summary import summarize
from hpcverify_reports.pictures import build_pictures, draw_places, draw_throughput
from hpcverify_reports.tables import Picture
from tests.reports import samples


def draw(*, slow: int | None = None) -> dict[str, Picture]:
    run = samples.run(samples.bandwidth(), samples.pairs(slow), samples.training())
    return {picture.title: picture for picture in build_pictures(summarize(run))}


def numbers(picture: Picture) -> list[list[str]]:
    assert picture.numbers is not None
    return [[cell.text for cell in row.cells] for row in picture.numbers.rows]


def test_the_slow_gpu_has_a_shorter_bar_and_a_sign() -> None:
    drawn = draw_throughput(summarize(samples.sick_node(10)))
    assert drawn is not None
    assert drawn.rows is not None

    (bad,) = (row for row in drawn.rows.rows if row.icon)
    ends = {row.label: float(row.path.split("H")[1].split("v")[0]) for row in drawn.rows.rows}
    assert (bad.label, bad.text) == ("GPU 3", "612")
    assert min(ends, key=ends.__getitem__) == "GPU 3"
    assert [bound.text for bound in drawn.rows.bounds] == ["median 744.3", "limit 702.2"]


def test_a_node_without_speeds_of_gpus_has_no_bars() -> None:
    assert draw_throughput(summarize(samples.run(samples.storage(), samples.ecc()))) is None


def test_the_bandwidth_of_each_size_is_drawn_above_its_limit() -> None:
    drawn = draw()["bus bandwidth"]
    assert drawn.chart is not None

    assert numbers(drawn)[0] == ["1 MiB", "92", "64.4"]
    assert [tick.text for tick in drawn.chart.x_ticks] == [
        *("1 MiB", "16 MiB", "128 MiB"),
        *("1 GiB", "8 GiB"),
    ]
    assert [line.is_limit for line in drawn.chart.lines] == [False, True]
    assert [bound.text for bound in drawn.chart.bounds] == ["limit 312 GB/s"]


@pytest.mark.parametrize("slow", [None, 3])
def test_the_pairs_of_a_slow_sender_have_squares_and_all_others_dots(slow: int | None) -> None:
    (block,) = draw(slow=slow)["p2p by pair"].blocks

    assert len(block.squares) == (0 if slow is None else 7)
    assert all(square.title.startswith(samples.GPUS[3].label) for square in block.squares)
    assert len(block.dots_path.split("M")) - 1 == 56 - len(block.squares)


def test_a_range_has_a_stroke_at_each_percentile() -> None:
    drawn = draw()["training latency"]
    assert drawn.rows is not None

    assert all(row.path.count("v12") == 2 for row in drawn.rows.rows)
    assert numbers(drawn)[0][1:] == drawn.rows.rows[0].text.split(" / ")


def test_the_load_of_a_soak_is_marked_and_its_axis_does_not_magnify_noise() -> None:
    hot = samples.thermal(60)
    power = [series for series in hot.series if series.name == "power"]
    flat = tuple(replace(s, values=(690.0,) * 59 + (694.0,)) for s in power)
    work = tuple(
        replace(s, name="work", unit="GFLOP/s", t=(5.0, 50.0), values=(1.0, 1.0)) for s in flat
    )
    run = samples.run(replace(hot, series=(*flat, *work)))
    (drawn, *_) = build_pictures(summarize(run))
    assert drawn.chart is not None

    assert [mark.text for mark in drawn.chart.marks] == ["load begins", "load ends"]
    assert drawn.chart.y.high - drawn.chart.y.low >= 60


@pytest.mark.parametrize(("suite", "count"), [("quick", 1), ("burnin", 0)])
def test_a_node_is_shown_among_the_fleet_in_its_own_suite_only(suite: str, count: int) -> None:
    name = MetricName("bf16.sustained", "gemm", f"{suite}, NVIDIA H100 80GB HBM3", "GFLOP/s")
    metric = MetricJudgement(name=name, parts=512, nodes=64, median=742e3, floor=0.01, worse="low")
    values = count_values([742e3 + i for i in range(512)])
    judgement = FleetJudgement(night=date(2026, 11, 20), metrics=((metric, values),))
    drawn = list(draw_places(samples.run(samples.gemm()), judgement))

    assert len(drawn) == count
    assert [len(numbers(picture)) for picture in drawn] == [8] * count
    assert list(draw_places(samples.run(samples.gemm()), None)) == []


def test_without_numbers_there_is_no_picture() -> None:
    run = samples.run(samples.ecc(), samples.inventory())

    assert build_pictures(summarize(run)) == ()
    assert run.verdict is Verdict.PASS
