"""Who is missing when nobody moves: never one of those that wait."""

from __future__ import annotations

import os
import signal
from random import Random

import pytest

from hpcverify_checks.collectives.hangs import (
    SILENT_SECONDS,
    HangWatch,
    Heartbeat,
)
from tests.checks.collectives.launched import launch_nodes
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.system

ENDLESS = {
    "operations": ("all_reduce",),
    "sizes": (4096,) * 500,
    "seconds": 10 * PATIENCE_S,
    "timeout": 5 * PATIENCE_S,
}
TIMEOUT = 30.0
LONG = 21.0
"""Without any progress: as long as a rank may be at its own work."""


def watch(*heartbeats: Heartbeat) -> HangWatch:
    """Let ranks come to where they are at time 0, and stay there."""
    seen = HangWatch(0.0, TIMEOUT)
    for at in (0.0, LONG):
        seen.hear(dict(enumerate(heartbeats)), at)
    return seen


WAITING, WORKING = Heartbeat(7, "S"), Heartbeat(6, "R")


def test_a_rank_at_its_own_work_is_missing_where_others_wait() -> None:
    found = watch(WAITING, WORKING, WAITING, WAITING).find_missing(LONG)

    assert list(found) == [1]
    assert "own work" in found[1]


def test_a_stopped_rank_is_missing_wherever_it_was_stopped() -> None:
    for position in (6, 7):
        found = watch(WAITING, WAITING, Heartbeat(position, "T"), WAITING).find_missing(LONG)

        assert found == {2: "is stopped (state T)"}


def test_the_patience_of_the_ranks_does_not_decide_when_one_is_missing() -> None:
    patient = HangWatch(0.0, 600.0)
    for at in (0.0, LONG):
        patient.hear({0: WAITING, 1: WORKING, 2: WAITING}, at)

    assert list(patient.find_missing(LONG)) == [1]


def test_a_rank_that_is_stopped_now_and_then_is_not_missing() -> None:
    seen = watch(WAITING, WAITING, WAITING)
    seen.hear({1: Heartbeat(7, "T")}, LONG)

    assert seen.find_missing(LONG + 1) == {}


def test_a_rank_whose_launcher_fell_silent_is_missing_and_not_those_that_wait() -> None:
    seen = watch(WAITING, WAITING, WAITING)
    now = LONG + SILENT_SECONDS + 1
    seen.hear({0: WAITING, 2: WAITING}, now)

    assert list(seen.find_missing(now)) == [1]


def test_nobody_is_missing_while_any_rank_moves() -> None:
    seen = watch(WAITING, WORKING, WAITING)
    seen.hear({2: Heartbeat(9, "S")}, LONG)

    assert seen.find_missing(LONG + 1) == {}


def test_nobody_is_missing_where_all_wait() -> None:
    assert watch(WAITING, WAITING, Heartbeat(9, "S")).find_missing(LONG) == {}


def test_most_ranks_are_never_missing() -> None:
    """Who hears of few others is cut off itself."""
    assert watch(WAITING, WORKING, WORKING).find_missing(LONG) == {}
    seen = watch(*[WAITING] * 4)
    now = LONG + SILENT_SECONDS + 1
    seen.hear({0: WAITING}, now)
    assert seen.find_missing(now) == {}


def test_a_rank_that_has_reported_is_not_missing() -> None:
    assert watch(WAITING, WORKING, WAITING).find_missing(LONG, done=[1]) == {}


def test_nobody_is_missing_because_this_node_stood_still() -> None:
    """As a virtual machine that is moved: the words of the others wait in its sockets."""
    seen = HangWatch(0.0, TIMEOUT)
    seen.hear({0: WAITING, 1: WAITING}, 0.0)
    now = 10 * SILENT_SECONDS
    seen.look(now)
    seen.hear({0: WAITING}, now)
    seen.hear({1: Heartbeat(7, "T")}, 1.0)
    assert seen.find_missing(now) == {}

    for _ in range(int(SILENT_SECONDS) + 1):
        now += 1
        seen.look(now)
        seen.hear({0: WAITING}, now)
    assert list(seen.find_missing(now)) == [1]


def test_ranks_that_go_on_at_any_speed_are_never_missing() -> None:
    for seed in range(200):
        random = Random(seed)  # noqa: S311 - no secret
        seen, now = HangWatch(0.0, TIMEOUT), 0.0
        positions = [0] * random.choice((2, 4, 9))
        while min(positions) < 20:
            now += 1.0
            # Whoever works may go on; whoever waits goes on once all have come.
            for rank, position in enumerate(positions):
                if position % 2 == 0 and random.random() < 0.6:
                    positions[rank] += 1
            if len(set(positions)) == 1 and positions[0] % 2:
                positions = [position + 1 for position in positions]
            seen.hear({r: Heartbeat(p, "R") for r, p in enumerate(positions)}, now)

            assert seen.find_missing(now) == {}, seed


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
def test_a_rank_that_is_stopped_or_killed_is_named_alone_before_the_others_lose_patience(
    number: signal.Signals,
) -> None:
    with launch_nodes(3, **ENDLESS) as launchers:
        os.kill(launchers[1].await_measuring(), number)
        run, _ = launchers[0].read_result()

    assert run
    assert run.missing == (1,)
    assert run.reasons[1].startswith("is stopped (state T)") or "SIGKILL" in run.reasons[1]


def test_a_node_that_falls_silent_is_named_alone_before_the_others_lose_patience() -> None:
    with launch_nodes(3, **ENDLESS) as launchers:
        launchers[2].await_measuring()
        launchers[2].end()
        run, _ = launchers[0].read_result()

    assert run
    assert run.missing == (2,)


def test_if_the_node_of_rank_0_is_lost_its_stand_in_says_so_and_accuses_nobody_else() -> None:
    with launch_nodes(3, **ENDLESS) as launchers:
        launchers[0].await_measuring()
        launchers[0].end()
        run, _ = launchers[1].read_result()
        other, fault = launchers[2].read_result()

    assert run
    assert run.missing == (0,)
    assert run.ranks[0].node == "n0"
    assert other is None
    assert "the node of rank 0, n0, does not answer any more" in fault
