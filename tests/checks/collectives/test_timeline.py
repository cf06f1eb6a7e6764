"""Equal steps and transfers of real ranks, and who is late in them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from threading import Event, Thread

import pytest

from hpcverify.isolation.stragglers import find_stragglers
from hpcverify.records.collectives import RankSteps, Straggler
from hpcverify_checks.collectives.timeline import (
    MIN_STEPS,
    ROUNDS_IN_BLOCK,
    Timeline,
    Transfer,
    choose_distances,
    join_transfers,
)
from tests.checks.collectives.launched import Launcher, launch_here, launch_nodes

pytestmark = pytest.mark.system


@pytest.mark.parametrize(
    ("nodes", "distances"),
    [
        ("a", []),
        ("ab", []),
        ("abc", [1, 2]),
        ("aaa", [1, 2]),
        ("aabb", []),
        ("aabbcc", [2, 4]),
        ("abcd", [1, 3]),
        ("abcdefgh", [1, 2, 6, 7]),
    ],
)
def test_each_rank_sends_to_several_other_nodes_or_to_none(
    nodes: str, distances: list[int]
) -> None:
    assert choose_distances(nodes) == distances


def test_a_transfer_takes_from_when_both_were_there_to_the_receivers_end() -> None:
    lines = {
        rank: Timeline(
            RankSteps(rank, (), ()), (Transfer(1, (10.0 + rank, 20.0), (10.5 + rank, 20.5 + rank)),)
        )
        for rank in range(3)
    }

    found = {(one.sender, one.receiver): one.times for one in join_transfers(lines)}

    assert found == {(2, 0): (0.0, 0.5), (0, 1): (0.5, 1.5), (1, 2): (0.5, 2.5)}


def test_ranks_leave_their_steps_and_transfers_by_one_clock() -> None:
    run = launch_here(3, operations=("all_reduce",))

    assert [one.rank for one in run.steps] == [0, 1, 2]
    assert {(one.sender, one.receiver) for one in run.transfers} == {
        (a, b) for a in range(3) for b in range(3) if a != b
    }
    assert all(len(one.ends) >= MIN_STEPS for one in run.steps)
    assert all(len(one.times) >= ROUNDS_IN_BLOCK for one in run.transfers)
    for one in run.steps:
        # Nobody has the result before the last arrives, by clocks that agree.
        for i, end in enumerate(one.ends):
            last = max(other.arrivals[i] - other.clock_error for other in run.steps)
            assert end + one.clock_error >= last


STOP_SECONDS, GO_SECONDS = 0.15, 0.005
TRIES = 4
"""On a machine so busy that every rank waits for a CPU, nobody stands out."""


@contextmanager
def slow_down(rank: Launcher) -> Generator[None]:
    """Stop a rank most of the time, as a CPU that others use does."""
    over = Event()

    def act() -> None:
        process = os.pidfd_open(rank.await_measuring())
        with suppress(ProcessLookupError):  # it is done
            while not over.wait(GO_SECONDS):
                signal.pidfd_send_signal(process, signal.SIGSTOP)
                time.sleep(STOP_SECONDS)
                signal.pidfd_send_signal(process, signal.SIGCONT)
        os.close(process)

    thread = Thread(target=act)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_a_rank_that_gets_little_of_its_cpu_is_named_and_no_other() -> None:
    found: list[Straggler] = []
    for _ in range(TRIES):
        with launch_nodes(3, operations=("all_reduce",)) as launchers, slow_down(launchers[1]):
            run, fault = launchers[0].read_result()
        assert run, fault
        assert not run.missing
        found = [*find_stragglers(run.ranks, run.steps, run.transfers)]
        assert {one.rank for one in found} <= {1}
        if found:
            break

    assert [one.how for one in found] == ["arrives_late"]
    assert found[0].gain > 0  # how much depends on what else the machine does
