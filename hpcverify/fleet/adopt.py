"""
Takes back our holds when the ledger that made them is lost.

A drain says why in its reason, and that is all that is left of it: such a node is
quarantined for that reason, and has to pass the checks that the reason names. A
reservation says nothing: such a node was a suspect, new or repaired, and is verified
where it is kept.

What the ledger knows of is left out: a person who has taken over a drain of ours by
adding a note to its reason still has it, unless that node is asked for by name.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping

from hpcverify.fleet.holds import (
    HoldReading,
    apply_reading,
    format_reason,
    make_hold_id,
    read_hold_history,
)
from hpcverify.fleet.ledger import Ledger
from hpcverify.fleet.states import Node
from hpcverify.fleet.transitions import Decision, adopt_drain, adopt_reservation

ADOPTION_OUTCOME = "adopted: it stood already"
"""The outcome of a write that nobody needed to make."""
_FAILED_CHECK_PATTERN = re.compile(r"(?:^|(?<=[;:] ))[a-z][a-z0-9_]*(?=: )")
_OWED_CHECKS_PATTERN = re.compile(r"(?<=not verified since: failed )[a-z0-9_]+(?:, [a-z0-9_]+)*")
"""How a reason names the checks that failed: see `transitions`."""


def find_unowned(there: Mapping[str, HoldReading], ledger: Ledger) -> dict[str, HoldReading]:
    """List the nodes that carry our hold id, and are not known to be held by us."""
    return {name: seen for name, seen in there.items() if _is_unowned(seen, ledger)}


def _is_unowned(seen: HoldReading, ledger: Ledger) -> bool:
    if not _looks_like_our_hold(seen):
        return False
    node = ledger.read_node(seen.node)
    return not apply_reading(node, seen, read_hold_history(node, ledger)).hold_id


def _looks_like_our_hold(seen: HoldReading) -> bool:
    return (seen.drained and bool(seen.hold_id)) or seen.reserved


def is_taken_over(seen: HoldReading, ledger: Ledger) -> bool:
    """Whether the ledger knows the hold id: a person has changed what stood beside it."""
    return seen.drained and bool(seen.hold_id) and ledger.has_given_hold_id(seen.node, seen.hold_id)


def _parse_named_checks(reason: str) -> Iterator[str]:
    owed = (name for listed in _OWED_CHECKS_PATTERN.findall(reason) for name in listed.split(", "))
    yield from dict.fromkeys((*_FAILED_CHECK_PATTERN.findall(reason), *owed))


def adopt(
    seen: HoldReading, ledger: Ledger, checks: Collection[str], suite: str, decision: Decision
) -> Node:
    """
    Take back the node that is *seen*, on a person's *decision*; return it as it is now.

    *checks* are all that there are: one that is drained has to pass those that its
    reason names. One that is only reserved is to pass *suite*. What an older ledger
    knows that it owes, it owes still.
    """
    known = ledger.read_node(seen.node)
    drained = seen.drained and bool(seen.hold_id)
    if drained:
        said = seen.reason.removeprefix(seen.hold_id).strip()
        named = (name for name in _parse_named_checks(said) if name in checks)
        failed = tuple(dict.fromkeys((*named, *known.checks)))
        act, reason = "drain", seen.reason
        node = adopt_drain(known, decision, seen.hold_id, said, failed)
    else:
        hold_id = make_hold_id()
        act, reason = "reserve", format_reason(hold_id, decision.reason)
        owed = known.suite if known.checks else ""
        node = adopt_reservation(known, decision, hold_id, owed or suite)
    # The node first: a hold that we own and do not want would be taken back.
    detail = f"{decision.reason}: {node.state}: {node.reason}"
    ledger.put(node, "adopt", detail, decision.by)
    intent = ledger.record_intent(node.name, act, reason, seen.reason)
    ledger.record_outcome(intent, ADOPTION_OUTCOME, seen.reason if seen.drained else "")
    return node
