"""What bears our mark is taken back, and what a person has taken over is not."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from hpcverify.fleet.adopt import adopt, find_unowned, is_taken_over
from hpcverify.fleet.holds import HoldReading, apply_reading, parse_hold_id, read_hold_history
from hpcverify.fleet.ledger import Ledger
from hpcverify.fleet.states import Hold, Node, State
from hpcverify.fleet.transitions import Decision

CHECKS = {"gemm", "sdc", "storage"}
REASON = "hpcverify[aa11bb] gemm: GPU 3 is slow"
DRAINED = HoldReading(node="n1", hold_id=parse_hold_id(REASON), reason=REASON, drained=True)
RESERVED = HoldReading(node="n2", reserved=True)
OTHERS = (
    HoldReading(node="n3"),
    HoldReading(node="n4", reason="fan", drained=True),
    HoldReading(node="n5", reason="hpcverify is bad", drained=True),
    HoldReading(node="n6", hold_id=parse_hold_id(REASON), reason=REASON),  # left behind by 24.11
)


def taken(seen: HoldReading, ledger: Ledger) -> Node:
    last = ledger.read_last_ticket_number()
    decision = Decision(by="ada", reason="the disk died", at=ledger.clock(), last_ticket=last)
    return adopt(seen, ledger, CHECKS, "idle", decision)


def test_only_what_bears_our_mark_is_found(ledger: Ledger) -> None:
    there = {seen.node: seen for seen in (DRAINED, RESERVED, *OTHERS)}
    assert sorted(find_unowned(there, ledger)) == ["n1", "n2"]


def test_a_drain_is_taken_back_for_the_reason_that_stands_there(ledger: Ledger) -> None:
    node = taken(DRAINED, ledger)

    assert (node.state, node.reason) == (State.QUARANTINED, "gemm: GPU 3 is slow")
    assert (node.desired_hold, node.hold_id, node.foreign) == (Hold.DRAIN, DRAINED.hold_id, "")
    assert apply_reading(node, DRAINED, read_hold_history(node, ledger)) == node
    assert [(e.actor, e.what) for e in ledger.read_audit("n1")][-1] == ("ada", "adopt")
    assert find_unowned({"n1": DRAINED}, ledger) == {}


@pytest.mark.parametrize(
    ("reason", "checks"),
    [
        ("gemm: GPU 3 is slow; sdc: node: a wrong word", ("gemm", "sdc")),
        ("gemm, sdc: GPU 3: 30 % slower; storage: GPU 5: lost", ("gemm", "sdc", "storage")),
        ("Prolog error: sdc: a wrong word", ("sdc",)),
        ("conclusive evidence, which a rerun does not clear: sdc: wrong", ("sdc",)),
        ("gemm: slow; not verified since: failed sdc, storage", (*("gemm", "sdc"), "storage")),
        ("gemm: slow; unknown_check: bad", ("gemm",)),
        ("bob: ask me about sdc", ()),
    ],
)
def test_what_its_reason_says_that_it_failed_it_has_to_pass(
    ledger: Ledger, reason: str, checks: tuple[str, ...]
) -> None:
    text = f"{DRAINED.hold_id} {reason}"
    node = taken(replace(DRAINED, reason=text), ledger)
    assert node.checks == checks
    resumed = apply_reading(node, HoldReading(node="n1"), read_hold_history(node, ledger))
    assert resumed.owed_checks == checks


def test_a_reservation_is_taken_back_to_be_verified_in(ledger: Ledger) -> None:
    node = taken(RESERVED, ledger)
    assert (node.state, node.by, node.suite) == (State.VERIFYING, "ada", "idle")
    assert apply_reading(node, RESERVED, read_hold_history(node, ledger)) == node
    assert find_unowned({"n2": RESERVED}, ledger) == {}


@pytest.mark.parametrize("seen", [RESERVED, replace(DRAINED, node="n2")])
def test_what_an_older_ledger_knows_that_it_owes_it_owes_still(
    ledger: Ledger, seen: HoldReading
) -> None:
    ledger.put(Node(name="n2", checks=("storage",), suite="full"), "returned")
    node = taken(seen, ledger)
    assert "storage" in node.checks
    assert node.suite == "full"


def test_a_drain_in_a_reservation_is_the_harder_of_the_two(ledger: Ledger) -> None:
    both = HoldReading(
        node="n1", hold_id=DRAINED.hold_id, reason=REASON, drained=True, reserved=True
    )
    assert taken(both, ledger).state is State.QUARANTINED


def test_what_a_person_took_over_is_not_taken_back_unasked(ledger: Ledger) -> None:
    number = ledger.record_intent("n1", "drain", REASON)
    ledger.record_outcome(number, f"it is drained ({REASON})")
    theirs = HoldReading(
        node="n1", hold_id=DRAINED.hold_id, reason=f"{REASON} -- bob: RMA 99", drained=True
    )

    assert is_taken_over(theirs, ledger)
    assert not is_taken_over(DRAINED, Ledger(ledger.path.parent / "new"))


class KilledError(Exception):
    """The end by -9."""


class Dying(Ledger):
    """The books of a controller that is killed before it writes an intent."""

    def record_intent(self, *_: object, **__: object) -> int:
        raise KilledError


def test_one_that_is_killed_in_the_midst_never_owns_a_drain_that_it_does_not_want(
    ledger: Ledger,
) -> None:
    with pytest.raises(KilledError):
        taken(DRAINED, Dying(ledger.path.parent))
    assert not ledger.has_given_hold_id("n1", DRAINED.hold_id)
    assert ledger.read_node("n1").desired_hold is Hold.DRAIN
