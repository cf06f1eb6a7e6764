"""A soak begins for all devices at once, and what they did is kept."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from hpcverify_checks.exact.soak import StretchResult, plan_stretches
from hpcverify_checks.ranks.board import FolderBoard
from hpcverify_checks.ranks.rendezvous import announce_failure
from hpcverify_checks.thermal import plan
from hpcverify_checks.thermal.plan import LoadRecord, Meter

PERIODS = (0.5, 0.05, 0.005)


def test_devices_that_are_ready_at_different_times_begin_at_the_same(tmp_path: Path) -> None:
    begins: dict[int, float] = {}

    def device(rank: int, ready: float) -> None:
        begins[rank] = plan.wait_for_all(FolderBoard(tmp_path), rank, range(3), lambda: ready)

    threads = [threading.Thread(target=device, args=(i, 10.0 + i)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(begins.values()) == {12.0 + plan.SETTLE_SECONDS}


def test_a_device_that_never_comes_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    times = iter([5.0, 5.0, 5.0, 5.0 + plan.READY_TIMEOUT_SECONDS])
    begin = plan.wait_for_all(FolderBoard(tmp_path), 0, [0, 1], lambda: next(times))
    assert begin == 5.0 + plan.READY_TIMEOUT_SECONDS + plan.SETTLE_SECONDS


def test_a_device_that_said_it_failed_is_not_waited_for_at_all(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="ECC"), announce_failure(FolderBoard(tmp_path), 1):
        raise RuntimeError("CUDA error: uncorrectable ECC error encountered")

    assert (
        plan.wait_for_all(FolderBoard(tmp_path), 0, [0, 1], lambda: 5.0)
        == 5.0 + plan.SETTLE_SECONDS
    )


def test_an_account_is_read_as_it_was_left(tmp_path: Path) -> None:
    account = LoadRecord((StretchResult(0.0, 1.0, 2.0, 3, 3e9, 0),))
    assert plan.read_record(FolderBoard(tmp_path), 4) is None
    plan.write_record(FolderBoard(tmp_path), 4, account)
    assert plan.read_record(FolderBoard(tmp_path), 4) == account
    assert [p.name for p in tmp_path.iterdir()] == ["record4"]


def test_the_rate_is_that_of_steady_load_alone() -> None:
    account = LoadRecord(
        (
            StretchResult(0.0, 0.0, 10.0, 1, 1e12, 0),
            StretchResult(0.5, 10.0, 20.0, 1, 4e11, 0, 20),
            StretchResult(0.0, 20.0, 30.0, 1, 2e12, 0),
        )
    )
    assert account.rate == pytest.approx(1.5e11)
    assert (account.start, account.end) == (0, 30)


def test_means_of_hours_are_of_what_the_sampler_kept_whole() -> None:
    table = plan_stretches(0.0, 4 * 3600.0, 0.2, PERIODS)
    account = LoadRecord(tuple(StretchResult(s.period, s.start, s.end, 1, 1.0, 0) for s in table))
    [last] = account.recent
    assert (last.began, last.ended) == (table[-1].start, table[-1].end)


def test_a_meter_gives_rates_by_the_second_and_forgets_what_was_between() -> None:
    meter = Meter(1.0)
    for begin in (0.0, 100.0):
        meter.begin(begin)
        for quarter in range(1, 9):
            meter.add(begin + quarter / 4, 1e9)
    assert list(meter.t) == [1.0, 2.0, 101.0, 102.0]
    assert list(meter.rates) == pytest.approx([4.0] * 4)
