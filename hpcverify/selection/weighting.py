"""
Which weights of the traits count at a site: by published data, by its own past, or none.

The prior's count until there are enough outages; then those that were fitted to the site's
own. Both are held against outages of the site that the fit has not seen: what explains
these worse than chance is not used.

Each outage is compared with some nodes that were in service at that moment and went on
(nested case-control sampling, Thomas 1977): which of them failed is what Cox's partial
likelihood explains, and the fleet's own rate, which rises and falls, cancels out. The
weights are those of the greatest posterior, around the prior's.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from enum import StrEnum
from math import exp, log
from operator import mul
from random import Random

from msgspec import Struct

from hpcverify.reliability.outages import Outage
from hpcverify.selection.outages import FleetHistory
from hpcverify.selection.traits import PRIOR_WEIGHTS, FleetState, Traits, combine
from hpcverify.units import format_count

CONTROLS = 5
"""Nodes that went on, for each that failed."""
MAX_CASES = 300
"""The last outages are taken."""
PRIOR_PRECISION = 16.0
"""The prior of each weight has a standard deviation of a quarter."""
NEWTON_STEPS = 4
"""From the prior's weights, more steps changed no weight by a hundredth."""
MAX_STEP = 1.0
MIN_CASES_TO_DOUBT, MIN_CASES_TO_FIT = 10, 50
"""Outages from which on the prior can be found worthless, and the weights are fitted."""
PRIOR: Traits = tuple(PRIOR_WEIGHTS.values())
CHANCE: Traits = (0.0,) * len(PRIOR)


class Case(Struct, frozen=True):
    """A node that failed, and some that did not."""

    failed: Traits
    others: tuple[Traits, ...]


class CaseSampler:
    """Learns of outages, one after the other, and keeps the last as cases."""

    def __init__(self, history: FleetHistory, seed: int = 0) -> None:
        self.state = FleetState(history)
        self.cases: deque[Case] = deque(maxlen=MAX_CASES)
        self._history = history
        self._nodes = list(history.nodes.values())
        self._random = Random(seed)
        self._learned = 0

    def advance(self, now: float) -> None:
        """Learn of all outages that began before *now*."""
        outages = self._history.outages
        end = bisect_left(outages, now, key=lambda outage: outage.began)
        for place in range(self._learned, end):
            if place >= end - MAX_CASES:
                self._sample(outages[place])
            self.state.advance(outages[place])
        self._learned = max(self._learned, end)

    def _sample(self, outage: Outage) -> None:
        node, now = self._history.nodes[outage.node], outage.began
        if not self.state.is_in_service(node, now):
            return
        drawn = self._random.sample(self._nodes, min(2 * CONTROLS, len(self._nodes)))
        others = [
            self.state.read_traits(other, now)
            for other in drawn
            if other is not node and self.state.is_in_service(other, now)
        ][:CONTROLS]
        if others:
            self.cases.append(Case(self.state.read_traits(node, now), tuple(others)))


def fit_weights(cases: Sequence[Case], prior: Traits) -> Traits:
    """Return the weights that explain *cases* best, around those of the *prior*."""
    weights = list(prior)
    for _ in range(NEWTON_STEPS):
        slope = [PRIOR_PRECISION * (p - w) for p, w in zip(prior, weights, strict=True)]
        bend = [[PRIOR_PRECISION * (i == j) for j in range(len(prior))] for i in range(len(prior))]
        for case in cases:
            _add_case(case, weights, slope, bend)
        steps = _solve(bend, slope)
        weights = [
            w + min(MAX_STEP, max(-MAX_STEP, step)) for w, step in zip(weights, steps, strict=True)
        ]
    return tuple(weights)


def _add_case(
    case: Case, weights: Sequence[float], slope: list[float], bend: list[list[float]]
) -> None:
    """Add the first and second derivative of the logarithm of a case's likelihood."""
    rows = (case.failed, *case.others)
    risks = [exp(combine(tuple(weights), row)) for row in rows]
    total = sum(risks)
    shares = [risk / total for risk in risks]
    columns = list(zip(*rows, strict=True))
    means = [sum(map(mul, shares, column)) for column in columns]
    centred = [[x - mean for x in column] for column, mean in zip(columns, means, strict=True)]
    for i, column in enumerate(centred):
        slope[i] += column[0]
        weighted = list(map(mul, shares, column))
        row = bend[i]
        for j in range(i + 1):
            row[j] += sum(map(mul, weighted, centred[j]))
            bend[j][i] = row[j]


def _solve(matrix: Sequence[Sequence[float]], right: Sequence[float]) -> list[float]:
    rows = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    for i, pivot in enumerate(rows):
        for row in rows[i + 1 :]:
            factor = row[i] / pivot[i]
            row[i:] = [a - factor * b for a, b in zip(row[i:], pivot[i:], strict=True)]
    solution: list[float] = []
    for i in reversed(range(len(rows))):
        known = sum(a * b for a, b in zip(rows[i][i + 1 : -1], solution, strict=True))
        solution.insert(0, (rows[i][-1] - known) / rows[i][i])
    return solution


def compute_gain(cases: Sequence[Case], weights: Traits) -> float:
    """Return by how much *weights* explain *cases* better than chance, in nats a case."""
    gain = 0.0
    for case in cases:
        logs = [combine(weights, row) for row in (case.failed, *case.others)]
        gain += logs[0] - log(sum(map(exp, logs)) / len(logs))
    return gain / len(cases)


class WeightBasis(StrEnum):
    """Where the weights are from."""

    PRIOR = "prior"
    FITTED = "fitted"
    CHANCE = "chance"
    """Neither did better than chance: all nodes count the same."""


class Weighting(Struct, frozen=True, kw_only=True):
    """The weights of the traits, and why these."""

    basis: WeightBasis
    weights: Traits
    cases: int
    """Outages that they were held against, or fitted to."""
    gains: tuple[tuple[WeightBasis, float], ...] = ()
    """By how much each explained outages that it had not seen better than chance, in nats."""


def choose_weighting(cases: Sequence[Case]) -> Weighting:
    """Choose the weights that best explain the last third of *cases* from the others, or chance."""
    known = list(cases)
    if len(known) < MIN_CASES_TO_DOUBT:
        return Weighting(basis=WeightBasis.PRIOR, weights=PRIOR, cases=len(known))
    gains = {WeightBasis.PRIOR: compute_gain(known, PRIOR)}
    if len(known) >= MIN_CASES_TO_FIT:
        before, after = known[: 2 * len(known) // 3], known[2 * len(known) // 3 :]
        gains = {
            WeightBasis.PRIOR: compute_gain(after, PRIOR),
            WeightBasis.FITTED: compute_gain(after, fit_weights(before, PRIOR)),
        }
    best = max(gains, key=lambda basis: gains[basis])
    if gains[best] <= 0:
        best, weights = WeightBasis.CHANCE, CHANCE
    else:
        weights = fit_weights(known, PRIOR) if best is WeightBasis.FITTED else PRIOR
    return Weighting(basis=best, weights=weights, cases=len(known), gains=tuple(gains.items()))


def describe_gains(weighting: Weighting) -> str:
    """Say how what risks are judged by did on the site's own past; empty if that is unknown."""
    listed = ", ".join(f"{basis} {gain:+.2f}" for basis, gain in weighting.gains)
    return f" ({listed} nats an outage against chance)" if listed else ""


def describe_weighting(weighting: Weighting) -> str:
    """Say by what risks are judged."""
    count = f"{format_count(weighting.cases, 'outage')} of this site"
    if weighting.basis is WeightBasis.FITTED:
        return f"by weights fitted to the last {count}"
    if weighting.basis is WeightBasis.CHANCE:
        return f"no model explains the last {count} better than chance"
    if weighting.cases < MIN_CASES_TO_FIT:
        few = f"{count} are known, {MIN_CASES_TO_FIT} are needed to fit weights to"
        return f"by published data: {few}"
    return f"by published data, which explains the last {count} best"
