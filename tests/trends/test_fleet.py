"""A rollout is told from a fault, and a change that is gone is none."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest
from msgspec.structs import replace

from hpcverify.model import Verdict
from hpcverify.trends.fleet import describe_shared, format_crossing, judge_histories
from hpcverify.trends.marks import PartHistory

DAY = 86400.0
RUNS = 30


def make_history(
    i: int,
    steps: Mapping[int, float] | None = None,
    *,
    driver_from: int = RUNS,
    per_run: float = 0.0,
    limit: float | None = None,
    low: bool = False,
) -> PartHistory:
    """Make a part with a run a day: *steps* by their run, a new driver from a run on."""
    rng = random.Random(i)
    level, values = 100.0, []
    for run in range(RUNS):
        level *= 1 + (steps or {}).get(run, 0.0) + per_run
        values.append(level * rng.gauss(1, 0.0015))
    if low:
        values = [10_000 / value for value in values]
    drivers = tuple("580.1" if run < driver_from else "590.2" for run in range(RUNS))
    return PartHistory(
        node=f"n{i}",
        part="gpu0",
        times=tuple((20000 + run) * DAY for run in range(RUNS)),
        values=tuple(values),
        marks={"driver": drivers},
        limit=limit,
    )


@pytest.mark.parametrize("low", [False, True])
def test_the_one_part_that_changed_is_named(low: bool) -> None:  # noqa: FBT001 - a case
    fleet = [make_history(i, {20: 0.01} if i == 7 else None, low=low) for i in range(100)]

    judged = judge_histories(fleet, low_is_bad=low)

    (change,) = judged.changes
    assert (change.node, change.kind, change.verdict) == ("n7", "step", Verdict.WARN)
    assert change.size == pytest.approx(0.01, abs=0.002)
    assert change.day == pytest.approx(20020, abs=1)
    assert judged.shared == ()


def test_a_rollout_that_slows_many_parts_is_said_once() -> None:
    fleet = [make_history(i, {20: 0.02} if i < 60 else None, driver_from=20) for i in range(80)]
    fleet += [make_history(i) for i in range(80, 100)]

    judged = judge_histories(fleet, low_is_bad=False)

    (shared,) = judged.shared
    assert str(shared.mark) == "driver 580.1 to 590.2"
    assert shared.changed >= 55
    assert shared.compared == 80
    assert judged.changes == ()


@pytest.mark.parametrize("size", [0.005, 0.008])
def test_a_rollout_that_is_too_small_for_steps_is_no_trend_of_its_parts(size: float) -> None:
    begins = [12 + i % 10 for i in range(40)]
    fleet = [make_history(i, {b: size}, driver_from=b) for i, b in enumerate(begins)]
    wearing = make_history(40, {14: size}, driver_from=14, per_run=0.001)

    assert judge_histories(fleet, low_is_bad=False).changes == ()
    (change,) = judge_histories([*fleet, wearing], low_is_bad=False).changes
    assert (change.node, change.kind) == ("n40", "trend")


@pytest.mark.parametrize("steps", [{}, {15: 0.006}])
def test_a_trend_that_many_have_is_said_once(steps: Mapping[int, float]) -> None:
    per_run = 0.0 if steps else 0.0006
    fleet = [make_history(i, steps, per_run=per_run) for i in range(100)]
    fleet.append(make_history(100, per_run=0.002))

    judged = judge_histories(fleet, low_is_bad=False)

    (shared,) = judged.shared
    assert describe_shared(shared).endswith(
        "worse in a trend until 2024-11-02: look for what they share, such as cooling or software"
    )
    assert [change.node for change in judged.changes] == ["n100"]


def test_a_change_of_many_on_one_day_is_no_trend_of_those_in_which_it_is_no_step() -> None:
    fleet = [make_history(i, {15: 0.008}) for i in range(100)]
    wearing = make_history(100, {15: 0.008}, per_run=0.001)
    judged = judge_histories([*fleet, wearing], low_is_bad=False)
    assert [shared.mark for shared in judged.shared] == [None]
    assert [(change.node, change.kind) for change in judged.changes] == [("n100", "trend")]


@pytest.mark.parametrize("driver_from", [15, RUNS])
def test_who_gained_nothing_where_most_gained_is_no_worse(driver_from: int) -> None:
    fleet = [
        make_history(i, {15: -0.008} if i % 5 < 3 else None, driver_from=driver_from)
        for i in range(200)
    ]

    changes = judge_histories(fleet, low_is_bad=False).changes

    assert [change for change in changes if change.verdict is not Verdict.PASS] == []


def test_a_part_that_changed_with_a_driver_that_changed_nobody_else_is_named() -> None:
    fleet = [make_history(i, {20: 0.02} if i == 7 else None, driver_from=20) for i in range(80)]
    (change,) = judge_histories(fleet, low_is_bad=False).changes
    assert (change.node, [str(mark) for mark in change.marks]) == ("n7", ["driver 580.1 to 590.2"])
    assert change.why.endswith("80 parts with it are what they were in the median")


def test_a_part_that_lost_with_a_driver_by_which_the_others_gained_is_named() -> None:
    fleet = [make_history(i, {20: 0.02 if i == 7 else -0.02}, driver_from=20) for i in range(80)]
    changes = judge_histories(fleet, low_is_bad=False).changes
    (change,) = [change for change in changes if change.verdict is Verdict.WARN]
    assert change.node == "n7"
    assert change.why.endswith("80 parts with it are 2 % better in the median")


def test_a_part_that_changed_far_more_than_the_rollout_is_named_beside_it() -> None:
    fleet = [make_history(i, {20: 0.10 if i == 7 else 0.01}, driver_from=20) for i in range(80)]
    judged = judge_histories(fleet, low_is_bad=False)
    assert ([change.node for change in judged.changes], len(judged.shared)) == (["n7"], 1)


def test_a_change_of_many_on_one_day_without_a_mark_is_said_once() -> None:
    fleet = [make_history(i, {20: 0.02} if i < 40 else None) for i in range(100)]

    judged = judge_histories(fleet, low_is_bad=False)

    (shared,) = judged.shared
    assert shared.mark is None
    assert shared.changed >= 38
    assert judged.changes == ()


def test_a_change_that_is_gone_is_not_reported_as_worse() -> None:
    fleet = [make_history(7, {12: 0.02, 22: -0.02})]
    assert all(c.size < 0 for c in judge_histories(fleet, low_is_bad=False).changes)


def test_a_part_that_became_better_is_told_and_is_no_warning() -> None:
    (change,) = judge_histories([make_history(7, {20: -0.02})], low_is_bad=False).changes
    assert (change.verdict, change.size < 0) == (Verdict.PASS, True)


def test_a_part_that_wears_is_warned_of_before_it_crosses_its_limit() -> None:
    fleet = [make_history(i, per_run=0.0006 if i == 7 else 0.0, limit=104.0) for i in range(40)]

    (change,) = judge_histories(fleet, low_is_bad=False).changes

    assert (change.node, change.kind) == ("n7", "trend")
    assert change.crossing is not None
    truth = 20000 + 3.92 / 0.06
    assert change.crossing.earliest <= truth <= (change.crossing.latest or 1e9)
    assert format_crossing(change.crossing).startswith("crosses its limit about 2024-1")


def test_healthy_fleets_change_in_nothing() -> None:
    for seed in range(5):
        fleet = [make_history(1000 * seed + i, driver_from=15) for i in range(100)]
        judged = judge_histories(fleet, low_is_bad=False)
        assert (judged.changes, judged.shared) == ((), ())


@pytest.mark.parametrize("spread", [0.004, 0.006])
def test_what_chance_makes_of_many_noisy_parts_is_no_change(spread: float) -> None:
    rng = random.Random(1)
    fleet = [
        replace(
            make_history(i),
            values=tuple(
                (103.0 if i < 5 and run >= 20 else 100.0) * rng.gauss(1, spread)
                for run in range(RUNS)
            ),
        )
        for i in range(1000)
    ]

    judged = judge_histories(fleet, low_is_bad=False)

    assert {change.node for change in judged.changes} == {"n0", "n1", "n2", "n3", "n4"}
