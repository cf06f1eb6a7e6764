"""Only parts that may have moved are read, and the rest of the fleet is counted."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcverify.history.reader import Choice
from hpcverify.history.screen import PeerMetric, open_screen
from hpcverify.history.trend import MetricPast, choose_nights, read_pasts
from hpcverify.trends.fleet import judge_histories
from hpcverify.trends.marks import MarkChange
from tests.history.fleets import DRIVER, NEW_DRIVER, make_history

NIGHTS = 30
CHANGE = MarkChange("driver", DRIVER, NEW_DRIVER)


def read(state: Path, level: str, new_driver: str = "false") -> list[MetricPast]:
    """Write a fleet of 24 nodes, and read the pasts of what may have moved."""
    make_history(state, nights=NIGHTS, level=level, new_driver=new_driver)
    with open_screen(state, Choice()) as screen:
        return list(read_pasts(screen, find_least))


def find_least(metric: PeerMetric) -> float | None:
    return 0.0075 if metric.check == "gemm" else None


def test_of_a_steady_fleet_nothing_is_read(tmp_path: Path) -> None:
    assert read(tmp_path, "1") == []


@pytest.mark.parametrize("since", [12, 26])
def test_the_part_that_stepped_is_read_with_all_its_runs(tmp_path: Path, since: int) -> None:
    (past,) = read(tmp_path, f"if(n = 7 and t >= {since}, 0.98, 1)")

    (history,) = past.histories
    assert (history.node, history.part, len(history.values)) == ("r0n7", "GPU 0", NIGHTS)
    assert list(history.times) == sorted(history.times)
    assert (past.moved, past.population.parts) == (1, 24)
    assert past.population.spread == pytest.approx(0.0015, rel=0.2)


def test_a_part_that_drifts_is_read(tmp_path: Path) -> None:
    (past,) = read(tmp_path, "if(n = 3, 1 - 0.001 * t, 1)")
    assert [history.node for history in past.histories] == ["r0n3"]


def test_a_driver_that_slows_all_who_have_it_is_a_rollout(tmp_path: Path) -> None:
    (past,) = read(tmp_path, "if(n < 12 and t >= 20, 0.97, 1)", "n < 12 and t >= 20")

    assert past.population.effects[CHANGE].parts == 12
    judged = judge_histories(past.histories, low_is_bad=True, population=past.population)
    (shared,) = judged.shared
    assert (shared.mark, shared.changed, shared.compared) == (CHANGE, 12, 12)
    assert judged.changes == ()


def test_a_node_that_slowed_with_a_driver_that_harmed_nobody_else_is_named(tmp_path: Path) -> None:
    (past,) = read(tmp_path, "if(n = 4 and t >= 20, 0.97, 1)", "n < 12 and t >= 20")

    judged = judge_histories(past.histories, low_is_bad=True, population=past.population)
    (change,) = judged.changes
    assert change.node == "r0n4"
    assert change.why.endswith("12 parts with it are what they were in the median")
    assert judged.shared == ()


def test_a_driver_that_all_went_back_to_does_not_hide_who_slowed_with_it(tmp_path: Path) -> None:
    (past,) = read(tmp_path, "if(n < 3 and t >= 20, 0.97, 1)", "t >= 10 and t < 20")

    back = MarkChange("driver", NEW_DRIVER, DRIVER)
    assert {mark: one.parts for mark, one in past.population.effects.items()} == {
        CHANGE: 24,
        back: 24,
    }
    judged = judge_histories(past.histories, low_is_bad=True, population=past.population)
    assert judged.shared == ()
    assert {change.node for change in judged.changes} == {"r0n0", "r0n1", "r0n2"}


def test_a_driver_is_judged_by_all_who_have_it_and_not_by_those_that_moved(tmp_path: Path) -> None:
    """Runs differ by 2 %, so that of the parts, all 1.5 % slower, few have moved for certain."""
    make_history(
        tmp_path,
        nights=NIGHTS,
        level="if(t >= 20, 0.985, 1)",
        new_driver="t >= 20",
        nodes=100,
        run_spread=0.02,
    )
    with open_screen(tmp_path, Choice()) as screen:
        (past,) = read_pasts(screen, find_least)

    assert past.moved < 50 < past.population.parts
    assert past.population.effects[CHANGE].factor == pytest.approx(0.985, abs=0.006)
    judged = judge_histories(past.histories, low_is_bad=True, population=past.population)
    assert [(one.mark, one.compared) for one in judged.shared] == [(CHANGE, 100)]
    assert [change for change in judged.changes if change.size > 0] == []


def test_a_history_without_values_has_no_nights_to_look_at() -> None:
    assert choose_nights({}) == []
