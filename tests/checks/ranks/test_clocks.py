"""Clocks of two nodes, compared: the error must never exceed its bound."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from hpcverify_checks.ranks.clocks import (
    SAME_CLOCK,
    TOLERANCE,
    ClockComparison,
    ClockReading,
    RoundTrip,
)

Clock = Callable[[float], float]


def draw_reading(random: Random, start: float, own: Clock, other: Clock) -> ClockReading:
    """Make round trips with ways of unequal length, and queues on both."""
    trips, now = [], start
    for _ in range(16):
        there = 50e-6 * random.uniform(0.2, 2) + random.expovariate(1 / 200e-6)
        back = 50e-6 * random.uniform(0.2, 2) + random.expovariate(1 / 20e-6)
        trips.append(RoundTrip(own(now), other(now + there), own(now + there + back)))
        now += there + back
    return ClockReading.choose(trips)


@pytest.mark.parametrize("wander", [0.0, TOLERANCE])
def test_a_converted_time_is_never_further_from_the_truth_than_the_bound(wander: float) -> None:
    for seed in range(500):
        random = Random(seed)  # noqa: S311
        offset, drift = random.uniform(-1e6, 1e6), random.uniform(-100e-6, 100e-6)
        length = random.uniform(1, 300)

        def other(at: float) -> float:
            # The frequency changes at half time by *wander*.
            late = max(0.0, at - length / 2)  # noqa: B023 - used in this turn only
            return offset + at * (1 + drift) + wander * late  # noqa: B023

        compared = ClockComparison(
            draw_reading(random, 0.0, lambda at: at, other),
            draw_reading(random, length, lambda at: at, other),
        )
        for _ in range(20):
            at = random.uniform(0, length)
            assert abs(compared.convert(at) - other(at)) <= compared.bound_error() + 1e-9, seed


def test_the_shortest_round_trip_is_taken() -> None:
    reading = ClockReading.choose([RoundTrip(0.0, 100.9, 1.0), RoundTrip(2.0, 102.05, 2.1)])

    assert reading.offset == pytest.approx(100.0)
    assert reading.error == pytest.approx(0.05)


def test_drift_between_two_comparisons_is_taken_out() -> None:
    compared = ClockComparison(ClockReading(0.0, 10.0, 1e-6), ClockReading(100.0, 10.1, 2e-6))

    assert compared.convert(50.0) == pytest.approx(60.05)
    assert compared.bound_error() == pytest.approx(2e-6 + 50 * TOLERANCE)


def test_ranks_of_one_node_share_a_clock() -> None:
    assert SAME_CLOCK.convert(12.5) == 12.5
    assert SAME_CLOCK.bound_error() == 0.0
