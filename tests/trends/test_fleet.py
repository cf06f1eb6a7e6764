"""A change of a part is told from one of many parts, and one that is gone is none."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from itertools import accumulate
from statistics import median

import pytest

from hpcverify.model import Verdict
from hpcverify.trends.fleet import (
    PartChange,
    TrendJudgement,
    build_past,
    describe_shared,
    find_peaks,
    format_crossing,
    judge_histories,
)
from hpcverify.trends.levels import PartHistory
from tests.peers.fleets import draw_heavy_tailed, read_longhorn

DAY = 86400.0
RUNS = 30


def make_part(
    i: int,
    steps: Mapping[int, float] | None = None,
    *,
    driver_from: int = RUNS,
    firmware_from: int = RUNS,
    per_run: float = 0.0,
    noise: float = 0.0015,
    low: bool = False,
) -> PartHistory:
    """Make one of four parts of a node, with a run a day: *steps* by their run, new drivers."""
    rng = random.Random(i)
    levels = accumulate((steps or {}).get(run, 0.0) + per_run for run in range(RUNS))
    values = [100 * (1 + level) * rng.gauss(1, noise) for level in levels]
    return PartHistory(
        node=f"n{i // 4}",
        part=f"gpu{i % 4}",
        times=tuple((20000.9 + run) * DAY for run in range(RUNS)),
        values=tuple(10_000 / value for value in values) if low else tuple(values),
        marks={
            "driver": tuple("550" if run < driver_from else "560" for run in range(RUNS)),
            "firmware": tuple("F1" if run < firmware_from else "F2" for run in range(RUNS)),
        },
    )


def judge(
    fleet: list[PartHistory], *, low: bool = False, limit: float | None = None
) -> TrendJudgement:
    return judge_histories(build_past(fleet), low_is_bad=low, find_limit=lambda *_: limit)


def list_worse(judged: TrendJudgement) -> list[PartChange]:
    return [change for change in judged.changes if change.size > 0]


@pytest.mark.parametrize("low", [False, True])
@pytest.mark.parametrize("noise", [0.0015, 0.003])
def test_the_one_part_that_changed_is_named(low: bool, noise: float) -> None:  # noqa: FBT001 - a case
    fleet = [make_part(i, {20: 0.02} if i == 7 else None, low=low, noise=noise) for i in range(100)]

    judged = judge(fleet, low=low)

    (change,) = judged.changes
    assert (change.node, change.part, change.kind) == ("n1", "gpu3", "step")
    assert (change.verdict, judged.shared) == (Verdict.WARN, ())
    assert change.size == pytest.approx(0.02, abs=0.004)
    assert change.time == pytest.approx(20020, abs=1)


@pytest.mark.parametrize(("after", "named"), [(2, False), (3, True), (9, True)])
def test_a_step_is_named_after_three_runs(after: int, named: bool) -> None:  # noqa: FBT001 - a case
    fleet = [make_part(i, {RUNS - after: 0.03} if i == 7 else None) for i in range(100)]
    assert bool(judge(fleet).changes) is named


def test_a_change_that_is_gone_or_for_the_better_is_no_warning() -> None:
    fleet = [make_part(i, {15: 0.02, 22: -0.02} if i == 7 else None) for i in range(40)]
    assert list_worse(judge(fleet)) == []
    (change,) = judge([make_part(i, {20: -0.02} if i == 7 else None) for i in range(40)]).changes
    assert (change.verdict, change.size < 0) == (Verdict.PASS, True)


@pytest.mark.parametrize("size", [0.03, -0.03])
@pytest.mark.parametrize("days", [1, 8])
@pytest.mark.parametrize("delay", [0, 4])
@pytest.mark.parametrize("marked", [True, False])
def test_what_a_part_loses_with_a_change_of_many_or_after_it_is_seen(
    size: float,
    days: int,
    delay: int,
    marked: bool,  # noqa: FBT001 - a case
) -> None:
    ill = {(i // 4, i % 4) for i in (3, 50, 101)}
    fleet = []
    for i in range(160):
        begin = 15 + (i // 4) % days if marked else 15
        steps = {begin: size}
        if (i // 4, i % 4) in ill:
            steps[begin + delay] = steps.get(begin + delay, 0.0) + 0.02
        fleet.append(make_part(i, steps, driver_from=begin if marked else RUNS))

    judged = judge(fleet)

    assert {(int(c.node[1:]), int(c.part[3:])) for c in list_worse(judged)} == ill
    (shared,) = judged.shared
    assert shared.size == pytest.approx(size, abs=0.004)
    side = "worse" if size > 0 else "better"
    if marked:
        assert shared.changed > 0.9 * shared.compared == 0.9 * 160
        begins = f"rollout: {shared.changed} of 160 parts with driver 550 to 560 became 3"
        assert describe_shared(shared).startswith(begins)
    else:
        assert describe_shared(shared).startswith("the median of 160 parts became 3")
    assert side in describe_shared(shared)


@pytest.mark.parametrize("gap", [0, 1, 4])
def test_a_driver_and_a_firmware_of_one_week_are_told_and_hide_no_part(gap: int) -> None:
    fleet = []
    for i in range(120):
        steps = {15: 0.03, 15 + gap + 5: 0.02 if i == 7 else 0.0}
        steps[15 + gap] = steps.get(15 + gap, 0.0) + 0.02 * (gap > 0)
        fleet.append(make_part(i, steps, driver_from=15, firmware_from=15 + gap))

    judged = judge(fleet)

    assert [(c.node, c.part) for c in list_worse(judged)] == [("n1", "gpu3")]
    assert sum(shared.size for shared in judged.shared) == pytest.approx(
        0.03 + 0.02 * (gap > 0), abs=0.005
    )
    assert len(judged.shared) == (2 if gap == 4 else 1)
    if gap < 4:
        assert "driver 550 to 560 and firmware F1 to F2" in describe_shared(judged.shared[0])


@pytest.mark.parametrize("low", [False, True])
def test_a_fleet_that_drifts_is_one_line_and_the_part_that_drifts_more_is_named(
    low: bool,  # noqa: FBT001 - a case
) -> None:
    fleet = [make_part(i, per_run=0.003 if i == 7 else 0.001, low=low) for i in range(100)]

    judged = judge(fleet, low=low)

    assert [(c.node, c.part, c.kind) for c in judged.changes] == [("n1", "gpu3", "trend")]
    (shared,) = judged.shared
    assert describe_shared(shared).endswith(
        "worse in a trend until 2024-11-03. Fix: check what they share, such as cooling or software"
    )


@pytest.mark.parametrize(("parts", "why"), [(1, ", which too few other parts have"), (80, "")])
def test_a_driver_beside_a_step_is_told_with_it(parts: int, why: str) -> None:
    fleet = [
        make_part(
            i, {20: 0.02} if i == 7 else None, driver_from=20 if i == 7 or parts > 1 else RUNS
        )
        for i in range(80)
    ]
    (change,) = judge(fleet).changes
    assert (change.node, change.why) == ("n1", f"with driver 550 to 560{why}")


def test_nothing_is_a_trend_before_twenty_days() -> None:
    def cut(history: PartHistory, runs: int) -> PartHistory:
        marks = {field: seen[:runs] for field, seen in history.marks.items()}
        times, values = history.times[:runs], history.values[:runs]
        return PartHistory(
            node=history.node, part=history.part, times=times, values=values, marks=marks
        )

    fleet = [make_part(i, per_run=0.01 if i == 7 else 0.0) for i in range(40)]
    kinds = [[c.kind for c in judge([cut(h, runs) for h in fleet]).changes] for runs in (19, 20)]
    assert kinds == [["step"], ["trend"]]


def test_a_part_that_wears_is_warned_of_before_it_crosses_its_limit() -> None:
    fleet = [make_part(i, per_run=0.0009 if i == 7 else 0.0) for i in range(40)]

    (change,) = judge(fleet, limit=104.0).changes

    assert (change.node, change.kind) == ("n1", "trend")
    assert change.crossing is not None
    truth = 20000 + 4.0 / 0.09
    assert change.crossing.earliest <= truth <= (change.crossing.latest or 1e9)
    assert format_crossing(change.crossing).startswith("crosses its limit about 2024-1")


def test_runs_whose_median_is_zero_have_no_peaks() -> None:
    assert find_peaks([[0.0, 0.0, 1.0, 0.0], [1.0, 1.0, 2.0, 1.0]]).tops == [1.0]


@pytest.mark.parametrize("kind", ["normal", "noisy", "tails", "outliers", "busy nodes", "steps"])
def test_healthy_fleets_change_in_nothing(kind: str) -> None:
    for seed in range(3):
        rng = random.Random(seed)
        busy = {(node, run) for node in range(40) for run in range(RUNS) if rng.random() < 0.05}
        draws: dict[str, Callable[[tuple[int, int]], float]] = {
            "normal": lambda _: rng.gauss(0, 0.003),  # noqa: B023 - called at once
            "noisy": lambda _: rng.gauss(0, 0.02),  # noqa: B023
            "tails": lambda _: 0.005 * draw_heavy_tailed(rng),  # noqa: B023
            "outliers": lambda _: rng.gauss(0, 0.001) + 0.2 * (rng.random() < 0.03),  # noqa: B023
            "busy nodes": lambda at: 0.001 * rng.random() + 0.1 * (at in busy),  # noqa: B023
            "steps": lambda _: 0.025 * rng.choice([0, 0, 0, 1]),  # noqa: B023
        }
        fleet = [
            PartHistory(
                node=f"n{i // 4}",
                part=f"gpu{i % 4}",
                times=tuple((20000.9 + run) * DAY for run in range(RUNS)),
                values=tuple(100 * (1 + draws[kind]((i // 4, run))) for run in range(RUNS)),
            )
            for i in range(160)
        ]
        judged = judge(fleet)
        assert (judged.changes, judged.shared) == ((), ()), seed


def read_quiet_gpus() -> list[list[float]]:
    """Read 20 runs of each GPU of Longhorn's SGEMM that is what it was."""
    series = []
    for runs in read_longhorn("sgemm"):
        values = [value for _, value in sorted(zip(runs.times, runs.values, strict=True))][:20]
        quarters = (median(values[i : i + 5]) for i in range(0, 20, 5) if len(values) == 20)
        if 0 < max((abs(q / median(values) - 1) for q in quarters), default=0) < 0.003:
            series.append(values)
    return series


@pytest.mark.parametrize("step", [0.0, 0.01])
def test_a_step_of_1_percent_is_found_within_5_runs_on_real_gpus(step: float) -> None:
    gpus = read_quiet_gpus()
    named = 0
    for ill in range(0, len(gpus), 8):
        fleet = [
            PartHistory(
                node=f"n{i}",
                part="gpu0",
                times=tuple((20000.9 + run) * DAY for run in range(20)),
                values=tuple(
                    v * (1 + step * (i == ill and run >= 15)) for run, v in enumerate(values)
                ),
            )
            for i, values in enumerate(gpus)
        ]
        changes = list_worse(judge(fleet))
        named += [change.node for change in changes] == [f"n{ill}"]
        assert len(changes) <= (step > 0)

    assert len(gpus) > 100
    assert named >= 0.85 * len(range(0, len(gpus), 8)) or not step


def test_values_around_zero_have_no_step() -> None:
    fleet = [make_part(i) for i in range(8)]
    zero = [
        PartHistory(node=h.node, part=h.part, times=h.times, values=(0.0,) * 15 + (5.0,) * 15)
        for h in fleet
    ]
    assert judge(zero).changes == ()
