"""Pairs take turns with all partners, and only a core that all bad pairs share is named."""

from __future__ import annotations

import threading
import time
from itertools import combinations

import pytest

from hpcverify_checks.cpu_units.sharing import (
    SHARED_UNITS,
    Semaphore,
    SharedLines,
    SharedUnit,
    find_common_core,
    pair_cores,
)
from hpcverify_checks.cpu_units.units import MODULUS
from hpcverify_checks.cpu_units.witnesses import CoreSet
from hpcverify_checks.node.cores import run_on_each


@pytest.mark.parametrize("count", [2, 3, 4, 7])
def test_each_two_cores_meet(count: int) -> None:
    met = {frozenset(pair) for turn in range(count) for pair in pair_cores(range(count), turn)}

    assert met == {frozenset(pair) for pair in combinations(range(count), 2)}


def test_a_lone_core_meets_nobody() -> None:
    assert pair_cores([5], 0) == []


@pytest.mark.parametrize(
    ("failed", "named"),
    [
        ({(0, 1): 1}, None),
        ({(0, 1): 1, (0, 2): 1, (1, 2): 0}, 0),
        ({(0, 1): 1, (0, 2): 0, (1, 2): 0}, None),
        ({(0, 1): 1, (0, 2): 1, (1, 2): 1}, None),
        ({(0, 1): 0, (0, 2): 1, (0, 3): 1, (1, 2): 1, (1, 3): 1, (2, 3): 0}, None),
    ],
)
def test_the_core_of_all_bad_pairs_is_named(
    failed: dict[tuple[int, int], int], named: int | None
) -> None:
    assert find_common_core(failed) == named


def test_witnesses_are_of_other_cores_and_of_all_sockets() -> None:
    physical = {n: (str(n // 8), str(n // 2)) for n in range(16)}
    cores = CoreSet(tuple(range(16)), physical, run_on_each)
    witnesses = cores.pick_witnesses(0, 1)

    assert witnesses[:2] == [0, 1]
    assert len({physical[core] for core in witnesses[1:]}) == len(witnesses) - 1
    assert {physical[core][0] for core in witnesses} == {"0", "1"}


@pytest.mark.parametrize("unit", SHARED_UNITS, ids=lambda unit: unit.name)
def test_two_threads_leave_the_words_that_are_expected(unit: SharedUnit) -> None:
    shared = SharedLines()
    other = threading.Thread(target=unit.work, args=(shared, 0))
    other.start()
    unit.work(shared, 1)
    other.join()
    even, odd = unit.compute_expected()

    assert {int(word) % MODULUS for word in shared.words[0::2]} == {even}
    assert {int(word) % MODULUS for word in shared.words[1::2]} == {odd}


def test_a_semaphore_counts() -> None:
    semaphore = Semaphore(0)
    for _ in range(3):
        semaphore.post()
    for _ in range(3):
        semaphore.wait()


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_clock_that_is_set_is_not_a_core_that_does_not_wake(
    monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    # Seen from the one that waits: its deadline is by the clock as it was before.
    now, semaphore, steps = time.time, Semaphore(0), iter([-hours * 3600.0])
    poster = threading.Timer(1.5 if hours > 0 else 0.0, semaphore.post)
    monkeypatch.setattr(time, "time", lambda: now() + next(steps, 0.0))
    poster.start()
    semaphore.wait()
    poster.join()


def test_who_waits_in_vain_is_not_left_waiting() -> None:
    with pytest.raises(TimeoutError):
        Semaphore(0, patience=1).wait()
