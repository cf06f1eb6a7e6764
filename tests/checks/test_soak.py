"""A soak is planned for all devices alike, begins for all at once, and is accounted."""

from __future__ import annotations

import math
import threading
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcverify_checks import _soak
from hpcverify_checks._soak import LoadRecord, Meter, StretchResult, plan_stretches

PERIODS = (0.5, 0.05, 0.005)


def test_waves_are_framed_by_steady_load() -> None:
    table = plan_stretches(100.0, 60.0, 0.2, PERIODS)
    assert [s.period for s in table] == [0.0, *PERIODS, 0.0]
    lengths = [s.end - s.start for s in table]
    assert lengths == pytest.approx([24, 4, 4, 4, 24])


@given(
    st.floats(0, 1e7),
    st.floats(0.1, 1e6),
    st.floats(0, 1),
    st.lists(st.floats(1e-3, 2), max_size=4),
)
def test_a_plan_fills_its_time_without_a_gap(
    start: float, seconds: float, share: float, periods: list[float]
) -> None:
    table = plan_stretches(start, seconds, share, periods)
    assert table[0].start == start
    assert table[-1].end == pytest.approx(start + seconds)
    assert all(a.end == b.start for a, b in pairwise(table))


@pytest.mark.parametrize(
    ("share", "periods", "expected"),
    [(0.0, PERIODS, [0.0, 0.0]), (0.5, (), [0.0, 0.0]), (1.0, (0.5,), [0.5])],
)
def test_a_soak_may_be_all_steady_or_all_waves(
    share: float, periods: tuple[float, ...], expected: list[float]
) -> None:
    assert [s.period for s in plan_stretches(0, 60, share, periods)] == expected


def test_hours_of_steady_load_are_cut_so_that_they_are_looked_at() -> None:
    table = plan_stretches(0.0, 4 * 3600.0, 0.2, PERIODS)
    longest = max(s.end - s.start for s in table if not s.period)
    assert 0 < longest <= _soak.MAX_STEADY_SECONDS


@given(st.floats(0, 1e7), st.floats(0, 1), st.sampled_from(PERIODS))
def test_the_edges_of_all_devices_fall_together(now: float, share: float, period: float) -> None:
    # Asked anywhere between the same two edges, all name the same one.
    number = math.floor(now / period)
    later = (number + 0.001 + 0.998 * share) * period
    assert _soak.find_next_edge(later, period) == (number + 1) * period


@given(st.floats(0, 1e7), st.sampled_from(PERIODS))
def test_the_next_edge_is_within_a_period(now: float, period: float) -> None:
    assert now - 1e-8 <= _soak.find_next_edge(now, period) <= now + period + 1e-8


def test_devices_that_are_ready_at_different_times_begin_at_the_same(tmp_path: Path) -> None:
    begins: dict[int, float] = {}

    def device(rank: int, ready: float) -> None:
        begins[rank] = _soak.wait_for_all(tmp_path, rank, range(3), lambda: ready)

    threads = [threading.Thread(target=device, args=(i, 10.0 + i)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(begins.values()) == {12.0 + _soak.SETTLE_SECONDS}


def test_a_device_that_never_comes_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    times = iter([5.0, 5.0, 5.0, 5.0 + _soak.READY_TIMEOUT_SECONDS])
    begin = _soak.wait_for_all(tmp_path, 0, [0, 1], lambda: next(times))
    assert begin == 5.0 + _soak.READY_TIMEOUT_SECONDS + _soak.SETTLE_SECONDS


def test_an_account_is_read_as_it_was_left(tmp_path: Path) -> None:
    account = LoadRecord((StretchResult(0.0, 1.0, 2.0, 3, 3e9, 0),))
    assert _soak.read_record(tmp_path, 4) is None
    _soak.write_record(tmp_path, 4, account)
    assert _soak.read_record(tmp_path, 4) == account
    assert [p.name for p in tmp_path.iterdir()] == ["account4.json"]


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
