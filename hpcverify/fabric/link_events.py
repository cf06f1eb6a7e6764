"""The events of links and switches: which isolations found faulty, and later tests passed."""

from __future__ import annotations

from hpcverify.events.event import EventKind, StateChange
from hpcverify.fleet.event_log import NewEvent
from hpcverify.fleet.ledger import Ledger
from hpcverify.isolation.answer import IsolationAnswer
from hpcverify.isolation.journal import IsolationOrder
from hpcverify.isolation.links import find_switch_pair

LINKS = "links"
SEPARATOR = " - "
"""Between the ends of a link; no name has one."""
FAILED, PASSED = "failed", "passed"


def record_links(ledger: Ledger, order: IsolationOrder, answer: IsolationAnswer) -> None:
    """Record which links and switches failed, and which of those that failed pass again."""
    known = ledger.read_standing(LINKS)
    over = {key for key in known if answer.is_certain and _was_tested(key, order)}
    names = (*map(SEPARATOR.join, answer.links), *answer.switches)
    standing = {key: why for key, why in known.items() if key not in over}
    standing |= dict.fromkeys(names, f"isolation {answer.id}")
    ledger.record_standing(LINKS, standing, _describe)


def _was_tested(key: str, order: IsolationOrder) -> bool:
    ends = {*key.split(SEPARATOR)}
    if not order.pairs:
        return ends <= {*order.nodes, *order.switches.values()}
    switches = (find_switch_pair(pair, order.switches) for pair in order.pairs)
    return any(ends == {*pair} for pair in (*order.pairs, *filter(None, switches)))


def _describe(key: str, before: str, after: str) -> NewEvent | None:
    if before and after:
        return None
    kind = EventKind.LINK_FAILED if after else EventKind.LINK_RECOVERED
    states = ("", FAILED) if after else (FAILED, PASSED)
    change = StateChange(subject=key, before=states[0], after=states[1])
    return NewEvent(kind=kind, change=change, text=after)
