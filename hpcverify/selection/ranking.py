"""
Rank the nodes of a fleet by the risk that each fails next.

The weights of the traits are the prior's until there are enough outages; then those that
were fitted to the site's own. Both are held against the site's own past, outages that the
fit has not seen: what explains them worse than chance is not used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from math import exp, fsum

from msgspec import Struct

from hpcverify.selection.fit import Case, CaseSampler, compute_gain, fit_weights
from hpcverify.selection.outages import FleetHistory
from hpcverify.selection.reasons import explain_risk
from hpcverify.selection.traits import PRIOR_WEIGHTS, Traits, combine

MIN_CASES_TO_DOUBT, MIN_CASES_TO_FIT = 10, 50
"""Outages from which on the prior can be found worthless, and the weights are fitted."""
PRIOR: Traits = tuple(PRIOR_WEIGHTS.values())
CHANCE: Traits = (0.0,) * len(PRIOR)


class Basis(StrEnum):
    """Where the weights are from."""

    PRIOR = "prior"
    FITTED = "fitted"
    CHANCE = "chance"
    """Neither did better than chance: all nodes count the same."""


class Weighting(Struct, frozen=True, kw_only=True):
    """The weights of the traits, and why these."""

    basis: Basis
    weights: Traits
    cases: int
    """Outages that they were held against, or fitted to."""
    gains: tuple[tuple[Basis, float], ...] = ()
    """By how much each explained outages that it had not seen better than chance, in nats."""


class NodeRisk(Struct, frozen=True):
    """The risk of a node."""

    score: float
    """Times the risk of an average node in service."""
    reasons: tuple[str, ...] = ()
    """The strongest first."""


class RiskRanking:
    """Scores the nodes of a fleet at any moment, by what was known then."""

    def __init__(self, history: FleetHistory, seed: int = 0) -> None:
        """Begin before the first outage; *seed* chooses what outages are compared with."""
        self._sampler = CaseSampler(history, seed)
        self._nodes = history.nodes
        self.now = 0.0
        self.weighting = Weighting(basis=Basis.PRIOR, weights=PRIOR, cases=0)
        self.scores: Mapping[str, float] = {}
        """Of the nodes in service."""

    def advance(self, now: float) -> None:
        """Move on to *now*, in days: learn of what has happened, and score all nodes."""
        self.now = now
        self._sampler.advance(now)
        self.weighting = choose_weighting(self._sampler.cases)
        state, weights = self._sampler.state, self.weighting.weights
        risks = {
            name: exp(combine(weights, state.read_traits(node, now)))
            for name, node in self._nodes.items()
            if state.is_in_service(node, now)
        }
        mean = fsum(risks.values()) / max(1, len(risks))
        self.scores = {name: risk / mean for name, risk in risks.items()}

    def explain(self, name: str) -> NodeRisk:
        """Say what the risk of the node *name* is, and why."""
        state, node, weights = self._sampler.state, self._nodes[name], self.weighting.weights
        traits = state.read_traits(node, self.now)
        return NodeRisk(
            self.scores.get(name, 1.0), explain_risk(state, node, self.now, weights, traits)
        )


def choose_weighting(cases: Sequence[Case]) -> Weighting:
    """
    Choose the weights that explain the later *cases* best, or chance.

    The fit that is held against the last third has seen only those before. The one that
    is used has seen all.
    """
    if len(cases) < MIN_CASES_TO_DOUBT:
        return Weighting(basis=Basis.PRIOR, weights=PRIOR, cases=len(cases))
    known = list(cases)
    gains = {Basis.PRIOR: compute_gain(known, PRIOR)}
    if len(known) >= MIN_CASES_TO_FIT:
        before, after = known[: 2 * len(known) // 3], known[2 * len(known) // 3 :]
        gains = {
            Basis.PRIOR: compute_gain(after, PRIOR),
            Basis.FITTED: compute_gain(after, fit_weights(before, PRIOR)),
        }
    best = max(gains, key=lambda basis: gains[basis])
    if gains[best] <= 0:
        best, weights = Basis.CHANCE, CHANCE
    else:
        weights = fit_weights(known, PRIOR) if best is Basis.FITTED else PRIOR
    return Weighting(basis=best, weights=weights, cases=len(known), gains=tuple(gains.items()))
