"""
The statistics of all rooms: medians, percentiles, tails and bounds, each with its source.

Pure functions of numbers. They need no library, since `statistics` takes 8 ms to import and jobs
wait in the prolog.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import cache

CONFIDENCE = 0.95
CONFIDENCE_SCORE = 1.9599639845400536
"""The standard deviations of a normal distribution on either side that hold `CONFIDENCE`."""
RULE_OF_THREE = 3.0
"""No event in a time T excludes, at `CONFIDENCE`, a Poisson rate above 3 / T."""
MAD_SCALE = 1.4826
"""1 / 0.6745: makes the MAD of normal values their standard deviation (Hampel, JASA 69, 1974)."""
MEDIAN_ERROR = 1.2533
"""The standard error of the median of n normal values is 1.2533 sigma / sqrt(n): sqrt(pi / 2)."""


def median(values: Iterable[float]) -> float:
    """Return the median of *values*, of which there is at least one."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[middle]
    return (ordered[middle - 1] + ordered[middle]) / 2


def find_mad(values: Iterable[float], centre: float) -> float:
    """Return the median absolute deviation of *values* from *centre*, unscaled."""
    return median(abs(value - centre) for value in values)


def find_percentile(values: Iterable[float], share: float) -> float:
    """Find the nearest rank: the smallest of *values* that *share* of them do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def bisect(
    is_beyond: Callable[[float], bool], low: float, high: float, precision: float = 1e-15
) -> float:
    """Find where *is_beyond* becomes true from *low* (false) to *high*, up to *precision*."""
    while high - low > precision * high:
        middle = (low + high) / 2
        low, high = (low, middle) if is_beyond(middle) else (middle, high)
    return high


def compute_excluded_rate(seconds: float) -> float:
    """Compute the lowest Poisson rate, in events per hour, that *seconds* without one exclude."""
    return RULE_OF_THREE / seconds * 3600


def compute_poisson_chance(count: int, mean: float) -> float:
    """Compute the chance of *count* events or fewer, where *mean* are expected."""
    if mean <= 0:
        return 1.0
    terms = (k * math.log(mean) - mean - math.lgamma(k + 1) for k in range(count + 1))
    return sum(map(math.exp, terms))


def find_poisson_mean(count: int, chance: float) -> float:
    """Find the mean with which *count* events or fewer have this *chance* (Garwood 1936)."""
    ceiling = 10 + count + 10 * math.sqrt(count + 1)
    return bisect(lambda mean: compute_poisson_chance(count, mean) < chance, 0.0, ceiling)


def find_poisson_interval(count: int) -> tuple[float, float]:
    """Find the means between which *count* events are no surprise (Garwood 1936)."""
    tail = (1 - CONFIDENCE) / 2
    low = find_poisson_mean(count - 1, 1 - tail) if count else 0.0
    return low, find_poisson_mean(count, tail)


def bound_rate(events: int, tries: int) -> float:
    """Bound the rate per try by the exact Poisson bound at 95 % for *events* (0: rule of three)."""
    if tries <= 0:
        return 1.0
    return min(1.0, find_poisson_mean(events, 1 - CONFIDENCE) / tries)


def compute_binomial_tail(chances: Iterable[float], least: int) -> float:
    """Compute exactly the chance of at least *least* events with these *chances*."""
    exactly = [1.0]
    for chance in chances:
        exactly = [
            without * (1 - chance) + with_one * chance
            for without, with_one in zip([*exactly, 0.0], [0.0, *exactly], strict=True)
        ]
    return sum(exactly[least:])


def compute_fisher_tail(hits: int, tries: int, other_hits: int, other_tries: int) -> float:
    """Compute the chance of *hits* or more of *tries* (Fisher's exact test, 1935, one-sided)."""
    both = hits + other_hits
    whole = _count_log_ways(tries + other_tries, both)
    return sum(
        math.exp(_count_log_ways(tries, n) + _count_log_ways(other_tries, both - n) - whole)
        for n in range(hits, min(tries, both) + 1)
    )


def _count_log_ways(size: int, chosen: int) -> float:
    return math.lgamma(size + 1) - math.lgamma(chosen + 1) - math.lgamma(size - chosen + 1)


def compute_student_tail(score: float, freedom: float) -> float:
    """Return the chance of Student's t beyond *score* (Wallace, Ann. Math. Stat. 30, 1959)."""
    if math.isinf(score):
        return 0.0
    normal = math.sqrt(freedom * math.log1p(score * score / freedom))
    return math.erfc(normal * (8 * freedom + 1) / (8 * freedom + 3) / math.sqrt(2)) / 2


@cache
def find_student_score(chance: float, freedom: float) -> float:
    """Return the score that Student's t is beyond with this *chance*, to a thousandth."""
    high = 1.0
    while compute_student_tail(high, freedom) > chance:
        high *= 2
    return bisect(
        lambda score: compute_student_tail(score, freedom) <= chance, 0.0, high, precision=1e-3
    )


def expand_student_score(freedom: int) -> float:
    """Return the score of Student's t for `CONFIDENCE` (Cornish and Fisher 1937)."""
    z = CONFIDENCE_SCORE
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3
