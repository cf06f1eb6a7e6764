"""
The ledger's outages as a history of the fleet, by which its nodes are ranked.

Where the ledger does not know an outage, from before it kept them, a return to service
still tells that there was one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from hpcverify.fleet.ledger import Ledger
from hpcverify.fleet.outages import NodeOutage, OutageCause
from hpcverify.fleet.reasons import is_planned
from hpcverify.fleet.states import DAY_S, HOUR_S, Node
from hpcverify.plan.config import Fleet
from hpcverify.reliability.outages import Outage
from hpcverify.selection.outages import make_history
from hpcverify.selection.places import locate_nodes
from hpcverify.selection.ranking import RiskRanking

HISTORY_S = 730 * DAY_S
"""How far back outages count: parts, drivers and jobs are others by then."""
SAME_RETURN_S = HOUR_S
"""A return that is dated as near to the end of an outage is its end."""


def read_ranking(ledger: Ledger, fleet: Fleet, now: float) -> RiskRanking:
    """Rank the nodes of *ledger* by what it knows at *now*, seconds since 1970."""
    return rank_fleet(
        ledger.list_nodes().values(),
        ledger.list_outages(now - HISTORY_S),
        ledger.read_links().switches,
        ledger.read_fleet_start(),
        now,
        planned_reasons=fleet.planned_reasons,
    )


def rank_fleet(
    nodes: Iterable[Node],
    outages: Iterable[NodeOutage],
    switches: Mapping[str, str],
    began: float,
    now: float,
    *,
    planned_reasons: tuple[str, ...] = (),
) -> RiskRanking:
    """
    Rank *nodes* by the risk that each fails next.

    *switches* are their leaf switches, as far as they are known. What is known of the fleet
    begins at *began*, and no longer than `HISTORY_S` before *now*: seconds since 1970. What a
    person or another program drained for planned work is left out; the site's words for that
    are *planned_reasons*.
    """
    listed = list(nodes)
    known = list(outages)
    first = min([began, *(outage.began for outage in known)], default=began)
    first = max(min(first, now), now - HISTORY_S)
    since = {node.name: min(max(first, node.first_seen_at), now) / DAY_S for node in listed}
    by_person = (OutageCause.OTHERS, OutageCause.PERSON)
    past = [
        outage.convert_to_days(now)
        for outage in known
        if outage.began <= now
        and not (outage.cause in by_person and is_planned(outage.reason, planned_reasons))
    ]
    past += _list_unrecorded_returns(listed, known, now)
    ranking = RiskRanking(make_history(locate_nodes(since, switches), past))
    ranking.advance(now / DAY_S)
    return ranking


def _list_unrecorded_returns(
    nodes: Iterable[Node], known: Iterable[NodeOutage], now: float
) -> Iterator[Outage]:
    """Yield an outage for each return to service that ends none of those *known*."""
    ends: dict[str, list[float]] = {}
    for outage in known:
        ends.setdefault(outage.node, []).append(outage.ended)
    for node in nodes:
        for back in node.returned_at:
            is_known = any(abs(back - end) < SAME_RETURN_S for end in ends.get(node.name, ()))
            if back <= now and not is_known:
                yield Outage(node.name, back / DAY_S, back / DAY_S)
