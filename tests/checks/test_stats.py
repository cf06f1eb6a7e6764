"""Percentiles are times that were measured; a rule of three says what was excluded."""

from __future__ import annotations

import pytest

from hpcverify_checks._stats import compute_excluded_rate, percentile


def test_a_percentile_is_one_of_the_values() -> None:
    values = [4.0, 1.0, 3.0, 2.0]
    assert [percentile(values, share) for share in (0.0, 0.5, 0.95)] == [1.0, 2.0, 4.0]


def test_three_times_the_inverse_of_a_time_is_excluded() -> None:
    assert compute_excluded_rate(3 * 3600) == pytest.approx(1.0)
    assert compute_excluded_rate(1.0) == pytest.approx(10800)
