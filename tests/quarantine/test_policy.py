"""What a run makes of a node."""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest
from msgspec.structs import replace

from hpcverify.config import Quarantine, Site, Suppression
from hpcverify.model import (
    Cause,
    Finding,
    Maturity,
    Remedy,
    Result,
    Ruling,
    Run,
    Verdict,
)
from hpcverify.quarantine.ledger import Ticket
from hpcverify.quarantine.life import Hold, Node, State
from hpcverify.quarantine.policy import (
    after,
    evidence_of,
    explains_refusal,
    refused,
)
from tests.doubles import a_result, a_run

NOW = 1_800_000_000.0
ENFORCING = Site(quarantine=Quarantine(enforce=("*",)))
OBSERVING = Site()
HARD = {"corruption": Ruling(Verdict.FAIL, Remedy.REPLACE, hard=True)}


def failed(check: str = "gemm", **changes: Any) -> Result:
    """Make a failure that a rerun may take back."""
    kept = {"verdict": Verdict.FAIL, "reason": "too slow", **changes}
    return a_result(check, findings=(), limits=(), **kept)


def corrupt() -> Result:
    """Make a failure that a rerun cannot take back."""
    return a_result(
        "sdc",
        verdict=Verdict.FAIL,
        reason="a wrong word",
        findings=(Finding("corruption", "cpu", "a wrong word"),),
        limits=(),
        rulings=HARD,
    )


def run_of(*results: Result, **changes: Any) -> Run:
    """Make a run of *results*, whose verdict is the worst of them."""
    worst = max((r.verdict for r in results), default=Verdict.PASS)
    return a_run(**{"results": results, "verdict": worst, **changes})


def ticket(number: int = 5, **changes: Any) -> Ticket:
    """Make a ticket that was given out and not used yet."""
    made = Ticket(
        number=number,
        node="n1",
        token="t",  # noqa: S106 - a test's own
        purpose="sweep",
        suite="quick",
        made=NOW,
        job=7,
        ended=0.0,
        ending="",
        run="",
    )
    return replace(made, **changes)


def what_becomes(
    node: Node,
    run: Run,
    order: Ticket | None = ticket(),  # noqa: B008 - frozen
    site: Site = ENFORCING,
    past: int = 0,
) -> Node:
    """Judge *run*, which came for *order*."""
    return after(node, evidence_of(run, order, site, NOW), site, NOW, past)


def in_state(state: State, **changes: Any) -> Node:
    """Make a node that is in *state*, and out of service if that means so."""
    held = state not in (State.HEALTHY, State.UNVERIFIED)
    base = Node(name="n1", state=state, enforced=held, suite="quick")
    return replace(base, **changes)


def test_a_full_pass_makes_a_node_healthy_and_is_dated() -> None:
    node = what_becomes(in_state(State.UNVERIFIED), run_of(a_result()))

    assert (node.state, node.passed, node.verdict) == (State.HEALTHY, NOW, "pass")


def test_a_first_failure_makes_a_suspect_that_only_we_can_use() -> None:
    node = what_becomes(in_state(State.HEALTHY), run_of(failed()))

    assert node.state is State.SUSPECT
    assert node.wanted is Hold.RESERVATION
    assert (node.reason, node.checks, node.after) == ("gemm: too slow", ("gemm",), 5)


def test_a_rerun_that_fails_quarantines_and_one_that_passes_counts_a_flake() -> None:
    suspect = what_becomes(in_state(State.HEALTHY), run_of(failed()))

    confirmed = what_becomes(suspect, run_of(failed(), id="b"), ticket(6))
    taken_back = what_becomes(suspect, run_of(a_result(), id="b"), ticket(6))

    assert (confirmed.state, confirmed.wanted) == (State.QUARANTINED, Hold.DRAIN)
    assert (taken_back.state, taken_back.flakes) == (State.HEALTHY, 1)
    assert taken_back.wanted is Hold.NONE


def test_hard_evidence_needs_no_rerun() -> None:
    node = what_becomes(in_state(State.HEALTHY), run_of(corrupt()))

    assert (node.state, node.wanted) == (State.QUARANTINED, Hold.DRAIN)


def test_a_site_that_observes_sees_the_state_and_holds_nobody() -> None:
    node = what_becomes(in_state(State.HEALTHY), run_of(corrupt()), site=OBSERVING)

    assert (node.state, node.wanted) == (State.QUARANTINED, Hold.NONE)


def test_only_the_checks_that_are_enforced_hold_a_node() -> None:
    site = Site(quarantine=Quarantine(enforce=("sdc",)))

    slow = what_becomes(in_state(State.HEALTHY), run_of(failed()), site=site)
    wrong = what_becomes(in_state(State.HEALTHY), run_of(corrupt()), site=site)

    assert (slow.wanted, wrong.wanted) == (Hold.NONE, Hold.DRAIN)


@pytest.mark.parametrize("state", State)
def test_an_error_changes_no_state_and_is_no_pass(state: State) -> None:
    before = in_state(state, passed=1.0, checks=("gemm",), by="ann")
    unclear = failed(verdict=Verdict.ERROR, cause=Cause.CRASHED)

    node = what_becomes(before, run_of(unclear))

    assert (node.state, node.wanted, node.passed) == (state, before.wanted, 1.0)


@pytest.mark.parametrize("state", State)
def test_an_interrupted_run_changes_nothing_whatever_it_had_found(state: State) -> None:
    before = in_state(state)
    cut = run_of(failed(), corrupt(), complete=False, verdict=Verdict.ERROR)

    assert what_becomes(before, cut) == before


def test_a_check_in_beta_quarantines_nobody() -> None:
    young = failed(maturity=Maturity.BETA)

    node = what_becomes(in_state(State.HEALTHY), run_of(young, verdict=Verdict.WARN))

    assert node.state is State.HEALTHY


def test_without_a_ticket_a_failure_raises_suspicion_and_holds_nobody() -> None:
    node = what_becomes(in_state(State.HEALTHY), run_of(corrupt()), None)

    assert (node.state, node.wanted) == (State.SUSPECT, Hold.NONE)


@pytest.mark.parametrize("state", State)
def test_without_a_ticket_nothing_is_ever_let_back(state: State) -> None:
    before = in_state(state)

    assert what_becomes(before, run_of(a_result()), None) == before


OBSERVED = [State.SUSPECT, State.QUARANTINED, State.LEMON]
CLOSED = Site(quarantine=Quarantine(enforce=("sdc",), fail_closed=("sdc", "gemm")))


@pytest.mark.parametrize("state", OBSERVED)
@pytest.mark.parametrize("checks", [("gemm",), ("gemm", "sdc")])
def test_hard_evidence_of_a_hook_is_kept_where_a_failure_was_only_observed(
    state: State, checks: tuple[str, ...]
) -> None:
    before = in_state(state, enforced=False, checks=checks, reason="gemm: slow")

    node = what_becomes(before, run_of(corrupt(), id="hook"), None, CLOSED)

    assert (node.state, node.since, node.wanted) == (state, 0.0, Hold.NONE)
    assert (node.checks, node.hard, node.run) == (("sdc", "gemm"), True, "hook")
    assert node.reason == "sdc: a wrong word; gemm: slow"
    assert explains_refusal(node, CLOSED)
    assert not explains_refusal(before, CLOSED)
    assert what_becomes(node, run_of(corrupt()), None, CLOSED) == node


@pytest.mark.parametrize("state", OBSERVED)
def test_a_soft_failure_of_a_hook_adds_nothing_to_one_that_was_observed(
    state: State,
) -> None:
    before = in_state(state, enforced=False, checks=("gemm",))

    assert what_becomes(before, run_of(failed("xid")), None) == before


@pytest.mark.parametrize("state", OBSERVED)
def test_what_is_held_is_not_changed_by_what_a_hook_found(state: State) -> None:
    before = in_state(state, checks=("gemm",))

    assert what_becomes(before, run_of(corrupt()), None) == before


@pytest.mark.parametrize("state", [s for s in State if s not in OBSERVED])
def test_old_evidence_explains_no_refusal_once_its_node_is_in_another_state(
    state: State,
) -> None:
    node = in_state(state, checks=("sdc",), hard=True)

    assert not explains_refusal(node, CLOSED)


def test_a_check_that_is_not_enforced_or_not_listed_explains_no_refusal() -> None:
    node = in_state(State.QUARANTINED, enforced=False, checks=("gemm",), hard=True)

    assert not explains_refusal(node, CLOSED)
    assert not explains_refusal(replace(node, checks=("sdc",)), ENFORCING)


def test_who_refused_a_job_is_quarantined_and_a_lemon_stays_one() -> None:
    known = {"enforced": False, "reason": "sdc: a wrong word"}

    node = refused(in_state(State.SUSPECT, **known), "Prolog error", NOW)
    lemon = refused(in_state(State.LEMON, lemon=True, **known), "Prolog error", NOW)

    assert (node.state, node.wanted) == (State.QUARANTINED, Hold.DRAIN)
    assert node.reason == "Prolog error: sdc: a wrong word"
    assert (lemon.state, lemon.wanted) == (State.LEMON, Hold.DRAIN)


def test_a_ticket_that_was_used_by_another_run_counts_for_nothing() -> None:
    before = in_state(State.SUSPECT, checks=("gemm",))

    assert what_becomes(before, run_of(a_result()), ticket(run="another")) == before


def test_a_run_of_another_suite_than_was_ordered_counts_for_nothing() -> None:
    before = in_state(State.VERIFYING, by="ann")

    assert what_becomes(before, run_of(a_result(), suite="prolog")) == before


@pytest.mark.parametrize("state", [State.SUSPECT, State.VERIFYING, State.QUARANTINED])
def test_a_pass_that_was_ordered_before_the_failure_releases_nobody(
    state: State,
) -> None:
    before = in_state(state, after=5, by="ann")

    assert what_becomes(before, run_of(a_result()), ticket(5)) == before


def test_a_pass_without_the_check_that_failed_releases_nobody() -> None:
    before = in_state(State.VERIFYING, checks=("gemm", "sdc"), by="ann")

    assert what_becomes(before, run_of(a_result("gemm"))).state is State.VERIFYING


def test_a_repaired_node_that_passes_goes_back_and_one_that_fails_does_not() -> None:
    before = in_state(State.VERIFYING, checks=("gemm",), by="ann", after=4)

    assert what_becomes(before, run_of(a_result("gemm"))).wanted is Hold.NONE
    assert what_becomes(before, run_of(failed())).state is State.QUARANTINED


def test_a_new_node_that_fails_stays_out_even_where_the_site_only_observes() -> None:
    before = in_state(State.VERIFYING, by="ann")

    assert what_becomes(before, run_of(failed()), site=OBSERVING).wanted is Hold.DRAIN


@pytest.mark.parametrize("state", [State.QUARANTINED, State.LEMON, State.HELD])
def test_what_is_out_of_service_is_not_let_back_by_a_pass_alone(state: State) -> None:
    node = what_becomes(in_state(state), run_of(a_result()))

    assert (node.state, node.wanted) == (state, Hold.DRAIN)


def test_too_many_quarantines_make_a_lemon_which_waits_for_a_person() -> None:
    suspect = in_state(State.SUSPECT)

    lemon = what_becomes(suspect, run_of(failed()), past=2)
    repaired = replace(lemon, state=State.VERIFYING, by="ann")
    passed = what_becomes(repaired, run_of(a_result("gemm")), ticket(9))

    assert lemon.state is State.LEMON
    assert (passed.state, passed.wanted) == (State.HELD, Hold.DRAIN)


def test_a_suppression_is_not_acted_on_until_its_last_day_is_over() -> None:
    known = Suppression(
        check="gemm", nodes="n[1-2]", until=date(2027, 1, 15), reason="fans", by="ann"
    )
    site = replace(ENFORCING, suppress=(known,))
    evidence = evidence_of(run_of(failed()), ticket(), site, NOW)

    last = after(in_state(State.HEALTHY), evidence, site, NOW, 0)
    later = NOW + 86400
    evidence = evidence_of(run_of(failed()), ticket(), site, later)
    over = after(in_state(State.HEALTHY), evidence, site, later, 0)

    assert (last.state, last.passed) == (State.HEALTHY, 0)
    assert over.state is State.SUSPECT


def test_a_suppression_is_for_the_nodes_that_it_names() -> None:
    known = Suppression(
        check="gemm", nodes="n2", until=date(2027, 1, 15), reason="fans", by="ann"
    )
    site = replace(ENFORCING, suppress=(known,))

    node = what_becomes(in_state(State.HEALTHY), run_of(failed()), site=site)

    assert node.state is State.SUSPECT


def test_a_site_may_have_nodes_held_that_cannot_be_judged() -> None:
    site = Site(quarantine=Quarantine(drain_errors=(Cause.MISCONFIGURED,)))
    broken = failed(verdict=Verdict.ERROR, cause=Cause.MISCONFIGURED)
    other = failed(verdict=Verdict.ERROR, cause=Cause.CRASHED)

    held = what_becomes(in_state(State.HEALTHY), run_of(broken), site=site)
    left = what_becomes(in_state(State.HEALTHY), run_of(other), site=site)

    assert (held.state, held.wanted) == (State.HELD, Hold.DRAIN)
    assert left.state is State.HEALTHY


def test_an_error_of_another_check_does_not_keep_a_suspect_for_ever() -> None:
    suspect = in_state(State.SUSPECT, checks=("gemm",))
    unclear = failed("sdc", verdict=Verdict.ERROR, cause=Cause.MISSING)

    node = what_becomes(suspect, run_of(a_result("gemm"), unclear))

    assert (node.state, node.wanted, node.passed) == (State.HEALTHY, Hold.NONE, 0)


def test_a_turn_without_an_answer_lets_the_node_go() -> None:
    kept = in_state(State.VERIFYING)
    unclear = failed(verdict=Verdict.ERROR, cause=Cause.MISSING)

    assert what_becomes(kept, run_of(unclear)).wanted is Hold.NONE


def test_another_failure_does_not_confirm_a_suspicion_that_nobody_ordered() -> None:
    suspect = in_state(State.SUSPECT, checks=("xid",), enforced=False)

    other = what_becomes(suspect, run_of(failed("gemm")))
    same = what_becomes(suspect, run_of(failed("xid")))

    assert (other.state, same.state) == (State.SUSPECT, State.QUARANTINED)


def test_a_full_pass_lifts_a_suspicion_by_a_check_that_no_sweep_has() -> None:
    suspect = in_state(State.SUSPECT, checks=("acme",), enforced=False)

    assert what_becomes(suspect, run_of(a_result())).state is State.HEALTHY


def test_a_reason_from_a_node_is_cut() -> None:
    node = what_becomes(in_state(State.HEALTHY), run_of(failed(reason="x" * 10**6)))

    assert len(node.reason) == 900


def test_a_repaired_node_is_verified_by_the_suite_that_it_failed() -> None:
    node = what_becomes(
        in_state(State.VERIFYING, by="ann", suite="burnin"),
        run_of(failed(), suite="burnin"),
        ticket(suite="burnin"),
    )

    assert (node.state, node.suite) == (State.QUARANTINED, "burnin")
