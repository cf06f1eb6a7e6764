"""The proofs accept what IEEE 754 and the libraries promise, and nothing one bit beside it."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from hpcverify_checks.cpu_units.proofs import (
    MAX_ULPS,
    is_exponential,
    is_logarithm,
    is_power,
    is_quotient,
    is_root,
)

FINITE = st.floats(allow_nan=False, allow_infinity=False)
POSITIVE = st.floats(min_value=0, exclude_min=True, allow_infinity=False)


@given(FINITE, POSITIVE)
def test_only_the_nearest_double_is_a_quotient(a: float, b: float) -> None:
    quotient = a / b
    assert is_quotient(a, b, quotient)
    assert not is_quotient(a, b, math.nextafter(quotient, 1.5e-300))


@given(POSITIVE)
def test_only_the_nearest_double_is_a_root(x: float) -> None:
    root = math.sqrt(x)
    assert is_root(x, root)
    assert not is_root(x, math.nextafter(root, math.inf))
    assert not is_root(x, math.nextafter(root, 0))


@given(st.floats(0.01, 100), st.floats(-50, 50))
def test_a_function_may_be_off_by_a_few_ulps_and_no_more(x: float, y: float) -> None:
    right = math.pow(x, y), math.exp(y), math.log(x)
    wrong = [value + (MAX_ULPS + 2) * math.ulp(value) for value in right]
    assert is_power(x, y, right[0])
    assert is_exponential(y, right[1])
    assert is_logarithm(x, right[2])
    assert not is_power(x, y, wrong[0])
    assert not is_exponential(y, wrong[1])
    assert not is_logarithm(x, wrong[2])


def test_the_published_wrong_powers_are_refused() -> None:
    assert is_power(1.1, 53.0, 1.1**53)
    assert not is_power(1.1, 53.0, 0.0)
    assert not is_power(1.1, 3.0, 0.0)
    assert not is_power(1.1, 107.0, 32809.0)
