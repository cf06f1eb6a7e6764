"""Thinning keeps what one looks for."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hpcverify.check import Sample
from hpcverify.telemetry.thinning import build_series, thin

NUMBERS = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=400)


@given(NUMBERS, st.integers(4, 50))
def test_no_spike_and_no_end_is_lost(values: list[float], points: int) -> None:
    t = [float(i) for i in range(len(values))]
    times, kept = thin(t, values, points)
    assert len(kept) <= max(points, 4)
    assert (min(kept), max(kept)) == (min(values), max(values))
    assert (times[0], times[-1]) == (t[0], t[-1])
    assert times == sorted(set(times))
    assert all(values[int(moment)] == v for moment, v in zip(times, kept, strict=True))


def test_a_series_is_timed_from_the_start_of_the_check() -> None:
    samples = [Sample("clock", 1.0, "MHz", "cpu", 100.0 + i) for i in range(3)]
    series = build_series(samples, 99.0)
    assert series.t == (1.0, 2.0, 3.0)
    assert (series.name, series.unit, series.part_id) == ("clock", "MHz", "cpu")
