"""
Proofs that a core's floating-point answer is right, by integers and decimals.

IEEE 754 has one right quotient and one right square root, those that are nearest.
Powers, exponentials and logarithms have no such rule; the libraries state at most 1 ULP
(glibc manual, "Known Maximum Errors in Math Functions"; SLEEF for torch's vectors), so
what is further off than `MAX_ULPS` is no rounding.
"""

from __future__ import annotations

import math
from decimal import Context, Decimal
from fractions import Fraction

MAX_ULPS = 4
EXACT = Context(prec=50)


def is_quotient(a: float, b: float, quotient: float) -> bool:
    """Whether *quotient* is the double nearest to *a* / *b*; finite, and b not 0."""
    try:
        return float(Fraction(a) / Fraction(b)) == quotient  # divides integers
    except OverflowError:
        return math.isinf(quotient)


def is_root(x: float, root: float) -> bool:
    """Whether *root* is the double nearest to the square root of the finite *x* >= 0."""
    if x == 0:
        return root == 0
    if not (math.isfinite(root) and root > 0):
        return False
    here = Fraction(root)
    below, above = (Fraction(math.nextafter(root, to)) for to in (0.0, math.inf))
    return ((below + here) / 2) ** 2 < Fraction(x) < ((here + above) / 2) ** 2


def is_power(base: float, exponent: float, power: float) -> bool:
    """Whether *power* is base^exponent but for a few ULPs; finite, base > 0."""
    return _is_near(EXACT.power(Decimal(base), Decimal(exponent)), power)


def is_exponential(x: float, value: float) -> bool:
    """Whether *value* is e^x but for a few ULPs; finite."""
    return _is_near(EXACT.exp(Decimal(x)), value)


def is_logarithm(x: float, value: float) -> bool:
    """Whether *value* is the natural logarithm of *x* > 0 but for a few ULPs."""
    return _is_near(EXACT.ln(Decimal(x)), value)


def _is_near(right: Decimal, value: float) -> bool:
    if not math.isfinite(value):
        return False
    return abs(Decimal(value) - right) <= MAX_ULPS * Decimal(math.ulp(float(right)))
