"""An outage begins when a node fails or is held, and ends when it is in service again."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from hpcverify.fleet.outages import NodeOutage, OutageCause, follow_outage
from hpcverify.fleet.states import Node, State

WELL = Node(name="n1", state=State.HEALTHY)
SUSPECT = replace(WELL, state=State.SUSPECT, reason="gemm: 20 % too slow", checks=("gemm",))
BAD = replace(SUSPECT, state=State.QUARANTINED, enforced=True)


def follow(*nodes: Node, ordered: bool = True) -> NodeOutage | None:
    known: NodeOutage | None = None
    for at, node in enumerate(nodes, 100):
        known = follow_outage(known, node, float(at), ordered=ordered)
    return known


def test_a_healthy_node_has_no_outage() -> None:
    assert follow(WELL) is None
    assert follow(replace(WELL, state=State.VERIFYING)) is None


def test_it_lasts_from_the_first_suspicion_until_the_node_is_back_in_service() -> None:
    outage = follow(SUSPECT, BAD, replace(BAD, state=State.VERIFYING), WELL)

    assert outage == NodeOutage(
        node="n1",
        began=100.0,
        ended=103.0,
        cause=OutageCause.VERIFICATION,
        reason="gemm: 20 % too slow",
        checks=("gemm",),
        confirmed=True,
        held=True,
    )
    assert outage.is_failure


def test_a_suspicion_that_a_rerun_cleared_is_no_failure() -> None:
    outage = follow(SUSPECT, WELL)
    assert outage
    assert (outage.confirmed, outage.is_failure) == (False, False)


def test_what_a_site_only_observes_holds_nobody_but_is_a_failure() -> None:
    outage = follow(SUSPECT, replace(BAD, enforced=False))
    assert outage
    assert (outage.held, outage.is_failure) == (False, True)


@pytest.mark.parametrize(
    ("reason", "failed"),
    [
        ("Not responding", True),
        ("Node unexpectedly rebooted", True),
        ("Prolog error", True),
        ("maintenance until Monday", False),
        ("ada: testing a new image", False),
    ],
)
def test_a_drain_of_others_is_a_failure_only_for_what_slurm_itself_says(
    reason: str,
    failed: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    outage = follow(replace(WELL, foreign=reason))
    assert outage
    assert (outage.cause, outage.held, outage.is_failure) == (OutageCause.OTHERS, True, failed)


def test_who_found_it_is_kept() -> None:
    held = replace(WELL, state=State.HELD, by="ada", reason="new fans")
    by_person, by_hook = follow(held), follow(BAD, ordered=False)

    assert by_person
    assert (by_person.cause, by_person.is_failure) == (OutageCause.PERSON, False)
    assert by_hook
    assert (by_hook.cause, by_hook.is_failure) == (OutageCause.OWN_RUN, True)


DRAINED = replace(WELL, foreign="maintenance until Monday")
HELD = replace(WELL, state=State.HELD, by="ada", reason="new fans")


@pytest.mark.parametrize(
    "between",
    [
        replace(SUSPECT, foreign="ada: testing a new image"),
        replace(HELD, checks=("gemm",)),
        replace(SUSPECT, state=State.VERIFYING),
    ],
)
def test_a_suspicion_is_no_failure_because_a_person_held_the_node_meanwhile(between: Node) -> None:
    outage = follow(SUSPECT, between, SUSPECT, WELL)
    assert outage
    assert not outage.is_failure


@pytest.mark.parametrize("before", [DRAINED, HELD])
def test_a_node_that_is_found_bad_while_a_person_holds_it_fails_from_then_on(before: Node) -> None:
    outage = follow(before, replace(BAD, foreign=before.foreign), BAD, WELL)
    assert outage
    assert (outage.began, outage.ended) == (101.0, 103.0)
    assert (outage.cause, outage.reason) == (OutageCause.VERIFICATION, BAD.reason)
    assert outage.is_failure


def test_what_slurm_sets_down_in_maintenance_or_under_suspicion_has_failed() -> None:
    down = replace(WELL, foreign="Not responding")
    for before in (DRAINED, SUSPECT):
        outage = follow(before, down, WELL)
        assert outage
        assert (outage.cause, outage.is_failure) == (OutageCause.OTHERS, True)


def test_a_failure_stays_one_whoever_drains_the_node_later() -> None:
    outage = follow(SUSPECT, BAD, replace(BAD, foreign="ada: new fans"), DRAINED, WELL)

    assert outage
    assert (outage.began, outage.cause, outage.is_failure) == (
        100.0,
        OutageCause.VERIFICATION,
        True,
    )
