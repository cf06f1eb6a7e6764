"""Say in words what raises or lowers the risk of a node."""

from __future__ import annotations

from collections.abc import Iterator
from math import exp, log

from hpcverify.selection.outages import FleetNode
from hpcverify.selection.traits import PRIOR_WEIGHTS, FleetState, Traits
from hpcverify.units import DAY_SECONDS, format_age, format_count

WORTH_TELLING = log(1.2)
"""What changes the risk by less than a fifth is not listed."""
MAX_REASONS = 3
WINDOWS = (30, 90, 365, 730)
"""Days in which outages are counted for a reader."""
NEIGHBOUR_NEWS_DAYS = 14.0
"""After so many days, the failure of a neighbour no longer says anything."""


def explain_risk(
    state: FleetState, node: FleetNode, now: float, weights: Traits, traits: Traits
) -> tuple[str, ...]:
    """Say why *node* has its risk, the strongest reason first; nothing if it is like all."""
    parts = [w * t for w, t in zip(weights, traits, strict=True)]
    reasons = dict(_tell(state, node, now))
    ranked = sorted(zip(PRIOR_WEIGHTS, parts, strict=True), key=lambda part: -abs(part[1]))
    strong = [
        reasons[name] for name, part in ranked if abs(part) >= WORTH_TELLING and name in reasons
    ]
    return tuple(dict.fromkeys(strong))[:MAX_REASONS]


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
            rates = state.list_rates(groups, now)
            most = max(rates, key=lambda rate: abs(rate.log_ratio))
            yield trait, f"{most.group} has {exp(most.log_ratio):.1f}x the outages of others"
    near = state.find_last_neighbour(node)
    if near and now - near.began <= NEIGHBOUR_NEWS_DAYS:
        yield "neighbours", f"neighbour {near.node} failed {_format_days(now - near.began)} ago"


def _format_days(days: float) -> str:
    return format_age(days * DAY_SECONDS)
