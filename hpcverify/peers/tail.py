"""
How far chance takes values in a fleet: as far as in a normal distribution, or farther.

Bad parts lie on the worse side only, so the better side shows what healthy ones do. If Student's t
explains its distances clearly better than a normal distribution does, far values are common in
this fleet, and so they are on the worse side.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import Struct

from hpcverify.stats import compute_student_tail, find_student_score

FREEDOMS = (3, 4, 5, 7, 10, 16, 30)
MIN_RATIO = 4.0
"""Twice the logarithm of the ratio of the likelihoods: about 1 % of the normal fleets of 32 to
1,000 parts have as much by chance (200 of each size)."""
MIN_FITTED_VALUES, MAX_FITTED_VALUES = 10, 400
"""A longer list is thinned to the maximum in equal steps."""
SCALE_FIT_STEPS = 12
"""They find the scale to a percent."""


class StudentTail(Struct, frozen=True):
    """Student's t of a scale, in the unit of the values, and some degrees of freedom."""

    scale: float
    freedom: float

    def find_chance(self, distance: float, error: float = 0.0) -> float:
        """Find the chance that a healthy value, uncertain by *error*, is beyond *distance*."""
        scale = math.hypot(self.scale, error)
        return compute_student_tail(distance / scale, self.freedom) if scale else 0.0

    def find_distance(self, chance: float) -> float:
        """Find the distance that a healthy value is beyond with this *chance*."""
        return self.scale * find_student_score(chance, self.freedom)


class ExponentialTail(Struct, frozen=True):
    """The worse half of values that trail off on that side alone: an exponential distribution."""

    scale: float

    def find_chance(self, distance: float, error: float = 0.0) -> float:
        """Find the chance that a healthy value, uncertain by *error*, is beyond *distance*."""
        return math.exp(-distance / math.hypot(self.scale, error)) / 2

    def find_distance(self, chance: float) -> float:
        """Find the distance that a healthy value is beyond with this *chance*."""
        return -self.scale * math.log(2 * chance)


Tail = StudentTail | ExponentialTail


def find_heavy_tail(distances: Sequence[float]) -> StudentTail | None:
    """Find the tail of *distances* from the centre, none negative; None: like normal ones."""
    step = max(1.0, len(distances) / MAX_FITTED_VALUES)
    ordered = sorted(distances)
    squares = [ordered[int((i + 0.5) * step)] ** 2 for i in range(int(len(ordered) / step))]
    variance = sum(squares) / max(1, len(squares))
    if len(squares) < MIN_FITTED_VALUES or not variance:
        return None
    normal = -len(squares) / 2 * (math.log(2 * math.pi * variance) + 1)
    fits = [StudentTail(_fit_scale(squares, variance, freedom), freedom) for freedom in FREEDOMS]
    best = max(fits, key=lambda fit: _find_likelihood(squares, fit))
    return best if 2 * (_find_likelihood(squares, best) - normal) >= MIN_RATIO else None


def _fit_scale(squares: Sequence[float], variance: float, freedom: float) -> float:
    """Fit the likeliest scale to *squares* of distances, by expectation-maximization."""
    scale = variance
    for _ in range(SCALE_FIT_STEPS):
        weighted = (square / (freedom + square / scale) for square in squares)
        scale = (freedom + 1) * sum(weighted) / len(squares)
    return math.sqrt(scale)


def _find_likelihood(squares: Sequence[float], fit: StudentTail) -> float:
    freedom, scale = fit.freedom, fit.scale
    constant = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)
    constant -= math.log(freedom * math.pi) / 2 + math.log(scale)
    far = sum(math.log1p(square / (freedom * scale * scale)) for square in squares)
    return len(squares) * constant - (freedom + 1) / 2 * far
