"""Only parts that may have changed are read, and the rest of the fleet is counted."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcverify.history.reader import Choice
from hpcverify.history.screen import PeerMetric, open_screen
from hpcverify.history.trend import choose_nights, read_pasts
from hpcverify.trends.fleet import FleetPast, TrendJudgement, describe_shared, judge_histories
from tests.history.fleets import make_history

NIGHTS = 25
"""All of them are looked at."""


def read(
    state: Path,
    level: str,
    new_driver: str = "false",
    nodes: int = 24,
    run_spread: float = 0.0015,
) -> FleetPast:
    """Write a fleet, and read the past of the one metric that is judged."""
    make_history(
        state,
        nights=NIGHTS,
        level=level,
        new_driver=new_driver,
        nodes=nodes,
        run_spread=run_spread,
    )
    with open_screen(state, Choice()) as screen:
        ((_, past),) = read_pasts(screen, find_least)
    return past


def find_least(metric: PeerMetric) -> float | None:
    return 0.0075 if metric.check == "gemm" else None


def judge(past: FleetPast) -> TrendJudgement:
    return judge_histories(past, low_is_bad=True)


def test_of_a_steady_fleet_nothing_is_read(tmp_path: Path) -> None:
    past = read(tmp_path, "1")
    assert (past.histories, past.carriers, past.parts) == ([], [], 24)
    assert past.spread == pytest.approx(0.0015, rel=0.2)


@pytest.mark.parametrize("since", [12, 21])
def test_the_part_that_stepped_is_read_with_its_runs_and_levels(tmp_path: Path, since: int) -> None:
    past = read(tmp_path, f"if(n = 7 and t >= {since}, 0.98, 1)")

    (history,) = past.histories
    assert (history.node, history.part, len(history.values)) == ("r0n7", "GPU 0", NIGHTS)
    assert list(history.times) == sorted(history.times)
    assert history.levels == pytest.approx([500] * NIGHTS, rel=0.005)
    (change,) = judge(past).changes
    assert change.node == "r0n7"
    assert change.size == pytest.approx(0.02, abs=0.003)


def test_a_part_that_drifts_is_read(tmp_path: Path) -> None:
    past = read(tmp_path, "if(n = 3, 1 - 0.001 * t, 1)")
    assert [history.node for history in past.histories] == ["r0n3"]


def test_what_all_lose_on_one_day_or_in_one_night_is_in_no_part(tmp_path: Path) -> None:
    past = read(tmp_path, "if(t >= 20, 0.97, if(t = 5, 0.9, 1))")
    assert past.histories == []
    (shared,) = judge(past).shared
    assert describe_shared(shared).startswith("the median of 24 parts became 3")


@pytest.mark.parametrize(("with_it", "named"), [(12, {"r0n4"}), (1, {"r0n0"})])
def test_a_driver_is_divided_off_if_enough_parts_have_it(
    tmp_path: Path, with_it: int, named: set[str]
) -> None:
    level = f"if(n < {with_it} and t >= 20, if(n = 4, 0.94, 0.97), 1)"

    past = read(tmp_path, level, f"n < {with_it} and t >= 20")

    judged = judge(past)
    assert {change.node for change in judged.changes} == named
    assert len(past.carriers) == with_it
    sizes = [(one.changed, one.compared) for one in judged.shared]
    assert sizes == ([(12, 12)] if with_it > 1 else [])


def test_a_driver_is_judged_by_all_who_have_it_and_not_by_those_that_moved(tmp_path: Path) -> None:
    """Runs differ by 2 %, so that of the parts, all 1.5 % slower, few have moved for certain."""
    past = read(tmp_path, "if(t >= 20, 0.985, 1)", "t >= 20", nodes=100, run_spread=0.02)

    judged = judge(past)
    (shared,) = judged.shared
    assert shared.compared == 100
    assert shared.size == pytest.approx(0.015, abs=0.006)
    assert judged.changes == ()


def test_a_metric_whose_usual_value_is_0_is_not_judged(tmp_path: Path) -> None:
    make_history(tmp_path, nights=NIGHTS, level="if(n < 3, 1, 0)")
    with open_screen(tmp_path, Choice()) as screen:
        assert list(read_pasts(screen, find_least)) == []


def test_a_history_without_values_has_no_nights_to_look_at() -> None:
    assert choose_nights({}) == []
