"""Whom a sweep chooses, and why it passes over the others."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from hpcverify.fleet.schedule import (
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
from tests.tables import read_table

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


@dataclass(frozen=True)
class Sweep:
    """
    A row of ``schedule.csv``: hosts that are idle, what is known of them, and what is chosen.

    Alternatives of a cell are divided by ``|``. Times are hours before now. Other hosts
    are passed over for a reason that begins as given; "any" stands for all that are left.
    """

    claim: str
    hosts: str
    nodes: str = ""
    sweep: str = ""
    chosen: str = ""
    whys: str = ""
    passed_over: str = ""


def read_words(text: str) -> tuple[str, dict[str, str]]:
    """Split a cell into its first word and the settings after it."""
    first, *words = shlex.split(text)
    return first, dict(word.split("=", 1) for word in words)


def read_hosts(text: str) -> dict[str, Host]:
    count, changes = read_words(text)
    return hosts(int(count), **{k: read_value(k, value) for k, value in changes.items()})


def read_value(name: str, value: str) -> object:
    kinds = {"flags": frozenset, "partitions": tuple, "checks": tuple}
    return kinds[name](value.split(",")) if name in kinds else value


def read_node(text: str) -> Node:
    name, given = read_words(text)
    at = {
        key: NOW - float(given.pop(key)) * HOUR_S
        for key in ("passed", "ran", "back") & given.keys()
    }
    node: dict[str, Any] = {"name": name, "last_pass_at": at.get("passed", 0.0)}
    node["last_run_at"] = at.get("ran", at.get("passed", 0.0))
    node["returned_at"] = [at["back"]] if "back" in at else []
    if "passed" in at:
        node["state"] = State.HEALTHY
    node |= {key: read_value(key, value) for key, value in given.items()}
    return msgspec.convert(node, Node, strict=False)


def make_plan(there: str, known: str, sweep: str) -> SweepPlan:
    _, given = read_words(f"sweep {sweep}")
    active = tuple(filter(None, given.pop("active", "").split(",")))
    options: dict[str, Any] = {k: given.pop(k).split(",") for k in ("only", "done") & given.keys()}
    if "limit" in given:
        options["limit"] = int(given.pop("limit"))
    if "risks" in given:
        pairs = (pair.split(":") for pair in given.pop("risks").split(","))
        options["risks"] = {name: float(risk) for name, risk in pairs}
    fleet = msgspec.convert({"at_once": 10_000, "share": 1, **given}, Fleet, strict=False)
    found = nodes(*map(read_node, filter(None, known.split("; "))))
    return plan_sweep(read_hosts(there), found, active, fleet, NOW, **options)


CASES = [
    pytest.param(row, there, known, id=row.claim)
    for row in read_table(Path(__file__).with_name("schedule.csv"), Sweep)
    for there in row.hosts.split(" | ")
    for known in row.nodes.split(" | ")
]


@pytest.mark.parametrize(("row", "there", "known"), CASES)
def test_sweep(row: Sweep, there: str, known: str) -> None:
    made = make_plan(there, known, row.sweep)

    kind, _, expected = row.chosen.partition(" ")
    if kind == "count":
        assert len(made.chosen) == int(expected)
    elif kind == "any":
        assert sorted(chosen(made)) == expected.split()
    else:
        assert chosen(made) == row.chosen.split()
    assert all(pick.gpus == 8 for pick in made.chosen)
    for pick, why in zip(made.chosen, filter(None, row.whys.split("; ")), strict=False):
        assert pick.why.startswith(why)
    if row.passed_over == "none":
        assert made.passed_over == ()
    elif row.passed_over:
        cells = row.passed_over.split("; ")
        if cells[-1].startswith("any "):
            cells += cells[-1:] * (len(made.passed_over) - len(cells))
        for (name, why), cell in zip(made.passed_over, cells, strict=True):
            named, _, begin = cell.partition(" ")
            assert named in {name, "any"}
            assert why.startswith(begin)


def test_a_drained_node_is_passed_over_with_its_reason_on_one_line() -> None:
    there = hosts(1, flags=frozenset({"DRAIN"}), reason="fan\nbroken")
    assert plan_sweep(there, {}, (), ALL, NOW).passed_over == (("n1", "is drained (fan broken)"),)


def test_nodes_verified_at_once_do_not_come_due_at_once() -> None:
    known = nodes(*(passed(f"n{i}", 18) for i in range(1, 101)))
    due = chosen(plan_sweep(hosts(100), known, (), ALL, NOW))
    assert 20 < len(due) < 80
    assert due == chosen(plan_sweep(hosts(100), known, (), ALL, NOW))
    assert due != chosen(plan_sweep(hosts(100), known, (), ALL, NOW, seed=1))


def test_a_node_counts_on_the_share_of_each_of_its_partitions() -> None:
    there = hosts(10) | {
        name: Host(name=name, state="IDLE", partitions=("big", "batch", "verify"))
        for name in ("n1", "n2")
    }

    made = plan_sweep(there, {}, (), Fleet(at_once=99, share=0.4), NOW)

    assert (len(made.chosen), len({"n1", "n2"} & set(chosen(made)))) == (4, 1)


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
    assert is_rerun_due(Node(name="n1", state=State.SUSPECT, not_before_ticket=5), last, NOW) is due


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


def test_who_is_new_to_the_cluster_has_waited_only_since_then() -> None:
    new = Node(name="n1", first_seen_at=NOW - 6 * DAY_S)
    assert not is_overdue(new, NOW - 90 * DAY_S, NOW, 7)
    assert is_overdue(replace(new, first_seen_at=NOW - 8 * DAY_S), NOW - 90 * DAY_S, NOW, 7)


def test_one_place_in_ten_is_for_who_has_waited_longest() -> None:
    known = nodes(*(passed(f"n{i}", 1000 - 10 * i) for i in range(1, 41)))
    risks = {f"n{i}": float(i) for i in range(1, 41)}

    plan = plan_sweep(hosts(40), known, (), ALL, NOW, risks=risks)
    made = chosen(plan)

    assert plan.chosen[PATIENT_PLACE].why == "last verified 41 days ago; has waited longest"
    assert made[:PATIENT_PLACE] == [f"n{40 - i}" for i in range(PATIENT_PLACE)]
    assert (made[PATIENT_PLACE], made[PATIENT_PLACE + PATIENT_PLACES]) == ("n1", "n2")
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
