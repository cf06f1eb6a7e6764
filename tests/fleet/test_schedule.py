"""Whom a sweep chooses, and why it passes over the others."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from hpcverify.fleet.schedule import (
    JITTER_SHARE,
    LOST_RETRY_S,
    PATIENT_PLACES,
    RETRY_S,
    SweepPlan,
    is_overdue,
    is_rerun_due,
    plan_sweep,
)
from hpcverify.fleet.states import DAY_S, HOUR_S, Node, State, Ticket
from hpcverify.plan.config import Fleet
from hpcverify.slurm import Host

NOW = 1_800_000_000.0
PATIENT_PLACE = PATIENT_PLACES - 1 - int(NOW // DAY_S) % PATIENT_PLACES
"""The first place of a sweep on this day that goes by how long a node has waited."""
ALL = Fleet(at_once=10_000, share=1)


def hosts(count: int, **changes: Any) -> dict[str, Host]:
    return {f"n{i}": a_host(f"n{i}", **changes) for i in range(1, count + 1)}


def a_host(name: str, **changes: Any) -> Host:
    """Make an idle host of eight GPUs, for users and for verification."""
    usual: dict[str, Any] = {"state": "IDLE", "partitions": ("batch", "verify"), "gpus": 8}
    return Host(name=name, **{**usual, **changes})


def nodes(*known: Node) -> dict[str, Node]:
    return {node.name: node for node in known}


def passed(name: str, hours: float, **changes: Any) -> Node:
    at = NOW - hours * HOUR_S
    usual: dict[str, Any] = {"state": State.HEALTHY, "last_pass_at": at, "last_run_at": at}
    return Node(name=name, **{**usual, **changes})


def chosen(made: SweepPlan) -> list[str]:
    return [pick.node for pick in made.chosen]


def test_an_idle_node_is_chosen_with_all_its_gpus() -> None:
    made = plan_sweep(hosts(1), {}, (), ALL, NOW)

    assert [(p.node, p.gpus, p.why) for p in made.chosen] == [("n1", 8, "never verified")]
    assert made.passed_over == ()


def test_a_node_in_several_partitions_is_chosen_once() -> None:
    there = hosts(2, partitions=("batch", "long", "verify", "debug"))

    assert sorted(chosen(plan_sweep(there, {}, (), ALL, NOW))) == ["n1", "n2"]


@pytest.mark.parametrize("state", ["ALLOCATED", "MIXED", "DOWN", "FUTURE", "ODD"])
def test_a_state_other_than_idle_is_passed_over(state: str) -> None:
    assert chosen(plan_sweep(hosts(1, state=state), {}, (), ALL, NOW)) == []


@pytest.mark.parametrize(
    "flag",
    [
        *("DRAIN", "RESERVED", "MAINT", "PLANNED", "POWERED_DOWN", "POWERING_DOWN"),
        *("COMPLETING", "NOT_RESPONDING", "REBOOT_REQUESTED", "NEVER_HEARD_OF"),
    ],
)
def test_a_flag_that_is_not_known_to_be_harmless_passes_a_node_over(flag: str) -> None:
    made = plan_sweep(hosts(1, flags=frozenset({flag})), {}, (), ALL, NOW)

    assert chosen(made) == []
    assert made.passed_over[0][1].startswith(("is ", "has ", "does "))


@pytest.mark.parametrize("flag", ["CLOUD", "DYNAMIC_NORM"])
def test_a_flag_that_says_where_a_node_comes_from_is_harmless(flag: str) -> None:
    assert chosen(plan_sweep(hosts(1, flags=frozenset({flag})), {}, (), ALL, NOW)) == ["n1"]


def test_a_drained_node_is_passed_over_with_its_reason_on_one_line() -> None:
    there = hosts(1, flags=frozenset({"DRAIN"}), reason="fan\nbroken")

    made = plan_sweep(there, {}, (), ALL, NOW)

    assert made.passed_over == (("n1", "is drained (fan broken)"),)


def test_what_others_hold_is_passed_over_though_it_looks_idle() -> None:
    known = nodes(Node(name="n1", foreign="drained by alice"))

    made = plan_sweep(hosts(1), known, (), ALL, NOW)

    assert made.passed_over == (("n1", "is held by others: drained by alice"),)


def test_a_node_that_is_to_be_drained_is_passed_over_before_slurm_shows_it() -> None:
    bad = Node(name="n1", state=State.QUARANTINED, reason="GPU 3 lost", enforced=True)

    made = plan_sweep(hosts(1), nodes(bad), (), ALL, NOW)

    assert made.passed_over == (("n1", "is quarantined: GPU 3 lost"),)


def test_a_node_with_a_ticket_is_passed_over() -> None:
    made = plan_sweep(hosts(2), {}, ("n1",), ALL, NOW)

    assert made.passed_over == (("n1", "is being verified"),)


def test_a_node_outside_the_partition_of_verification_is_passed_over() -> None:
    made = plan_sweep(hosts(1, partitions=("batch",)), {}, (), ALL, NOW)

    assert made.passed_over[0][1].startswith("is not in partition verify")


def test_our_own_reservation_does_not_keep_us_out() -> None:
    there = hosts(1, flags=frozenset({"MAINT", "RESERVED"}))
    suspect = Node(name="n1", state=State.SUSPECT, enforced=True, hold_id="hpcverify-1")

    assert chosen(plan_sweep(there, nodes(suspect), (), ALL, NOW)) == ["n1"]
    stranger = Node(name="n1", state=State.SUSPECT, enforced=True)
    assert chosen(plan_sweep(there, nodes(stranger), (), ALL, NOW)) == []


def test_suspects_come_first_then_the_never_verified_then_the_longest() -> None:
    known = nodes(
        passed("n1", 30),
        passed("n2", 300),
        passed("n4", 1, state=State.SUSPECT, reason="sdc failed"),
    )

    made = plan_sweep(hosts(4), known, (), ALL, NOW)

    assert chosen(made) == ["n4", "n3", "n2", "n1"]
    assert [p.why for p in made.chosen] == [
        "suspect: sdc failed",
        "never verified",
        "last verified 12 days ago",
        "last verified 30 h ago",
    ]


def test_a_node_that_can_never_be_judged_does_not_starve_the_others() -> None:
    unjudged = Node(name="n1", last_run_at=NOW - HOUR_S, verdict="error")
    known = nodes(unjudged, passed("n2", 30))

    assert chosen(plan_sweep(hosts(2), known, (), Fleet(at_once=1, share=1), NOW)) == ["n2"]


def test_a_fresh_pass_is_skipped_and_a_stale_one_is_not() -> None:
    known = nodes(passed("n1", 20 * (1 - JITTER_SHARE) - 0.1), passed("n2", 20.1))

    made = plan_sweep(hosts(2), known, (), ALL, NOW)

    assert chosen(made) == ["n2"]
    assert made.passed_over == (("n1", "passed 15 h ago"),)


@pytest.mark.parametrize("state", [State.UNVERIFIED, State.VERIFYING, State.SUSPECT, State.HELD])
def test_a_node_is_fresh_only_while_nothing_was_found_of_it(state: State) -> None:
    known = nodes(passed("n1", 1, state=state))

    assert chosen(plan_sweep(hosts(1), known, (), ALL, NOW)) == ["n1"]


@pytest.mark.parametrize("state", [State.QUARANTINED, State.REPEAT_OFFENDER])
def test_what_failed_and_is_observed_only_is_no_nodes_work_round_the_clock(state: State) -> None:
    made = plan_sweep(hosts(1), nodes(passed("n1", 1, state=state)), (), ALL, NOW)

    assert made.passed_over == (("n1", "failed 1 h ago, which is observed only"),)


@pytest.mark.parametrize("state", [State.QUARANTINED, State.REPEAT_OFFENDER])
def test_what_is_observed_only_is_verified_before_what_is_well(state: State) -> None:
    known = nodes(passed("n1", 300), passed("n3", 21, state=state, reason="sdc failed"))

    made = plan_sweep(hosts(3), known, (), ALL, NOW)

    assert chosen(made) == ["n3", "n2", "n1"]
    assert made.chosen[0].why == f"{state}: sdc failed"


def test_a_pass_by_a_clock_that_was_ahead_is_not_known_and_the_node_due() -> None:
    known = nodes(passed("n1", 30), passed("n2", -1e6))

    made = plan_sweep(hosts(2), known, (), ALL, NOW)

    assert chosen(made) == ["n2", "n1"]
    assert made.chosen[0].why == "last verified in the future"


def test_nodes_verified_at_once_do_not_come_due_at_once() -> None:
    known = nodes(*(passed(f"n{i}", 18) for i in range(1, 101)))

    due = chosen(plan_sweep(hosts(100), known, (), ALL, NOW))

    assert 20 < len(due) < 80
    assert due == chosen(plan_sweep(hosts(100), known, (), ALL, NOW))
    assert due != chosen(plan_sweep(hosts(100), known, (), ALL, NOW, seed=1))


def test_who_is_asked_for_by_name_is_verified_though_fresh_and_no_other_is() -> None:
    made = plan_sweep(hosts(3), nodes(passed("n2", 1)), (), ALL, NOW, only=("n2", "n9"))

    assert chosen(made) == ["n2"]
    assert made.passed_over == (("n9", "is not known to Slurm"),)


def test_no_more_at_once_than_the_site_allows_those_under_way_included() -> None:
    made = plan_sweep(hosts(9), {}, ("n1", "n2"), Fleet(at_once=5, share=1), NOW)

    assert len(made.chosen) == 3
    assert made.passed_over[-1][1] == "is due, but at_once = 5 are being verified"


def test_no_more_than_the_sweep_is_limited_to() -> None:
    assert len(plan_sweep(hosts(9), {}, (), ALL, NOW, limit=2).chosen) == 2
    assert plan_sweep(hosts(9), {}, (), ALL, NOW, limit=0).chosen == ()


@pytest.mark.parametrize(
    ("count", "share", "most"), [(1, 0.1, 1), (9, 0.1, 1), (11, 0.1, 2), (40, 0.5, 20)]
)
def test_a_share_is_rounded_up_and_is_one_node_at_least(
    count: int, share: float, most: int
) -> None:
    made = plan_sweep(hosts(count), {}, (), Fleet(at_once=99, share=share), NOW)

    assert len(made.chosen) == most


def test_a_node_counts_on_the_share_of_each_of_its_partitions() -> None:
    there = hosts(10) | {
        name: Host(name=name, state="IDLE", partitions=("big", "batch", "verify"))
        for name in ("n1", "n2")
    }

    made = plan_sweep(there, {}, (), Fleet(at_once=99, share=0.4), NOW)

    assert len(made.chosen) == 4
    assert len({"n1", "n2"} & set(chosen(made))) == 1


def test_those_under_way_count_on_the_share() -> None:
    made = plan_sweep(hosts(10), {}, ("n1", "n2"), Fleet(at_once=99, share=0.3), NOW)

    assert len(made.chosen) == 1


def test_a_node_that_we_keep_is_lost_anyway_and_counts_on_no_share() -> None:
    kept = Node(name="n1", state=State.SUSPECT, enforced=True, hold_id="hpcverify-1")

    made = plan_sweep(hosts(10), nodes(kept), (), Fleet(at_once=99, share=0.1), NOW)

    assert chosen(made)[0] == "n1"
    assert len(made.chosen) == 2


def test_who_had_its_turn_in_this_sweep_is_not_looked_at_again() -> None:
    made = plan_sweep(hosts(2), {}, (), ALL, NOW, done=("n1",))

    assert chosen(made) == ["n2"]
    assert made.passed_over == ()


def ended(number: int, ago: float) -> Ticket:
    """Make the ticket of a verification that ended *ago* seconds before now."""
    return Ticket(
        number=number,
        node="n1",
        token="t",  # noqa: S106 - a test's own
        purpose="confirm",
        suite="quick",
        made=NOW - ago - 60,
        job=7,
        ended=NOW - ago,
        ending="finished",
        run="",
    )


@pytest.mark.parametrize(
    ("last", "due"),
    [
        (None, True),
        (ended(5, 1), True),
        (ended(6, 1), False),
        (ended(6, LOST_RETRY_S - 1), False),
        (ended(6, LOST_RETRY_S + 1), True),  # it left no document
        (replace(ended(6, LOST_RETRY_S + 1), run="x"), False),
        (replace(ended(6, RETRY_S - 1), run="x"), False),
        (replace(ended(6, RETRY_S + 1), run="x"), True),
        (ended(6, -1e8), True),
    ],
)
def test_a_rerun_is_due_once_and_then_again_after_a_while(
    last: Ticket | None, *, due: bool
) -> None:
    suspect = Node(name="n1", state=State.SUSPECT, not_before_ticket=5)

    assert is_rerun_due(suspect, last, NOW) is due


@pytest.mark.parametrize("name", ["last_pass_at", "since"])
@pytest.mark.parametrize(("days", "waited"), [(1, False), (8, True), (-1000, True)])
def test_a_node_has_waited_if_nothing_is_known_to_have_come_of_it_lately(
    name: str, days: float, *, waited: bool
) -> None:
    node = passed("n1", 20 * 24, since=NOW - 20 * DAY_S)
    node = replace(node, **{name: NOW - days * DAY_S})

    assert is_overdue(node, NOW - 30 * DAY_S, NOW, 7) is waited
    assert not is_overdue(node, NOW - DAY_S, NOW, 7)


@given(
    states=st.lists(
        st.tuples(
            st.sampled_from(["IDLE", "ALLOCATED", "DOWN"]),
            st.frozensets(st.sampled_from(["DRAIN", "CLOUD", "PLANNED"])),
            st.sampled_from(list(State)),
            st.booleans(),
            st.integers(0, 50),
        ),
        max_size=30,
    ),
    at_once=st.integers(1, 9),
)
def test_every_node_is_either_chosen_or_passed_over_with_a_reason(
    states: list[tuple[str, frozenset[str], State, bool, int]], at_once: int
) -> None:
    there: dict[str, Host] = {}
    known: dict[str, Node] = {}
    for i, (state, flags, life, enforced, hours) in enumerate(states):
        there[f"n{i}"] = a_host(f"n{i}", state=state, flags=flags)
        known |= nodes(passed(f"n{i}", hours, state=life, enforced=enforced))

    made = plan_sweep(there, known, (), Fleet(at_once=at_once), NOW)

    assert sorted([*chosen(made), *(n for n, _ in made.passed_over)]) == sorted(there)
    assert all(why for _, why in made.passed_over)
    assert len(made.chosen) <= at_once
    assert all(there[n].state == "IDLE" for n in chosen(made))


def test_who_came_back_is_first_of_those_that_are_due_for_seven_days() -> None:
    known = nodes(
        passed("n1", 300),
        passed("n2", 30, returned_at=(NOW - 6 * DAY_S,)),
        passed("n3", 40, returned_at=(NOW - 8 * DAY_S,)),
        passed("n4", 1, returned_at=(NOW - DAY_S,)),  # it has just passed: not due
    )

    made = plan_sweep(hosts(5), known, (), ALL, NOW)

    assert chosen(made) == ["n2", "n5", "n1", "n3"]
    assert made.chosen[0].why == "came back 6 days ago"


def test_who_was_put_back_without_a_verification_comes_before_all_others() -> None:
    owing = passed("n3", 1, state=State.UNVERIFIED, checks=("sdc",), reason="put back")
    known = nodes(passed("n2", 30, returned_at=(NOW - DAY_S,)), owing)

    made = plan_sweep(hosts(3), known, (), ALL, NOW)

    assert chosen(made) == ["n3", "n2", "n1"]
    assert made.chosen[0].why == "unverified: put back"


def test_who_is_new_to_the_cluster_has_waited_only_since_then() -> None:
    new = Node(name="n1", first_seen_at=NOW - 6 * DAY_S)

    assert not is_overdue(new, NOW - 90 * DAY_S, NOW, 7)
    assert is_overdue(replace(new, first_seen_at=NOW - 8 * DAY_S), NOW - 90 * DAY_S, NOW, 7)


def test_of_those_that_are_due_the_riskiest_comes_first() -> None:
    known = nodes(passed("n1", 30), passed("n2", 40), passed("n3", 50))

    made = plan_sweep(hosts(3), known, (), ALL, NOW, risks={"n1": 3.0, "n2": 0.9})

    assert [(pick.node, pick.risk) for pick in made.chosen] == [
        ("n1", 3.0),
        ("n3", 1.0),
        ("n2", 0.9),
    ]
    assert made.due == ("n1", "n3", "n2")


def test_a_suspect_comes_before_the_riskiest() -> None:
    known = nodes(passed("n1", 30), passed("n2", 40, state=State.SUSPECT))

    assert chosen(plan_sweep(hosts(2), known, (), ALL, NOW, risks={"n1": 99.0})) == ["n2", "n1"]


def test_who_has_waited_for_longer_than_the_site_allows_comes_before_the_riskiest() -> None:
    known = nodes(passed("n1", 30), passed("n2", 24 * 8))
    fleet = Fleet(at_once=9, share=1, overdue_days=7)

    made = plan_sweep(hosts(2), known, (), fleet, NOW, risks={"n1": 99.0})

    assert chosen(made) == ["n2", "n1"]


def test_one_place_in_ten_is_for_who_has_waited_longest() -> None:
    known = nodes(*(passed(f"n{i}", 1000 - 10 * i) for i in range(1, 41)))
    risks = {f"n{i}": float(i) for i in range(1, 41)}

    plan = plan_sweep(hosts(40), known, (), ALL, NOW, risks=risks)
    made = chosen(plan)

    assert plan.chosen[PATIENT_PLACE].why == "last verified 41 days ago; has waited longest"
    assert made[:PATIENT_PLACE] == [f"n{40 - i}" for i in range(PATIENT_PLACE)]
    assert made[PATIENT_PLACE] == "n1"
    assert made[PATIENT_PLACE + PATIENT_PLACES] == "n2"
    assert sorted(made) == sorted(known)


def test_no_node_starves_in_sweeps_that_have_room_for_one_a_day() -> None:
    known = {f"n{i}": passed(f"n{i}", 1000 - i) for i in range(1, 9)}
    risks = {f"n{i}": float(i) for i in range(1, 9)}
    verified: set[str] = set()
    for day in range(PATIENT_PLACES * len(known)):
        now = NOW + day * DAY_S
        (name,) = chosen(plan_sweep(hosts(8), known, (), ALL, now, risks=risks, limit=1))
        known[name] = replace(known[name], last_pass_at=now, last_run_at=now)
        verified.add(name)

    assert verified == set(known)


def verify_each_night(
    known: dict[str, Node], room: int, nights: int, *, lost: int = 0, overdue: float = 0
) -> float:
    """
    Verify as many nodes as there is *room* for on each of some *nights*.

    The jobs of the first *lost* nodes never leave a document; all others pass, but for those
    that only fail again. Return the most days that any of the rest waited.
    """
    fleet = Fleet(at_once=10_000, share=1, overdue_days=overdue)
    risks = {name: 1.5 ** (i % 20) for i, name in enumerate(known)}
    without = set(list(known)[:lost])
    tried: dict[str, Ticket] = {}
    at = dict.fromkeys(known, NOW)
    most = 0.0
    for night in range(1, nights + 1):
        now = NOW + night * DAY_S
        plan = plan_sweep(
            {name: a_host(name) for name in known},
            known,
            (),
            fleet,
            now,
            tried=tried,
            risks=risks,
            limit=room,
        )
        for name in chosen(plan):
            ran = "" if name in without else "r"
            tried[name] = Ticket(night, name, "", "sweep", "idle", now, 1, now, "", ran)
            if ran:
                passes = known[name].state is State.HEALTHY
                change = {"last_pass_at": now} if passes else {}
                known[name] = replace(known[name], last_run_at=now, **change)
            at[name] = now
        others = known.keys() - without
        most = max(most, *(now - at[n] for n in others if known[n].state is State.HEALTHY))
    return most / DAY_S


def test_those_that_come_first_every_night_take_no_place_from_who_has_waited_longest() -> None:
    observed = {f"a{i}": passed(f"a{i}", 30, state=State.QUARANTINED) for i in range(3)}
    watched = {f"b{i}": passed(f"b{i}", 30, returned_at=(NOW + 99 * DAY_S,)) for i in range(3)}
    rest = {f"n{i}": passed(f"n{i}", 30) for i in range(4)}

    assert verify_each_night(observed | watched | rest, room=2, nights=80) <= 60


def test_nodes_whose_jobs_are_always_lost_do_not_take_all_places_for_who_has_waited() -> None:
    known = {f"n{i}": passed(f"n{i}", 30) for i in range(24)}

    assert verify_each_night(known, room=5, nights=130, lost=4) <= 60


def test_sweeps_that_could_go_through_the_fleet_in_half_of_the_period_keep_to_it() -> None:
    known = {f"n{i}": passed(f"n{i}", 30) for i in range(60)}
    known |= {f"a{i}": passed(f"a{i}", 30, state=State.QUARANTINED) for i in range(4)}

    assert verify_each_night(known, room=5, nights=80, lost=4, overdue=30) <= 30


def test_a_new_suspect_comes_before_who_has_waited_longest_on_any_day() -> None:
    known = {f"n{i}": passed(f"n{i}", 900) for i in range(4)}
    for day in range(PATIENT_PLACES):
        now = NOW + day * DAY_S
        known["n9"] = passed("n9", 1, state=State.SUSPECT, since=now - HOUR_S)
        made = plan_sweep({name: a_host(name) for name in known}, known, (), ALL, now, limit=1)

        assert chosen(made) == ["n9"]
