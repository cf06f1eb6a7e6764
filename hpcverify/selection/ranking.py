"""Rank the nodes of a fleet by the risk that each fails next, and say why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import exp, fsum, log

from msgspec import Struct

from hpcverify.selection.outages import FleetHistory, FleetNode
from hpcverify.selection.traits import PRIOR_WEIGHTS, FleetState, combine
from hpcverify.selection.weighting import CaseSampler, choose_weighting
from hpcverify.units import DAY_SECONDS, format_age, format_count

WORTH_TELLING = log(1.2)
"""What changes the risk by less than a fifth is not listed."""
MAX_REASONS = 3
WINDOWS = (30, 90, 365, 730)
"""Days in which outages are counted for a reader."""
NEIGHBOUR_NEWS_DAYS = 14.0
"""After so many days, the failure of a neighbour no longer says anything."""


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
        """Explain the risk of the node *name*, the strongest reason first."""
        if name not in self.scores:
            return NodeRisk(score=1.0)
        state, node, weights = self._sampler.state, self._nodes[name], self.weighting.weights
        traits = state.read_traits(node, self.now)
        parts = [weight * trait for weight, trait in zip(weights, traits, strict=True)]
        reasons = dict(_tell(state, node, self.now))
        ranked = sorted(zip(PRIOR_WEIGHTS, parts, strict=True), key=lambda part: -abs(part[1]))
        strong = [
            reasons[name] for name, part in ranked if abs(part) >= WORTH_TELLING and name in reasons
        ]
        return NodeRisk(self.scores[name], tuple(dict.fromkeys(strong))[:MAX_REASONS])


def _tell(state: FleetState, node: FleetNode, now: float) -> Iterator[tuple[str, str]]:
    own = state.list_own(node.name)
    if own:
        back = now - own[-1].ended
        count = next(
            (days for days in WINDOWS if back <= days and any(now - o.ended <= days for o in own)),
            0,
        )
        if count:
            often = sum(now - outage.ended <= count for outage in own)
            yield "recent", f"{format_count(often, 'outage')} in {count} days"
        yield "returned", f"came back {_format_days(back)} ago"
        yield "age", f"no outage for {_format_days(back)}"
        yield "rate", f"{format_count(len(own), 'outage')} in {_format_days(now - node.since)}"
    else:
        yield "age", f"no outage in {_format_days(now - node.since)}"
        yield "rate", f"no outage in {_format_days(now - node.since)}"
    for trait, groups in (("place", node.places), ("position", node.positions)):
        if groups:
            rates = {group: state.read_rate(group, now) for group in groups}
            most = max(rates, key=lambda group: abs(rates[group]))
            yield trait, f"{most} has {exp(rates[most]):.1f}x the outages of others"
    near = state.find_last_neighbour(node)
    if near and now - near.began <= NEIGHBOUR_NEWS_DAYS:
        yield "neighbours", f"neighbour {near.node} failed {_format_days(now - near.began)} ago"


def _format_days(days: float) -> str:
    return format_age(days * DAY_SECONDS)
