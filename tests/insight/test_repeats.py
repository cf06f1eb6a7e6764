"""Who stands out twice by chance is not named; who does so for a reason is."""

from __future__ import annotations

import random
from datetime import date, timedelta

import pytest

from hpcverify.insight.judgement import FleetJudgement, JudgedOutlier
from hpcverify.insight.night import follow_up
from hpcverify.insight.repeats import list_repeats_by_chance
from hpcverify.model import Verdict

FIRST = date(2026, 11, 2)
METRIC = "gemm bf16.sustained"


def make_outlier(node: int, night: date) -> JudgedOutlier:
    """Make a slow node."""
    return JudgedOutlier(
        level="node",
        name=f"n{node}",
        node=f"n{node}",
        nodes=(f"n{node}",),
        suite="idle",
        metric=METRIC,
        verdict=Verdict.WARN,
        distance=0.04,
        since=night,
        last=night,
    )


def name_over_nights(slow: list[set[int]], nodes: int) -> list[set[str]]:
    """Name those who stand out on each night, if the nodes in *slow* do."""
    named: list[set[str]] = []
    before: FleetJudgement | None = None
    for count, some in enumerate(slow):
        night = FIRST + timedelta(days=count)
        last = {(f"n{node}", "idle"): night for node in range(nodes)}
        followed = follow_up(
            [make_outlier(node, night) for node in sorted(some)], before, last, night
        )
        by_chance = list_repeats_by_chance(
            followed, before.unconfirmed if before else (), {METRIC: nodes}
        )
        named.append({one.name for one in followed if one.nights > 1 and one not in by_chance})
        before = FleetJudgement(night=night, unconfirmed=tuple(followed))
    return named


@pytest.mark.parametrize("nodes", [64, 232, 1000])
@pytest.mark.parametrize("share", [0.03, 0.1])
def test_runs_that_are_slow_now_and_then_name_hardly_any_node(nodes: int, share: float) -> None:
    rng = random.Random(1)  # noqa: S311 - no secret
    slow = [{node for node in range(nodes) if rng.random() < share} for _ in range(100)]
    named = name_over_nights(slow, nodes)
    assert sum(map(bool, named)) <= 3


@pytest.mark.parametrize("bad", [{3}, {3, 4, 5}, set(range(20))])
def test_bad_nodes_are_named_on_their_second_night(bad: set[int]) -> None:
    assert name_over_nights([bad, bad], 232)[1] == {f"n{node}" for node in bad}
    assert name_over_nights([bad | {99}, bad | {88}], 232)[1] == {f"n{node}" for node in bad}


def test_new_bad_nodes_keep_no_other_one_from_being_named() -> None:
    assert name_over_nights([{3}, {3, 20, 21, 22, 23, 24}], 64)[1] == {"n3"}


def test_a_bad_node_is_named_in_the_end_where_others_stand_out_each_night() -> None:
    rng = random.Random(1)  # noqa: S311 - no secret
    slow = [{3} | {node for node in range(4, 64) if rng.random() < 0.05} for _ in range(6)]
    assert "n3" in name_over_nights(slow, 64)[-1]
