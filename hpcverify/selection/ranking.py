"""Rank the nodes of a fleet by the risk that each fails next."""

from __future__ import annotations

from collections.abc import Mapping
from math import exp, fsum

from msgspec import Struct

from hpcverify.selection.fit import CaseSampler
from hpcverify.selection.outages import FleetHistory
from hpcverify.selection.reasons import explain_risk
from hpcverify.selection.traits import combine
from hpcverify.selection.weighting import choose_weighting


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
        self.weighting = choose_weighting(())
        self.scores: Mapping[str, float] = {}
        """The risks of the nodes in service, in times that of an average one."""

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
        """Say what the risk of the node *name* is, and why; out of service, it has none."""
        if name not in self.scores:
            return NodeRisk(score=1.0)
        state, node, weights = self._sampler.state, self._nodes[name], self.weighting.weights
        traits = state.read_traits(node, self.now)
        return NodeRisk(self.scores[name], explain_risk(state, node, self.now, weights, traits))
