"""
Takes back our holds when the ledger that made them is lost.

All that is left of a drain is its reason: the node is quarantined for it, and must
pass the checks that it names. A reservation has no reason: its node was a suspect, new
or repaired, and is verified inside the reservation.

Holds that the ledger knows are left out. A person who took over our drain by adding a
note to its reason keeps it, unless that node is asked for by name.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

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
from hpcverify.model import FABRIC_SUITE

ADOPTION_OUTCOME = "adopted: already in place"
_FAILED_CHECKS_PATTERN = re.compile(
    r"(?:^|(?<=[;:] ))[a-z][a-z0-9_]*(?:, [a-z][a-z0-9_]*)*(?=: )"
    r"|(?<=not verified since: failed )[a-z0-9_]+(?:, [a-z0-9_]+)*"
)
"""How a reason names the checks that failed: see `transitions`."""


def find_unowned(there: Mapping[str, HoldReading], ledger: Ledger) -> dict[str, HoldReading]:
    """List the nodes that carry a hold of ours that the ledger does not know."""
    unowned: dict[str, HoldReading] = {}
    for name, seen in there.items():
        if seen.reserved or (seen.drained and seen.hold_id):
            node = ledger.read_node(name)
            if not apply_reading(node, seen, read_hold_history(node, ledger)).hold_id:
                unowned[name] = seen
    return unowned


def is_taken_over(seen: HoldReading, ledger: Ledger) -> bool:
    """Whether the ledger knows the hold id: a person has edited the rest of the reason."""
    return seen.drained and bool(seen.hold_id) and ledger.has_given_hold_id(seen.node, seen.hold_id)


def adopt(
    seen: HoldReading, ledger: Ledger, checks: Collection[str], suite: str, decision: Decision
) -> Node:
    """
    Take back the hold that was *seen*, by a person's *decision*; return the node.

    A drained node must pass those of *checks*, the names of all, that its reason names;
    a reserved one must pass *suite*. What it owes by an older ledger, it still owes.
    """
    known = ledger.read_node(seen.node)
    if seen.drained and seen.hold_id:
        text = seen.reason.removeprefix(seen.hold_id).strip()
        lists = _FAILED_CHECKS_PATTERN.findall(text)
        named = (name for listed in lists for name in listed.split(", ") if name in checks)
        failed = tuple(dict.fromkeys((*named, *known.checks)))
        act, reason = "drain", seen.reason
        node = adopt_drain(known, decision, seen.hold_id, text, failed)
    else:
        hold_id = make_hold_id()
        act, reason = "reserve", format_reason(hold_id, decision.reason)
        # What it did to others it cannot show by itself.
        owed = known.suite if known.checks and known.suite != FABRIC_SUITE else ""
        node = adopt_reservation(known, decision, hold_id, owed or suite)
    # The node first: a hold that we own and do not want would be removed.
    detail = f"{decision.reason}: {node.state}: {node.reason}"
    ledger.put(node, "adopt", detail, decision.by, text=decision.reason)
    intent = ledger.record_intent(node.name, act, reason, seen.reason)
    ledger.record_outcome(intent, ADOPTION_OUTCOME, seen.reason if seen.drained else "")
    return node
