"""What many parts have in common is taken off first; what is left is the part's own."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from itertools import accumulate

import pytest
from msgspec.structs import replace

from hpcverify.trends.change import find_changes
from hpcverify.trends.fleet import PartChange, TrendJudgement, describe_shared, judge_histories
from hpcverify.trends.marks import PartHistory, count_population

DAY = 86400.0
RUNS = 40
ROLLOUT = 20


def make_part(
    i: int, steps: Mapping[int, float], *, noise: float, driver_from: int = RUNS, seed: int = 0
) -> PartHistory:
    """Make a part with a run a day, whose values rise by *steps*; a new driver from a run on."""
    rng = random.Random(1000 * seed + i)
    levels = accumulate(steps.get(run, 0.0) for run in range(RUNS))
    return PartHistory(
        node=f"n{i // 4}",
        part=f"gpu{i % 4}",
        times=tuple((20000 + run) * DAY for run in range(RUNS)),
        values=tuple(100 * (1 + level) * rng.gauss(1, noise) for level in levels),
        marks={"driver": tuple("550" if run < driver_from else "560" for run in range(RUNS))},
    )


def list_worse(judged: TrendJudgement) -> list[PartChange]:
    return [change for change in judged.changes if change.size > 0]


@pytest.mark.parametrize("size", [0.015, 0.03])
def test_a_rollout_in_noisy_runs_is_one_and_names_none_of_its_parts(size: float) -> None:
    """By the noise of Frontera's ResNet, 0.6 %, few of the parts have a step by themselves."""
    fleet = [
        make_part(i, {ROLLOUT + i % 10: size}, noise=0.006, driver_from=ROLLOUT + i % 10)
        for i in range(262)
    ]

    judged = judge_screened(fleet, 0.006)

    (shared,) = judged.shared
    assert str(shared.mark) == "driver 550 to 560"
    assert shared.size == pytest.approx(size, rel=0.1)
    assert shared.compared == 262
    assert shared.changed > 0.9 * 262
    assert list_worse(judged) == []


def judge_screened(fleet: Sequence[PartHistory], noise: float) -> TrendJudgement:
    """Judge as after a night: changes that chance makes of so many series are none."""
    population = replace(count_population(fleet), spread=noise, series=10 * len(fleet))
    return judge_histories(fleet, low_is_bad=False, population=population)


def test_a_part_is_compared_with_what_the_others_gained_or_lost_by_its_new_driver() -> None:
    """Nothing is said of what no single part could have shown: there is the median of all."""
    fleet = [
        make_part(i, {ROLLOUT: 0.03 if i == 7 else 0.004}, noise=0.0015, driver_from=ROLLOUT)
        for i in range(80)
    ]

    (change,) = list_worse(judge_histories(fleet, low_is_bad=False))

    assert (change.node, change.part) == ("n1", "gpu3")
    assert "without such a change" not in change.why
    assert "80 parts" in change.why
    assert "0.4 % worse" in change.why


@pytest.mark.parametrize(("size", "delay"), [(0.03, 4), (-0.03, 4), (0.02, 3)])
def test_what_parts_lose_soon_after_a_rollout_is_seen(size: float, delay: int) -> None:
    """The rollout is taken off, so that the past before it still counts."""
    ill = (3, 50, 101)
    fleet = [
        make_part(
            i,
            {ROLLOUT: size, ROLLOUT + delay: 0.015 if i in ill else 0.0},
            noise=0.0015,
            driver_from=ROLLOUT,
        )
        for i in range(200)
    ]

    judged = judge_histories(fleet, low_is_bad=False)

    assert [
        (c.node, c.part) for c in sorted(list_worse(judged), key=lambda c: int(c.node[1:]))
    ] == [(f"n{i // 4}", f"gpu{i % 4}") for i in ill]
    assert len(judged.shared) == 1
    for change in list_worse(judged):
        assert change.size == pytest.approx(0.015, abs=0.003)
        assert change.day == pytest.approx(20000 + ROLLOUT + delay, abs=1)


def test_a_loss_before_a_day_on_which_all_gained_is_still_seen() -> None:
    fleet = [
        make_part(i, {15: 0.02 if i == 7 else 0.0, 25: -0.03}, noise=0.0015) for i in range(100)
    ]

    judged = judge_histories(fleet, low_is_bad=False)

    assert [(change.node, change.part) for change in list_worse(judged)] == [("n1", "gpu3")]
    assert [shared.mark for shared in judged.shared] == [None]


@pytest.mark.parametrize("gap", [4, 6, 9])
def test_a_second_step_is_found_soon_after_the_first(gap: int) -> None:
    found = [_find_two(seed, gap) for seed in range(200)]
    assert sum(found) >= 0.95 * len(found)


def _find_two(seed: int, gap: int) -> bool:
    rng = random.Random(seed)
    values = [
        100 * rng.gauss(1, 0.0015) * (1 - 0.03 * (i >= 20) + 0.02 * (i >= 20 + gap))
        for i in range(50)
    ]
    sizes = [change.size for change in find_changes(values)]
    return len(sizes) == 2 and sizes[0] < 0 < sizes[1]


@pytest.mark.parametrize("noise", [0.0015, 0.006])
def test_a_single_step_is_followed_by_no_other_one(noise: float) -> None:
    again = 0
    for seed in range(500):
        rng = random.Random(seed)
        values = [100 * rng.gauss(1, noise) * (1 + 6 * noise * (i >= 20)) for i in range(60)]
        again += len(find_changes(values)) > 1

    assert again <= 15


def test_healthy_parts_are_not_named_after_a_rollout_that_each_took_in_its_own_way() -> None:
    """Its effect differs from part to part by a fifth of it."""
    for seed in range(3):
        rng = random.Random(seed)
        fleet = [
            make_part(
                i, {ROLLOUT: rng.gauss(0.03, 0.006)}, noise=0.002, driver_from=ROLLOUT, seed=seed
            )
            for i in range(150)
        ]

        judged = judge_histories(fleet, low_is_bad=False)

        assert len(judged.shared) == 1
        assert len(list_worse(judged)) <= 1


@pytest.mark.parametrize("gap", [0, 1, 3, 5])
@pytest.mark.parametrize("second", [0.0, 0.02])
def test_a_driver_and_a_firmware_of_one_week_are_not_taken_off_twice(
    gap: int, second: float
) -> None:
    """Else what parts lose after them would be hidden by what was taken off too much."""
    ill = (3, 50, 101)
    fleet = []
    for i in range(120):
        steps = {ROLLOUT: 0.03}
        steps[ROLLOUT + gap] = steps.get(ROLLOUT + gap, 0.0) + second
        steps[ROLLOUT + gap + 5] = 0.03 if i in ill else 0.0
        part = make_part(i, steps, noise=0.004, driver_from=ROLLOUT)
        firmware = tuple("F1" if run < ROLLOUT + gap else "F2" for run in range(RUNS))
        fleet.append(replace(part, marks={**part.marks, "firmware": firmware}))

    judged = judge_screened(fleet, 0.004)

    assert {(c.node, c.part) for c in list_worse(judged)} == {
        (f"n{i // 4}", f"gpu{i % 4}") for i in ill
    }
    whole = sum(shared.size for shared in judged.shared)
    assert whole == pytest.approx(0.03 + second, abs=0.01)


def test_marks_some_runs_apart_name_hardly_a_healthy_part_and_hide_no_bad_one() -> None:
    healthy, bad = 0, 0
    for seed in range(4):
        rng = random.Random(seed)
        fleet: list[PartHistory] = []
        for i in range(160):
            driver, firmware = ROLLOUT + rng.randrange(2), ROLLOUT + 2
            steps = {driver: -0.1, firmware: 0.09}
            part = make_part(i, steps, noise=0.005, driver_from=driver, seed=seed)
            new = tuple("1" if run < firmware else "2" for run in range(RUNS))
            ill = RUNS if i else ROLLOUT + 8
            values = [v * 0.9 if run >= ill else v for run, v in enumerate(part.values)]
            marks = {**part.marks, "firmware": new}
            fleet.append(replace(part, values=tuple(values), marks=marks))
        named = {(c.node, c.part) for c in list_worse(judge_histories(fleet, low_is_bad=True))}
        healthy, bad = healthy + len(named - {("n0", "gpu0")}), bad + (("n0", "gpu0") in named)

    assert healthy <= 4  # of 636
    assert bad == 4


def test_marks_that_all_took_at_once_are_one_rollout_that_has_both_names() -> None:
    fleet = [
        replace(part, marks={**part.marks, "firmware": part.marks["driver"]})
        for i in range(80)
        for part in [make_part(i, {ROLLOUT: 0.03}, noise=0.002, driver_from=ROLLOUT)]
    ]

    (shared,) = judge_histories(fleet, low_is_bad=False).shared

    assert describe_shared(shared) == (
        "rollout: 80 of 80 parts with driver 550 to 560 and firmware 550 to 560 became 3 % worse: "
        "not a fault of the parts"
    )
