"""A node is accused of jobs that died there only if their users lose few elsewhere."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable

import pytest

from hpcverify.reliability.job_endings import JobEnding, judge_job_endings

DEATHS = (0.0, 0.0, 0.02, 0.1, 0.3, 0.9, 1.0)
"""What share of the jobs of a user die young; some have a bug."""


def simulate(
    seed: int, *, nodes: int = 100, users: int = 40, bad: Collection[int] = (), outage: bool = False
) -> list[JobEnding]:
    """Jobs of a day, some in arrays; a *bad* node gets more of them, and they all die."""
    draw = random.Random(seed)  # noqa: S311 - a simulation
    endings: list[JobEnding] = []
    for user in range(users):
        share = draw.choice(DEATHS)
        for _ in range(int(draw.lognormvariate(2, 1))):
            node = draw.randrange(nodes)
            if bad and draw.random() < 0.15:
                node = draw.choice(list(bad))
            dies = draw.random() < share or node in bad or (outage and draw.random() < 0.05)
            endings += [JobEnding(user, f"n{node}", dies)] * draw.choice([1, 1, 20])
    return endings


def name_accused(endings: Iterable[JobEnding]) -> list[str]:
    return [hole.node for hole in judge_job_endings(endings).black_holes]


@pytest.mark.parametrize("outage", [False, True])
@pytest.mark.parametrize(("nodes", "users"), [(100, 40), (8, 30), (100, 200)])
def test_healthy_nodes_are_not_accused_of_what_users_do(
    nodes: int,
    users: int,
    outage: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    fleets = (simulate(seed, nodes=nodes, users=users, outage=outage) for seed in range(20))
    assert [name_accused(fleet) for fleet in fleets] == [[]] * 20


@pytest.mark.parametrize("seed", range(10))
def test_a_node_on_which_everybodys_jobs_die_is_named_and_nobody_else(seed: int) -> None:
    assert name_accused(simulate(seed, bad=[7])) == ["n7"]


def test_a_thousand_jobs_of_one_user_are_one_witness() -> None:
    others = [JobEnding(user, f"n{user}", died=False) for user in range(50)]
    assert name_accused([*others, *[JobEnding(99, "n1", died=True)] * 1000]) == []


def test_users_who_lose_their_jobs_everywhere_are_no_witnesses() -> None:
    everywhere = [JobEnding(user, f"n{n}", died=True) for user in range(5) for n in range(10)]
    assert name_accused(everywhere) == []


def test_if_jobs_die_on_many_nodes_nobody_is_accused() -> None:
    bad = range(10)
    judged = judge_job_endings(simulate(1, users=400, bad=bad))
    assert judged.black_holes == ()
    assert judged.widespread >= len(bad) - 2


def test_no_jobs_say_nothing() -> None:
    assert judge_job_endings([]).black_holes == ()


def test_users_who_had_jobs_on_that_node_alone_are_no_witnesses() -> None:
    """A course of thirty with a bug on its own four nodes, or people who debug there."""
    well = [JobEnding(user, f"n{n}", died=False) for user in range(50) for n in range(10 + user)]
    course = [JobEnding(100 + user, f"n{user % 4}", died=True) for user in range(30)]
    assert name_accused(well + course) == []


@pytest.mark.parametrize(("idle", "accused"), [(5, []), (1, ["n0"])])
def test_what_dies_on_all_idle_nodes_at_one_time_is_not_their_doing(
    idle: int, accused: list[str]
) -> None:
    """A file system is away for ten minutes, while few of two hundred nodes are idle."""
    well = [
        JobEnding(user, f"n{node}", died=False, at=9000.0, began=600.0 * (node % 20))
        for user in range(10)
        for node in range(20 + user, 200, 20)
    ]
    lost = [
        JobEnding(user, f"n{node}", died=True, at=4210.0, began=4200.0)
        for user in range(10)
        for node in range(idle)
    ]

    assert name_accused(well + lost) == accused


def test_a_node_is_named_though_a_buggy_array_dies_on_all_at_the_same_time() -> None:
    well = [JobEnding(user, f"n{n}", died=False) for user in range(10) for n in range(50)]
    hole = [JobEnding(user, "n77", died=True) for user in range(6)]
    array = [JobEnding(99, f"n{n}", died=True) for n in range(80)]
    assert name_accused(well + hole + array) == ["n77"]
