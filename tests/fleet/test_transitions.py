"""What a run makes of a node."""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest
from msgspec.structs import replace

from hpcverify.errors import ActionError
from hpcverify.fleet.evidence import extract_evidence
from hpcverify.fleet.states import HOLD_BY_STATE, Caveat, Hold, Node, State, Ticket
from hpcverify.fleet.transitions import (
    Decision,
    admit,
    apply_evidence,
    explains_refusal,
    hold,
    keep_until_verified,
    quarantine_refused,
    release,
    repair,
    restrain_hold,
)
from hpcverify.model import (
    BMC_SUITE,
    FABRIC_SUITE,
    Cause,
    Maturity,
    Result,
    Run,
    Verdict,
    verdict_of,
)
from hpcverify.plan.config import Quarantine, Site, Suppression
from tests.doubles import a_result, a_run
from tests.fleet.builders import make_wrong_word

NOW = 1_800_000_000.0
ENFORCING = Site(quarantine=Quarantine(enforce=("*",)))
OBSERVING = Site()
OUT = (State.QUARANTINED, Hold.DRAIN)
REPEATED = (State.REPEAT_OFFENDER, Hold.DRAIN)


def failed(check: str = "gemm", **changes: Any) -> Result:
    """Make a failure that a rerun may take back."""
    kept = {"verdict": Verdict.FAIL, "reason": "too slow", **changes}
    return a_result(check, findings=(), limits=(), **kept)


def corrupt() -> Result:
    return make_wrong_word(limits=())


def unclear(check: str = "sdc", **changes: Any) -> Result:
    """Make a result that says only that we could not tell."""
    kept = {"verdict": Verdict.ERROR, "cause": Cause.MISSING, "reason": "no library"}
    return failed(check, **{**kept, **changes})


def skipped(check: str, cause: Cause = Cause.NOT_APPLICABLE, *, required: bool = False) -> Result:
    kept = {"cause": cause, "reason": "no such part", "required": required}
    return failed(check, verdict=Verdict.SKIP, **kept)


def known(check: str = "gemm", nodes: str = "n1") -> Suppression:
    """Make a suppression that lasts until the day of `NOW`."""
    until = date(2027, 1, 15)
    return Suppression(check=check, nodes=nodes, until=until, reason="fans", by="ann")


def run_of(*results: Result, **changes: Any) -> Run:
    return a_run(**{"results": results, "verdict": verdict_of(results), **changes})


def ticket(number: int = 5, **changes: Any) -> Ticket:
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
    return apply_evidence(node, extract_evidence(run, order, site, NOW), site, NOW, past)


def in_state(state: State, **changes: Any) -> Node:
    """Make a node that is in *state*, and out of service if that means so."""
    held = state not in (State.HEALTHY, State.UNVERIFIED)
    base = Node(name="n1", state=state, enforced=held, suite="quick")
    return replace(base, **changes)


def test_a_full_pass_makes_a_node_healthy_and_is_dated() -> None:
    node = what_becomes(in_state(State.UNVERIFIED), run_of(a_result()))

    assert (node.state, node.last_pass_at, node.verdict) == (State.HEALTHY, NOW, "pass")


def test_a_first_failure_makes_a_suspect_that_only_we_can_use() -> None:
    node = what_becomes(in_state(State.HEALTHY), run_of(failed()))

    assert node.state is State.SUSPECT
    assert node.desired_hold is Hold.RESERVATION
    assert (node.reason, node.checks, node.not_before_ticket) == ("gemm: too slow", ("gemm",), 5)


def test_a_rerun_that_fails_quarantines_and_one_that_passes_counts_a_flake() -> None:
    suspect = what_becomes(in_state(State.HEALTHY), run_of(failed()))

    confirmed = what_becomes(suspect, run_of(failed(), id="b"), ticket(6))
    taken_back = what_becomes(suspect, run_of(a_result(), id="b"), ticket(6))

    assert (confirmed.state, confirmed.desired_hold) == (State.QUARANTINED, Hold.DRAIN)
    assert (taken_back.state, taken_back.flakes) == (State.HEALTHY, 1)
    assert taken_back.desired_hold is Hold.NONE


def test_hard_evidence_needs_no_rerun() -> None:
    node = what_becomes(in_state(State.HEALTHY), run_of(corrupt()))

    assert (node.state, node.desired_hold) == (State.QUARANTINED, Hold.DRAIN)


def test_a_site_that_observes_sees_the_state_and_holds_nobody() -> None:
    node = what_becomes(in_state(State.HEALTHY), run_of(corrupt()), site=OBSERVING)

    assert (node.state, node.desired_hold) == (State.QUARANTINED, Hold.NONE)


def test_only_the_checks_that_are_enforced_hold_a_node() -> None:
    site = Site(quarantine=Quarantine(enforce=("sdc",)))

    slow = what_becomes(in_state(State.HEALTHY), run_of(failed()), site=site)
    wrong = what_becomes(in_state(State.HEALTHY), run_of(corrupt()), site=site)

    assert (slow.desired_hold, wrong.desired_hold) == (Hold.NONE, Hold.DRAIN)


@pytest.mark.parametrize("state", State)
def test_an_error_changes_no_state_and_is_no_pass(state: State) -> None:
    before = in_state(state, last_pass_at=1.0, checks=("gemm",), by="ann")

    node = what_becomes(before, run_of(unclear("gemm")))

    assert (node.state, node.desired_hold, node.last_pass_at) == (state, before.desired_hold, 1.0)


@pytest.mark.parametrize("state", State)
def test_an_interrupted_run_changes_nothing_whatever_it_had_found(state: State) -> None:
    before = in_state(state)
    cut = run_of(failed(), corrupt(), complete=False, verdict=Verdict.ERROR)

    assert what_becomes(before, cut) == before


def test_a_check_in_beta_quarantines_nobody() -> None:
    young = failed(maturity=Maturity.BETA)

    node = what_becomes(in_state(State.HEALTHY), run_of(young))

    assert node.state is State.HEALTHY


def test_without_a_ticket_a_failure_raises_suspicion_and_holds_nobody() -> None:
    node = what_becomes(in_state(State.HEALTHY), run_of(corrupt()), None)

    assert (node.state, node.desired_hold) == (State.SUSPECT, Hold.NONE)


@pytest.mark.parametrize("state", State)
def test_without_a_ticket_nothing_is_ever_let_back(state: State) -> None:
    before = in_state(state)

    assert what_becomes(before, run_of(a_result()), None) == before


OBSERVED = [State.SUSPECT, State.QUARANTINED, State.REPEAT_OFFENDER]
CLOSED = Site(quarantine=Quarantine(enforce=("sdc",), fail_closed=("sdc", "gemm")))


@pytest.mark.parametrize("state", OBSERVED)
@pytest.mark.parametrize("checks", [("gemm",), ("gemm", "sdc")])
def test_hard_evidence_of_a_hook_is_kept_where_a_failure_was_only_observed(
    state: State, checks: tuple[str, ...]
) -> None:
    before = in_state(state, enforced=False, checks=checks, reason="gemm: slow")

    node = what_becomes(before, run_of(corrupt(), id="hook"), None, CLOSED)

    assert (node.state, node.since, node.desired_hold) == (state, 0.0, Hold.NONE)
    assert (node.checks, node.conclusive, node.run) == (("sdc", "gemm"), True, "hook")
    assert node.reason == "sdc: CPU: a wrong word; gemm: slow"
    assert explains_refusal(node, CLOSED)
    assert not explains_refusal(before, CLOSED)
    assert what_becomes(node, run_of(corrupt()), None, CLOSED) == node


@pytest.mark.parametrize("state", OBSERVED)
def test_a_soft_failure_of_a_hook_adds_nothing_to_one_that_was_observed(state: State) -> None:
    before = in_state(state, enforced=False, checks=("gemm",))

    assert what_becomes(before, run_of(failed("xid")), None) == before


@pytest.mark.parametrize("state", OBSERVED)
def test_what_is_held_is_not_changed_by_what_a_hook_found(state: State) -> None:
    before = in_state(state, checks=("gemm",))

    assert what_becomes(before, run_of(corrupt()), None) == before


@pytest.mark.parametrize("state", [s for s in State if s not in OBSERVED])
def test_old_evidence_explains_no_refusal_once_its_node_is_in_another_state(state: State) -> None:
    node = in_state(state, checks=("sdc",), conclusive=True)

    assert not explains_refusal(node, CLOSED)


def test_a_check_that_is_not_enforced_or_not_listed_explains_no_refusal() -> None:
    node = in_state(State.QUARANTINED, enforced=False, checks=("gemm",), conclusive=True)

    assert not explains_refusal(node, CLOSED)
    assert not explains_refusal(replace(node, checks=("sdc",)), ENFORCING)


def test_who_refused_a_job_is_quarantined_and_a_repeat_offender_stays_one() -> None:
    seen = {"enforced": False, "reason": "sdc: a wrong word"}
    suspect = in_state(State.SUSPECT, **seen)
    before = in_state(State.REPEAT_OFFENDER, repeat_offender=True, **seen)

    node = quarantine_refused(suspect, "Prolog error", ENFORCING, NOW, 1)
    offender = quarantine_refused(before, "Prolog error", ENFORCING, NOW, 0)

    assert (node.state, node.desired_hold, node.repeat_offender) == (*OUT, False)
    assert node.reason == "Prolog error: sdc: a wrong word"
    assert (offender.state, offender.desired_hold) == (State.REPEAT_OFFENDER, Hold.DRAIN)


def test_who_refused_a_job_once_too_often_is_a_repeat_offender() -> None:
    suspect = in_state(State.SUSPECT, enforced=False, reason="sdc: a wrong word")

    node = quarantine_refused(suspect, "Prolog error", ENFORCING, NOW, 2)

    assert (node.state, node.desired_hold, node.repeat_offender) == (
        State.REPEAT_OFFENDER,
        Hold.DRAIN,
        True,
    )


def test_a_ticket_that_was_used_by_another_run_counts_for_nothing() -> None:
    before = in_state(State.SUSPECT, checks=("gemm",))

    assert what_becomes(before, run_of(a_result()), ticket(run="another")) == before


def test_a_run_of_another_suite_than_was_ordered_counts_for_nothing() -> None:
    before = in_state(State.VERIFYING, by="ann")

    assert what_becomes(before, run_of(a_result(), suite="prolog")) == before


@pytest.mark.parametrize("state", [State.SUSPECT, State.VERIFYING, State.QUARANTINED])
def test_a_pass_that_was_ordered_before_the_failure_releases_nobody(state: State) -> None:
    before = in_state(state, not_before_ticket=5, by="ann")

    assert what_becomes(before, run_of(a_result()), ticket(5)) == before


@pytest.mark.parametrize(("state", "by"), [(State.VERIFYING, "ann"), (State.SUSPECT, "")])
def test_a_pass_without_the_check_that_failed_releases_nobody_and_says_why(
    state: State, by: str
) -> None:
    before = in_state(state, checks=("gemm", "sdc"), by=by)

    node = what_becomes(before, run_of(a_result("gemm")))

    assert (node.state, node.desired_hold) == (State.HELD, Hold.DRAIN)
    assert (node.checks, node.not_before_ticket) == (("gemm", "sdc"), 5)
    assert node.reason == (
        "passed quick, which does not include sdc, which it had failed: repair it with "
        "a suite that does, or release it by force"
    )


def test_a_repaired_node_that_passes_goes_back_and_one_that_fails_does_not() -> None:
    before = in_state(State.VERIFYING, checks=("gemm",), by="ann", not_before_ticket=4)

    assert what_becomes(before, run_of(a_result("gemm"))).desired_hold is Hold.NONE
    assert what_becomes(before, run_of(failed())).state is State.QUARANTINED


def test_a_new_node_that_fails_stays_out_even_where_the_site_only_observes() -> None:
    before = in_state(State.VERIFYING, by="ann")

    assert what_becomes(before, run_of(failed()), site=OBSERVING).desired_hold is Hold.DRAIN


@pytest.mark.parametrize("state", [State.QUARANTINED, State.REPEAT_OFFENDER, State.HELD])
def test_what_is_out_of_service_is_not_let_back_by_a_pass_alone(state: State) -> None:
    node = what_becomes(in_state(state), run_of(a_result()))

    assert (node.state, node.desired_hold) == (state, Hold.DRAIN)


def test_too_many_quarantines_make_a_repeat_offender_which_waits_for_a_person() -> None:
    suspect = in_state(State.SUSPECT)

    offender = what_becomes(suspect, run_of(failed()), past=2)
    repaired = replace(offender, state=State.VERIFYING, by="ann")
    passed = what_becomes(repaired, run_of(a_result("gemm")), ticket(9))

    assert offender.state is State.REPEAT_OFFENDER
    assert (passed.state, passed.desired_hold) == (State.HELD, Hold.DRAIN)


def test_a_suppression_is_not_acted_on_until_its_last_day_is_over() -> None:
    site = replace(ENFORCING, suppress=(known(nodes="n[1-2]"),))
    evidence = extract_evidence(run_of(failed()), ticket(), site, NOW)

    last = apply_evidence(in_state(State.HEALTHY), evidence, site, NOW, 0)
    later = NOW + 86400
    evidence = extract_evidence(run_of(failed()), ticket(), site, later)
    over = apply_evidence(in_state(State.HEALTHY), evidence, site, later, 0)

    assert (last.state, last.last_pass_at) == (State.HEALTHY, 0)
    assert over.state is State.SUSPECT


def test_a_suppression_is_for_the_nodes_that_it_names() -> None:
    site = replace(ENFORCING, suppress=(known(nodes="n2"),))

    node = what_becomes(in_state(State.HEALTHY), run_of(failed()), site=site)

    assert node.state is State.SUSPECT


def test_a_site_may_have_nodes_held_that_cannot_be_judged() -> None:
    site = Site(quarantine=Quarantine(drain_errors=(Cause.MISCONFIGURED,)))
    broken = failed(verdict=Verdict.ERROR, cause=Cause.MISCONFIGURED)
    other = failed(verdict=Verdict.ERROR, cause=Cause.CRASHED)

    held = what_becomes(in_state(State.HEALTHY), run_of(broken), site=site)
    left = what_becomes(in_state(State.HEALTHY), run_of(other), site=site)

    assert (held.state, held.desired_hold) == (State.HELD, Hold.DRAIN)
    assert left.state is State.HEALTHY


def test_an_error_of_another_check_does_not_keep_a_suspect_for_ever() -> None:
    suspect = in_state(State.SUSPECT, checks=("gemm",))

    node = what_becomes(suspect, run_of(a_result("gemm"), unclear("sdc")))

    assert (node.state, node.desired_hold, node.last_pass_at) == (State.HEALTHY, Hold.NONE, 0)


NO_ANSWER = Site(
    quarantine=Quarantine(enforce=("*",), drain_errors=(Cause.CRASHED,)), suppress=(known("pcie"),)
)


@pytest.mark.parametrize(
    "found",
    [
        unclear(),
        unclear(cause=Cause.CRASHED),
        failed("pcie"),
        skipped("smart"),
        a_result("gemm", verdict=Verdict.WARN),
        a_result("gemm"),
    ],
)
def test_a_turn_is_over_whatever_it_brought(found: Result) -> None:
    kept = in_state(State.VERIFYING, checks=("acme",), conclusive=True, repeat_offender=True)

    node = what_becomes(kept, run_of(found), site=NO_ANSWER)

    assert (node.state, node.enforced, node.since) == (State.UNVERIFIED, False, NOW)


def test_a_turn_that_brought_only_a_suppressed_failure_is_no_pass() -> None:
    run = run_of(a_result("gemm"), failed("pcie"))

    node = what_becomes(in_state(State.VERIFYING), run, site=NO_ANSWER)

    assert (node.state, node.desired_hold, node.last_pass_at) == (State.UNVERIFIED, Hold.NONE, 0)


def test_a_turn_that_brought_a_pass_makes_a_node_healthy() -> None:
    node = what_becomes(in_state(State.VERIFYING, repeat_offender=True), run_of(a_result()))

    assert (node.state, node.desired_hold, node.last_pass_at) == (State.HEALTHY, Hold.NONE, NOW)


def test_another_failure_does_not_confirm_a_suspicion_that_nobody_ordered() -> None:
    suspect = in_state(State.SUSPECT, checks=("xid",), enforced=False)

    other = what_becomes(suspect, run_of(failed("gemm")))
    same = what_becomes(suspect, run_of(failed("xid")))

    assert (other.state, same.state) == (State.SUSPECT, State.QUARANTINED)


def test_a_full_pass_lifts_a_suspicion_by_a_check_that_no_sweep_has() -> None:
    suspect = in_state(State.SUSPECT, checks=("acme",), enforced=False)

    assert what_becomes(suspect, run_of(a_result())).state is State.HEALTHY


def of_bmc(*results: Result) -> Run:
    return run_of(*results, suite=BMC_SUITE)


def by_bmc(node: Node, run: Run, now: float = NOW) -> Node:
    """Judge a run of a round over the BMCs, which has no ticket."""
    found = extract_evidence(run, None, ENFORCING, now, by_bmc=True)
    return apply_evidence(node, found, ENFORCING, now, 0)


PSU = failed("chassis", reason="power supply 2 has failed")
NO_IPMI = skipped("chassis", Cause.NOT_OBSERVABLE)


@pytest.mark.parametrize(
    "run",
    [
        run_of(a_result()),
        run_of(a_result(), NO_IPMI),
        run_of(a_result(), skipped("chassis")),
    ],
)
def test_what_a_bmc_shows_is_not_cleared_by_a_pass_that_cannot_see_it(run: Run) -> None:
    suspect = by_bmc(in_state(State.HEALTHY), of_bmc(PSU))
    assert (suspect.state, suspect.checks) == (State.SUSPECT, ("chassis",))

    for _ in range(3):
        suspect = what_becomes(suspect, run)

    assert (suspect.state, suspect.desired_hold) == (State.SUSPECT, Hold.NONE)
    assert (suspect.verdict, suspect.last_pass_at) == ("pass", NOW)
    assert suspect.full_reason.startswith("chassis: power supply 2 has failed (not judged yet")
    assert suspect.flakes == 0


@pytest.mark.parametrize(
    ("seen", "site"),
    [
        (run_of(a_result("chassis")), ENFORCING),
        (run_of(a_result("chassis", verdict=Verdict.WARN)), ENFORCING),
        (run_of(a_result(), PSU), replace(ENFORCING, suppress=(known("chassis"),))),
    ],
)
def test_what_a_bmc_shows_is_cleared_by_a_run_that_sees_the_chassis_or_a_person(
    seen: Run, site: Site
) -> None:
    suspect = by_bmc(in_state(State.HEALTHY), of_bmc(PSU))

    after = what_becomes(suspect, seen, site=site)

    assert (after.state, after.bmc_failures) == (State.HEALTHY, {})


def test_the_next_round_clears_what_a_bmc_showed_once_the_node_has_passed_all_else() -> None:
    suspect = by_bmc(in_state(State.HEALTHY), of_bmc(PSU))
    well = of_bmc(a_result("chassis"))

    first = by_bmc(suspect, well)
    assert first.state is State.SUSPECT, "a run without a ticket is no pass"
    assert what_becomes(first, run_of(a_result())).state is State.HEALTHY

    passed = what_becomes(suspect, run_of(a_result(), NO_IPMI))
    unread = by_bmc(passed, of_bmc(unclear("chassis")))
    assert unread.state is State.SUSPECT
    assert by_bmc(unread, well, NOW + 60).state is State.HEALTHY


def test_what_a_bmc_shows_outlasts_another_failure_and_a_hold_that_we_made_for_it() -> None:
    suspect = by_bmc(in_state(State.HEALTHY), of_bmc(PSU))

    slow = what_becomes(suspect, run_of(failed("gemm")))
    assert (slow.state, slow.checks, slow.desired_hold) == (
        State.SUSPECT,
        ("gemm",),
        Hold.RESERVATION,
    )
    back = what_becomes(slow, run_of(a_result("gemm")), ticket(6))

    assert (back.state, back.desired_hold, back.checks) == (
        State.SUSPECT,
        Hold.NONE,
        ("chassis",),
    )
    assert back.reason == "chassis: power supply 2 has failed"


@pytest.mark.parametrize("state", [State.SUSPECT, State.VERIFYING])
def test_what_a_bmc_shows_of_a_node_that_is_reserved_counts_once_it_is_back(state: State) -> None:
    kept = by_bmc(in_state(state, checks=("gemm",), by="ann"), of_bmc(PSU))
    assert kept.state is state

    back = what_becomes(kept, run_of(a_result("gemm")))

    assert (back.state, back.checks) == (State.SUSPECT, ("chassis",))


def test_a_person_who_has_a_node_repaired_or_admitted_settles_what_its_bmc_showed() -> None:
    decision = Decision(by="ann", reason="new power supply", at=NOW, last_ticket=5)
    suspect = by_bmc(in_state(State.HEALTHY), of_bmc(PSU))

    back = what_becomes(admit(suspect, decision, suite="quick").node, run_of(a_result()), ticket(6))

    assert (back.state, back.bmc_failures) == (State.HEALTHY, {})


def test_what_a_bmc_shows_outlasts_a_hold_for_something_else_and_its_release_takes_force() -> None:
    decision = Decision(by="ann", reason="kernel upgrade", at=NOW, last_ticket=5)
    suspect = by_bmc(in_state(State.HEALTHY), of_bmc(PSU))
    held = hold(suspect, decision).node

    with pytest.raises(ActionError, match="has not passed chassis since it failed"):
        release(held, decision)
    assert release(held, decision, force=True).node.bmc_failures == {}
    well = by_bmc(held, of_bmc(a_result("chassis")))
    assert release(well, decision).node.state is State.UNVERIFIED


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


@pytest.mark.parametrize(("state", "by"), [(State.VERIFYING, "ann"), (State.SUSPECT, "")])
def test_a_pass_of_another_suite_says_nothing_of_a_check_that_it_lacks(
    state: State, by: str
) -> None:
    before = in_state(state, checks=("sdc",), by=by, suite="burnin", reason="new")

    node = what_becomes(before, run_of(a_result("gemm")))

    assert (node.state, node.by, node.reason) == (state, by, "new")


REPAIRED = in_state(
    State.VERIFYING, by="ann", checks=("gemm", "pcie"), reason="new riser", last_pass_at=1.0
)
PCIE_KNOWN = replace(ENFORCING, suppress=(known("pcie"),))


@pytest.mark.parametrize("pcie", [failed("pcie"), skipped("pcie")])
def test_a_repaired_node_is_back_though_a_failure_is_suppressed_or_a_part_is_gone(
    pcie: Result,
) -> None:
    run = run_of(a_result("gemm"), pcie)

    node = what_becomes(REPAIRED, run, site=PCIE_KNOWN)

    assert (node.state, node.desired_hold, node.checks) == (State.HEALTHY, Hold.NONE, ())
    full = pcie.verdict is Verdict.SKIP
    assert node.last_pass_at == (NOW if full else 1.0)
    assert node.reason == ("passed quick" if full else "passed quick; suppressed: pcie")


def test_a_suppressed_failure_beside_another_one_keeps_a_repaired_node_out() -> None:
    run = run_of(failed("gemm"), failed("pcie"))

    node = what_becomes(REPAIRED, run, site=PCIE_KNOWN)

    assert (node.state, node.desired_hold, node.checks) == (*OUT, ("gemm",))


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (unclear("xid"), "xid: no library"),
        (skipped("xid", required=True), "xid: no such part"),
        (skipped("gemm", required=True), "gemm: no such part"),
    ],
)
def test_what_was_not_judged_keeps_a_repaired_node_out_and_is_told(
    found: Result, told: str
) -> None:
    run = run_of(failed("pcie"), found)

    node = what_becomes(REPAIRED, run, site=PCIE_KNOWN)
    again = what_becomes(node, run, ticket(6), site=PCIE_KNOWN)

    assert (node.state, node.by, node.last_pass_at) == (State.VERIFYING, "ann", 1.0)
    assert node.full_reason == f"new riser (not judged yet: {told})"
    assert again == node


@pytest.mark.parametrize(
    "found",
    [
        skipped("pcie", Cause.NOT_OBSERVABLE),
        failed("pcie", maturity=Maturity.BETA, reason="no such part"),
    ],
)
def test_a_check_that_failed_and_gives_no_answer_now_keeps_its_node_out(found: Result) -> None:
    node = what_becomes(REPAIRED, run_of(a_result("gemm"), found))

    assert (node.state, node.by) == (State.VERIFYING, "ann")
    assert node.full_reason == "new riser (not judged yet: pcie: no such part)"


def test_a_node_of_which_nothing_was_verified_does_not_come_back() -> None:
    new = in_state(State.VERIFYING, by="ann", reason="new")

    node = what_becomes(new, run_of(skipped("smart")))

    assert (node.state, node.desired_hold) == (State.VERIFYING, Hold.RESERVATION)
    assert node.full_reason == "new (not judged yet: every check was skipped)"


@pytest.mark.parametrize(
    ("found", "told"),
    [(failed("pcie"), "suppressed: pcie"), (skipped("pcie"), "no longer applicable: pcie")],
)
def test_a_suspect_is_acquitted_of_what_is_suppressed_or_gone(found: Result, told: str) -> None:
    suspect = in_state(State.SUSPECT, checks=("pcie",))

    node = what_becomes(suspect, run_of(found, unclear("xid")), site=PCIE_KNOWN)

    assert (node.state, node.desired_hold, node.last_pass_at) == (State.HEALTHY, Hold.NONE, 0)
    assert (node.reason, node.flakes) == (told, 0)


def test_a_required_check_that_was_skipped_acquits_no_suspect() -> None:
    suspect = in_state(State.SUSPECT, checks=("pcie",), reason="pcie: slow")

    node = what_becomes(suspect, run_of(skipped("pcie", required=True)))

    assert (node.state, node.desired_hold) == (State.SUSPECT, Hold.RESERVATION)
    assert node.full_reason == "pcie: slow (not judged yet: pcie: no such part)"


XID = Site(quarantine=Quarantine(enforce=("xid",)))
DOUBTED = in_state(State.SUSPECT, checks=("xid",), reason="xid: 79", not_before_ticket=4, since=1.0)


@pytest.mark.parametrize("xid", [(unclear("xid"),), (skipped("xid", Cause.NOT_OBSERVABLE),), ()])
def test_a_failure_that_is_not_enforced_lets_nobody_back_who_is_still_suspected(
    xid: tuple[Result, ...],
) -> None:
    node = what_becomes(DOUBTED, run_of(*xid, failed("gemm")), site=XID)
    again = what_becomes(node, run_of(*xid, failed("gemm")), ticket(6), site=XID)

    assert (node.state, node.desired_hold) == (State.SUSPECT, Hold.RESERVATION)
    assert (node.checks, node.reason) == (("xid", "gemm"), "xid: 79; gemm: too slow")
    assert (node.not_before_ticket, node.since) == (4, 1.0)  # or a rerun would be due at once
    assert again == node


@pytest.mark.parametrize("xid", [a_result("xid"), skipped("xid"), failed("xid")])
def test_a_failure_that_is_not_enforced_lets_back_who_is_cleared_of_what_is(xid: Result) -> None:
    kept = replace(DOUBTED, checks=("acme", "xid"))
    site = replace(XID, suppress=(known("xid"),))

    node = what_becomes(kept, run_of(xid, failed("gemm")), site=site)

    assert (node.state, node.desired_hold) == (State.QUARANTINED, Hold.NONE)


def test_another_failure_that_is_enforced_confirms_a_suspicion() -> None:
    node = what_becomes(DOUBTED, run_of(unclear("xid"), failed("gemm")))

    assert (node.state, node.desired_hold) == OUT


BRAKED = {
    "reason": "sdc: a wrong word",
    "caveat": Caveat.NOT_TIGHTENED,
    "caveat_why": "the breaker tripped: 3 of 4",
}
KEPT = [(State.SUSPECT, ""), (State.VERIFYING, "ann")]


def spared(state: State, by: str, **changes: Any) -> Node:
    """Make a node with conclusive evidence that the brakes kept us from acting on."""
    kept = {"checks": ("sdc",), "conclusive": True, "run": "a", **BRAKED, **changes}
    return in_state(state, by=by, **kept)


@pytest.mark.parametrize(("state", "by"), KEPT)
@pytest.mark.parametrize("found", [a_result("sdc"), unclear("sdc"), a_result("gemm")])
def test_hard_evidence_that_was_not_acted_on_is_taken_back_by_no_rerun(
    state: State, by: str, found: Result
) -> None:
    node = what_becomes(spared(state, by), run_of(found, id="b"))

    assert (node.state, node.desired_hold, node.conclusive) == (*OUT, True)
    assert (node.checks, node.run, node.not_before_ticket) == (("sdc",), "a", 5)
    assert node.full_reason == (
        "conclusive evidence, which no rerun can take back: sdc: a wrong word"
    )


@pytest.mark.parametrize(("state", "by"), KEPT)
def test_hard_evidence_stays_beside_what_is_found_later_enforced_or_not(
    state: State, by: str
) -> None:
    site = Site(quarantine=Quarantine(enforce=("sdc",)))

    node = what_becomes(spared(state, by), run_of(failed("gemm"), id="b"), site=site)

    assert (node.state, node.desired_hold, node.conclusive) == (*OUT, True)
    assert (node.checks, node.run) == (("sdc", "gemm"), "b")
    assert node.full_reason.endswith(": sdc: a wrong word; gemm: too slow")


def test_hard_evidence_of_a_node_that_is_braked_again_is_told_once() -> None:
    out = what_becomes(spared(State.SUSPECT, ""), run_of(a_result("sdc")))
    braked = restrain_hold(spared(State.SUSPECT, ""), out, "the breaker tripped: 4 of 4")
    assert braked.full_reason == (
        "sdc: a wrong word (held no harder than before: the breaker tripped: 4 of 4)"
    )

    again = what_becomes(braked, run_of(a_result("sdc")), ticket(6))

    assert again.full_reason.count("conclusive evidence, which no rerun can take back: ") == 1


def test_hard_evidence_that_a_site_enforces_no_more_only_shows() -> None:
    before = spared(State.SUSPECT, "")

    node = what_becomes(before, run_of(a_result("sdc")), site=OBSERVING)

    assert (node.state, node.desired_hold) == (State.QUARANTINED, Hold.NONE)


def test_hard_evidence_makes_a_repeat_offender_like_any_other() -> None:
    node = what_becomes(spared(State.SUSPECT, ""), run_of(a_result("sdc")), past=2)

    assert (node.state, node.repeat_offender) == (State.REPEAT_OFFENDER, True)


def test_hard_evidence_that_is_suppressed_meanwhile_is_not_acted_on() -> None:
    site = replace(ENFORCING, suppress=(known("sdc"),))

    node = what_becomes(spared(State.SUSPECT, ""), run_of(a_result("sdc")), site=site)

    assert (node.state, node.conclusive) == (State.HEALTHY, False)


def test_hard_evidence_of_a_hook_is_taken_back_by_a_pass_of_ours() -> None:
    suspect = what_becomes(in_state(State.HEALTHY), run_of(corrupt()), None)

    node = what_becomes(suspect, run_of(a_result("sdc")))

    assert suspect.conclusive
    assert (node.state, node.conclusive, node.desired_hold) == (State.HEALTHY, False, Hold.NONE)


# -- what counts as a full pass


def test_a_passive_suite_is_no_full_pass_and_makes_no_node_healthy() -> None:
    quiet = run_of(a_result("xid"), skipped("gemm"), passive=True)

    node = what_becomes(in_state(State.UNVERIFIED), quiet)

    assert (node.state, node.last_pass_at, node.verdict) == (State.UNVERIFIED, 0, "pass")


@pytest.mark.parametrize(
    ("others", "full"),
    [
        ((a_result("ecc"), skipped("gemm")), False),
        ((a_result("gemm"),), True),
        ((a_result("of_a_package_that_is_gone"),), True),
    ],
)
def test_of_an_old_document_its_checks_tell_whether_it_was_passive(
    others: tuple[Result, ...], *, full: bool
) -> None:
    node = what_becomes(in_state(State.UNVERIFIED), run_of(a_result("xid"), *others))

    assert bool(node.last_pass_at) is full


def test_a_passive_suite_still_tells_what_fails_and_clears_a_suspect_of_it() -> None:
    suspect = in_state(State.SUSPECT, checks=("xid",))

    node = what_becomes(suspect, run_of(a_result("xid"), passive=True))

    assert (node.state, node.last_pass_at) == (State.HEALTHY, 0)
    worse = what_becomes(in_state(State.HEALTHY), run_of(failed("xid"), passive=True))
    assert worse.state is State.SUSPECT


def test_a_node_that_is_repaired_and_passes_a_passive_suite_is_back_unverified() -> None:
    repaired = in_state(State.VERIFYING, by="ada", checks=("xid",))

    node = what_becomes(repaired, run_of(a_result("xid"), passive=True))

    assert (node.state, node.desired_hold) == (State.UNVERIFIED, Hold.NONE)
    assert node.reason == "passed quick, which loads nothing: not fully verified"


# -- who comes back


def back(**changes: Any) -> Node:
    """Make a node that failed, and that somebody else put back into service."""
    return in_state(State.UNVERIFIED, checks=("gemm",), since=NOW - 60, **changes)


def test_who_was_put_back_unverified_owes_what_it_failed_until_it_passes_that() -> None:
    assert back().owed_checks == ("gemm",)

    other = what_becomes(back(), run_of(a_result(), suite="x"), ticket(suite="x"))
    assert (other.state, other.owed_checks) == (State.HEALTHY, ())
    none = run_of(a_result("sdc"), suite="x")
    lacking = what_becomes(back(), none, ticket(suite="x"))
    assert (lacking.state, lacking.owed_checks) == (State.UNVERIFIED, ("gemm",))
    same = what_becomes(back(), run_of(a_result("gemm")))
    assert (same.state, same.owed_checks) == (State.HEALTHY, ())
    gone = what_becomes(back(), run_of(a_result("sdc")))
    assert (gone.state, gone.owed_checks) == (State.HEALTHY, ())  # its suite has it no more


def test_who_owes_a_check_and_fails_another_has_failed_both() -> None:
    node = what_becomes(back(), run_of(failed("sdc")))

    assert (node.state, node.checks) == (State.SUSPECT, ("sdc", "gemm"))
    assert node.reason == "sdc: too slow; not verified since: failed gemm"
    hook = what_becomes(back(), run_of(failed("sdc"), a_result("gemm")), order=None)
    assert hook.checks == ("sdc", "gemm")  # its pass is of nobody
    ours = what_becomes(back(), run_of(failed("sdc"), a_result("gemm")))
    assert ours.checks == ("sdc",)


def test_who_passes_after_a_quarantine_came_back_and_who_is_new_did_not() -> None:
    repaired = in_state(State.VERIFYING, by="ada", checks=("gemm",))
    new = in_state(State.VERIFYING, by="ada")

    passed = run_of(a_result())

    assert what_becomes(repaired, passed).returned_at == (NOW,)
    assert what_becomes(new, passed).returned_at == ()


def test_who_is_taken_back_to_be_verified_is_acquitted_by_a_pass_alone() -> None:
    kept = keep_until_verified(back(conclusive=True), NOW, last=4)
    assert (kept.desired_hold, kept.not_before_ticket) == (Hold.RESERVATION, 4)

    assert what_becomes(kept, run_of(a_result())).state is State.HEALTHY
    again = what_becomes(kept, run_of(failed()))
    assert (again.state, again.desired_hold) == OUT
    assert what_becomes(kept, run_of(a_result()), ticket(4)) == kept


@pytest.mark.parametrize(
    ("ago", "told"), [((1, 2), True), ((1, 8), False), ((1,), False), ((), False)]
)
def test_the_reason_of_a_quarantine_says_who_came_back_twice_within_a_week(
    ago: tuple[float, ...], *, told: bool
) -> None:
    returned = tuple(NOW - days * 86400 for days in reversed(ago))
    node = in_state(State.HEALTHY, returned_at=returned)

    gone = what_becomes(node, run_of(corrupt()))

    assert (gone.state, gone.desired_hold) == OUT
    assert gone.full_reason.endswith("have a person repair it)") is told


# -- what the brakes keep from being acted on


def a_node(state: State, *, enforced: bool, by: str = "") -> Node:
    """Make one whose state is acted on, or is not."""
    return Node(name="n1", state=state, enforced=enforced, by=by, not_before_ticket=5)


@pytest.mark.parametrize("found", OBSERVED)
def test_who_is_in_service_is_shown_as_found_and_stays_in_service(found: State) -> None:
    before = a_node(State.HEALTHY, enforced=False)

    node = restrain_hold(before, a_node(found, enforced=True), "it tripped")

    assert (node.state, node.desired_hold) == (found, Hold.NONE)
    assert node.full_reason.endswith("(not acted on: it tripped)")


@pytest.mark.parametrize(
    ("state", "by", "becomes"),
    [
        (State.SUSPECT, "", State.SUSPECT),
        (State.VERIFYING, "", State.SUSPECT),
        (State.VERIFYING, "ada", State.VERIFYING),
    ],
)
def test_who_is_in_our_reservation_stays_there(state: State, by: str, becomes: State) -> None:
    before = a_node(state, enforced=True, by=by)

    node = restrain_hold(before, a_node(State.QUARANTINED, enforced=True), "it tripped")

    assert (node.state, node.by, node.not_before_ticket) == (becomes, by, 5)
    assert node.desired_hold is Hold.RESERVATION


@pytest.mark.parametrize("before", HOLD_BY_STATE)
def test_a_hold_that_gets_no_harder_is_as_it_was_found(before: State) -> None:
    found = a_node(State.HEALTHY, enforced=True)

    assert restrain_hold(a_node(before, enforced=True), found, "it tripped") is found


@pytest.mark.parametrize("evidence", [(True, False), (False, True), (False, False)])
@pytest.mark.parametrize("by", ["", "ada"])
def test_hard_evidence_is_kept_while_nobody_acts_on_it(
    evidence: tuple[bool, bool], by: str
) -> None:
    old, new = evidence
    before = replace(a_node(State.VERIFYING, enforced=True, by=by), conclusive=old)
    after = replace(a_node(State.QUARANTINED, enforced=True), conclusive=new)

    assert restrain_hold(before, after, "it tripped").conclusive is any(evidence)


def between_nodes(verdict: Verdict = Verdict.FAIL) -> Run:
    """Make a run of what a node does to collectives with others."""
    return run_of(failed("collectives", verdict=verdict), suite=FABRIC_SUITE)


def suspect_between_nodes() -> Node:
    """Make a node that an isolation has accused."""
    return what_becomes(Node(name="n1"), between_nodes(), order=None)


def test_a_node_that_spoils_collectives_with_others_cannot_clear_itself() -> None:
    """Not by a whole suite, nor by collectives among its own GPUs."""
    suspect = suspect_between_nodes()

    again = what_becomes(suspect, run_of(a_result("gemm"), a_result("collectives")))

    assert (suspect.state, suspect.enforced, suspect.suite) == (
        State.SUSPECT,
        False,
        FABRIC_SUITE,
    )
    assert again.state is State.SUSPECT
    assert again.last_pass_at == NOW, "what it passed, it passed"


def test_a_suspect_between_nodes_is_cleared_by_a_test_between_nodes_that_we_ordered() -> None:
    passed = between_nodes(Verdict.PASS)

    ours = what_becomes(suspect_between_nodes(), passed, ticket(suite=FABRIC_SUITE))
    anybodys = what_becomes(suspect_between_nodes(), passed, order=None)

    assert (ours.state, anybodys.state) == (State.HEALTHY, State.SUSPECT)


def test_a_node_that_fails_by_itself_too_is_quarantined_for_it() -> None:
    node = what_becomes(suspect_between_nodes(), run_of(failed("collectives")))

    assert node.state is State.QUARANTINED


def test_of_a_suspect_between_nodes_that_a_person_released_a_full_pass_counts() -> None:
    released = replace(suspect_between_nodes(), state=State.UNVERIFIED)

    assert what_becomes(released, run_of(a_result("gemm"))).state is State.HEALTHY


@pytest.mark.parametrize("way", ["repair", "admit"])
def test_a_node_that_spoiled_collectives_comes_back_by_a_suite_that_it_runs_alone(way: str) -> None:
    """No node can run the suite of what is between nodes, nor wait for it for ever."""
    decision = Decision(by="ann", reason="cable replaced", at=NOW, last_ticket=4)
    held = replace(suspect_between_nodes(), state=State.HELD, enforced=True)

    if way == "repair":
        node = repair(held, decision, suite=None, default="quick").node
    else:
        node = admit(suspect_between_nodes(), decision, suite="quick").node

    assert (node.state, node.suite, node.checks) == (State.VERIFYING, "quick", ())
    assert what_becomes(node, run_of(a_result("gemm"))).state is State.HEALTHY


def admitted(batch: str = "n[1-2]") -> Node:
    """Make a node that a person admitted with others."""
    decision = Decision(by="ann", reason="new", at=NOW, last_ticket=4)
    return admit(Node(name="n1"), decision, suite="quick", batch=batch).node


def test_a_node_of_a_batch_that_passes_by_itself_stays_out_until_it_is_tested_with_others() -> None:
    waits = what_becomes(admitted(), run_of(a_result("gemm")))
    inside = what_becomes(waits, between_nodes(Verdict.PASS), ticket(6, suite=FABRIC_SUITE))

    assert (waits.state, waits.suite, waits.desired_hold) == (
        State.VERIFYING,
        FABRIC_SUITE,
        Hold.RESERVATION,
    )
    assert waits.reason == "passed quick; to be tested with the others of n[1-2]"
    assert (inside.state, inside.batch, inside.desired_hold) == (State.HEALTHY, "", Hold.NONE)


def test_a_node_of_a_batch_that_fails_with_others_is_a_suspect_out_of_service() -> None:
    """Also where the site does not enforce the check: it was never in service."""
    waits = what_becomes(admitted(), run_of(a_result("gemm")))
    order = ticket(6, suite=FABRIC_SUITE)
    node = what_becomes(waits, between_nodes(), order, site=OBSERVING)

    assert (node.state, node.desired_hold, node.batch) == (State.SUSPECT, Hold.RESERVATION, "")


def test_a_node_of_a_batch_that_fails_by_itself_is_quarantined_as_any() -> None:
    node = what_becomes(admitted(), run_of(failed("gemm")))

    assert (node.state, node.batch) == (State.QUARANTINED, "")


def test_a_node_that_was_admitted_alone_waits_for_nobody() -> None:
    assert what_becomes(admitted(""), run_of(a_result("gemm"))).state is State.HEALTHY
