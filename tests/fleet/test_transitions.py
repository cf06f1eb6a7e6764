"""
What a run makes of a node: ``transitions.csv``, a claim per row, and what no row can hold.

Alternatives of a cell are divided by ``|``, and ``>`` divides the steps of the evidence. A
step is a run (its results as ``check:outcome``, and how it came), or a person's decision.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from functools import partial
from itertools import product
from math import inf
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from hpcverify.errors import ActionError
from hpcverify.fleet.evidence import Evidence, extract_evidence
from hpcverify.fleet.states import (
    DAY_S,
    HOLD_BY_STATE,
    HOUR_S,
    Caveat,
    Hold,
    Node,
    State,
    Ticket,
    is_watched,
)
from hpcverify.fleet.transitions import (
    Decision,
    admit,
    apply_evidence,
    explains_refusal,
    forget_evidence,
    hold,
    keep_until_verified,
    quarantine_refused,
    release,
    repair,
    reserve_for_evidence,
    restrain_hold,
)
from hpcverify.model import Cause, Maturity, Result, Source, Verdict, verdict_of
from hpcverify.plan.config import Quarantine, Site, Suppression
from tests.doubles import a_result, a_run
from tests.fleet.builders import NOW, make_wrong_word
from tests.tables import read_table

SUPPRESSED_UNTIL = date(2027, 1, 15)
"""The day of `NOW`."""
REASONS = {"chassis": "power supply 2 has failed"}
FIRST_TICKET = 5
BASES: dict[str, dict[str, Any]] = {
    "@repaired": {
        "by": "ann",
        "checks": ("gemm", "pcie"),
        "reason": "new riser",
        "last_pass_at": 1.0,
    },
    "@doubted": {"checks": ("xid",), "reason": "xid: 79", "not_before_ticket": 4, "since": 1.0},
    # conclusive evidence that the brakes kept us from acting on
    "@spared": {
        "checks": ("sdc",),
        "conclusive": True,
        "run": "a",
        "reason": "sdc: a wrong word",
        "caveat": Caveat.NOT_TIGHTENED,
        "caveat_why": "the breaker tripped: 3 of 4",
    },
    # it failed, and somebody else put it back into service
    "@back": {"checks": ("gemm",), "since": NOW - 60},
}


@dataclass(frozen=True)
class Claim:
    """A row of ``transitions.csv``."""

    claim: str
    before: str
    site: str
    state: str
    hold: str
    evidence: str = ""
    rest: str = ""


def make_result(check: str, outcome: str) -> Result:
    """Make a result of *check*: "fail" may be cleared by a rerun, "wrong" may not."""
    kind, _, detail = outcome.partition(".")
    reason = REASONS.get(check, "too slow")
    if kind in {"pass", "warn"}:
        return a_result(check, verdict=Verdict(kind))
    if kind == "wrong":
        return make_wrong_word(check, limits=())
    changes: dict[str, dict[str, Any]] = {
        "fail": {"verdict": Verdict.FAIL, "reason": reason},
        "beta": {"verdict": Verdict.FAIL, "reason": reason, "maturity": Maturity.BETA},
        "error": {"verdict": Verdict.ERROR, "reason": "no library", "cause": Cause.MISSING},
        "skip": {"verdict": Verdict.SKIP, "reason": "no such part", "cause": Cause.NOT_APPLICABLE},
    }
    made = a_result(check, findings=(), limits=(), **changes[kind])
    if detail == "required":
        return replace(made, required=True)
    return replace(made, cause=Cause[detail.upper()]) if detail else made


def make_node(text: str) -> Iterator[Node]:
    """Make a node in each of the states that *text* begins with, held as they are by default."""
    states, *words = shlex.split(text)
    for state in State if states == "any" else [State[s.upper()] for s in states.split(",")]:
        held = state not in (State.HEALTHY, State.UNVERIFIED)
        node = Node(name="n1", state=state, enforced=held, suite="quick")
        for word in words:
            name, _, value = word.partition("=")
            node = replace(
                node, **(BASES[name] if name in BASES else {name: read(node, name, value)})
            )
        yield node


def read(node: Node, name: str, value: str) -> Any:
    kind = type(getattr(node, name))
    if kind is bool:
        return value == "yes"
    if kind is tuple:
        return tuple(value.split(","))
    if kind is dict:
        return {value: REASONS[value]}
    return kind(value)


def show(value: object) -> str:
    """Write *value* as ``transitions.csv`` does."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (tuple, dict)):
        return ",".join(map(show, value))
    if isinstance(value, float):
        return "now" if value == NOW else f"{value:g}"
    return str(value)


def make_site(text: str) -> Site:
    """Make a site that enforces the first word of *text*; "-" enforces nothing."""
    enforce, *words = text.split()
    policy: dict[str, Any] = {"enforce": () if enforce == "-" else (enforce,)}
    suppressed: list[Suppression] = []
    for word in words:
        key, _, value = word.partition("=")
        if key == "drain":
            policy["drain_errors"] = (Cause[value.upper()],)
        elif key == "closed":
            policy["fail_closed"] = ("sdc", "gemm")
        else:
            check, _, nodes = value.partition("@")
            suppressed.append(
                Suppression(
                    check=check,
                    nodes=nodes or "n1",
                    until=SUPPRESSED_UNTIL,
                    reason="fans",
                    by="ann",
                )
            )
    return Site(quarantine=Quarantine(**policy), suppress=tuple(suppressed))


def take_step(node: Node, step: str, site: Site, number: int) -> Node:
    """Return *node* after *step*, which gets the ticket *number* if it is a run."""
    words = shlex.split(step)
    results = tuple(make_result(*word.split(":")) for word in words if ":" in word)
    how = dict(word.partition("=")[::2] for word in words if ":" not in word)
    now, past = NOW + float(how.get("at", 0)), int(how.get("past", 0))
    if not results:
        return decide(node, how, site, number, past)
    source = next((s for s in (Source.BMC, Source.FABRIC) if s in how), Source.RUN)
    suite = how.get("suite", "quick") if source is Source.RUN else source.value
    ticket = Ticket(
        number=int(how.get("ticket", number)),
        node="n1",
        token="t",  # noqa: S106 - a test's own
        purpose="sweep",
        suite=suite,
        made=NOW,
        job=7,
        ended=0.0,
        ending="",
        run="another" if "used" in how else "",
    )
    cut = {"complete": False, "verdict": Verdict.ERROR} if "cut" in how else {}
    run = a_run(
        results=results,
        suite=how.get("ran", suite),
        **({"id": how["id"]} if "id" in how else {}),
        **({"passive": True} if "passive" in how else {}),
        **{"verdict": verdict_of(results), **cut},
    )
    ordered = None if source is Source.BMC or "hook" in how else ticket
    found = extract_evidence(run, ordered, site, now, source)
    after = apply_evidence(node, found, site, now, past)
    return restrain_hold(node, after, "it tripped") if "braked" in how else after


def decide(node: Node, how: dict[str, str], site: Site, number: int, past: int) -> Node:
    """Return *node* after a decision: only a run with the ticket *number* or later counts."""
    decision = Decision(by="ann", reason="new", at=NOW, last_ticket=number - 1)
    happenings = {
        "refused": partial(quarantine_refused, node, "Prolog error", site, NOW, past),
        "keep": partial(keep_until_verified, node, NOW, last=number - 1),
        "reserved": partial(reserve_for_evidence, node, last=number - 1),
        "reset": partial(forget_evidence, node, NOW),
    }
    match next(iter(how)):
        case word if word in happenings:
            return happenings[word]()
        case "hold":
            return hold(node, decision).node
        case "repair":
            return repair(node, decision, suite=None, default="quick").node
        case "admit":
            return admit(node, decision, suite="quick", batch=how["admit"]).node
        case word:
            return release(node, decision, force=word == "force").node


def follow(node: Node, evidence: str, site: str = "*") -> Node:
    for number, step in enumerate(filter(None, evidence.split(" > ")), FIRST_TICKET):
        node = take_step(node, step, make_site(site), number)
    return node


def list_cases() -> Iterator[Any]:
    for row in read_table(Path(__file__).with_name("transitions.csv"), Claim):
        for before, evidence in product(row.before.split(" | "), row.evidence.split(" | ")):
            for node in make_node(before):
                yield pytest.param(row, node, evidence, id=row.claim)


@pytest.mark.parametrize(("row", "before", "evidence"), list(list_cases()))
def test_transition(row: Claim, before: Node, evidence: str) -> None:
    node = follow(before, evidence, row.site)

    if row.state == "unchanged":
        assert node == before
    elif row.state != "same":
        assert node.state is State[row.state.upper()]
    else:
        assert node.state is before.state
    assert node.desired_hold is (before.desired_hold if row.hold == "same" else Hold(row.hold))
    for word in shlex.split(row.rest):
        name, _, expected = word.partition("=")
        if name == "refuses":
            assert show(explains_refusal(node, make_site(row.site))) == expected
        elif name.endswith("^"):
            assert show(getattr(node, name[:-1])).startswith(expected)
        else:
            assert show(getattr(node, name)) == expected


OUTCOMES = ("pass", "warn", "fail", "wrong", "error", "error.crashed", "skip", "beta")
RUNS = st.lists(
    st.tuples(
        st.sampled_from(("gemm", "sdc", "xid", "chassis", "collectives")), st.sampled_from(OUTCOMES)
    ).map(":".join),
    min_size=1,
    max_size=3,
    unique_by=lambda result: result.partition(":")[0],
).map(" ".join)
NODES = st.builds(
    replace,
    st.sampled_from(list(make_node("any"))),
    by=st.sampled_from(("", "ann")),
    checks=st.sampled_from(((), ("gemm",), ("sdc", "xid"))),
    conclusive=st.booleans(),
    repeat_offender=st.booleans(),
)


@given(node=NODES, runs=st.lists(RUNS, min_size=1, max_size=4))
def test_no_run_holds_a_node_in_service_without_a_check_that_is_enforced(
    node: Node, runs: list[str]
) -> None:
    if node.desired_hold is not Hold.NONE:
        node = replace(node, enforced=False, by="")
    assert follow(node, " > ".join(runs), "-").desired_hold is Hold.NONE


@given(
    node=NODES, runs=st.lists(RUNS, min_size=1, max_size=4), how=st.sampled_from(("hook", "bmc"))
)
def test_no_run_releases_a_node_without_a_ticket(node: Node, runs: list[str], how: str) -> None:
    after = follow(node, " > ".join(f"{run} {how}" for run in runs))
    assert after.desired_hold is node.desired_hold


# -- what no row can hold


def test_a_release_takes_force_while_the_bmc_shows_a_failure() -> None:
    held = follow(Node(name="n1", state=State.HEALTHY), "chassis:fail bmc > hold")
    with pytest.raises(ActionError, match="has not passed chassis since it failed"):
        follow(held, "release")


def test_a_reason_from_a_node_is_cut() -> None:
    run = a_run(results=(replace(make_result("gemm", "fail"), reason="x" * 10**6),))
    found = extract_evidence(run, None, make_site("*"), NOW)
    assert len(apply_evidence(Node(name="n1"), found, make_site("*"), NOW, 0).reason) == 900


@pytest.mark.parametrize(
    ("ago", "told"), [((1, 2), True), ((1, 8), False), ((1,), False), ((), False)]
)
def test_the_reason_of_a_quarantine_says_who_came_back_twice_within_a_week(
    ago: tuple[float, ...], *, told: bool
) -> None:
    returned = tuple(NOW - days * 86400 for days in reversed(ago))
    gone = follow(Node(name="n1", state=State.HEALTHY, returned_at=returned), "sdc:wrong")
    assert (gone.state, gone.desired_hold) == (State.QUARANTINED, Hold.DRAIN)
    assert gone.full_reason.endswith("have a person repair it)") is told


# -- nodes that fail now and then


def live(chance: float, random: Random, nights: int) -> tuple[float, float]:
    """
    Verify a node each night, and twice while it is watched; *chance* is that a run fails.

    Return how many nights after its first failure it is quarantined, and in which night.
    """
    node = Node(name="n1", state=State.HEALTHY)
    site, runs = make_site("*"), {word: make_evidence(word) for word in ("fail", "pass")}
    first, ticket = 0, 0
    for night in range(1, nights + 1):
        for at in (0, 5 * HOUR_S) if is_watched(node, NOW + night * DAY_S) else (0,):
            while True:
                ticket += 1
                word = "fail" if random.random() < chance else "pass"
                first = first or (night if word == "fail" else 0)
                now = NOW + night * DAY_S + at + ticket
                node = apply_evidence(node, replace(runs[word], ticket=ticket), site, now, 0)
                if node.state is State.QUARANTINED:
                    return night - first, night
                if node.state is State.HEALTHY:
                    break
    return inf, inf


def make_evidence(outcome: str) -> Evidence:
    results = (make_result("gemm", outcome),)
    run = a_run(results=results, verdict=verdict_of(results))
    ticket = Ticket(1, "n1", "t", "sweep", "quick", NOW, 7, 0.0, "", "")
    return extract_evidence(run, ticket, make_site("*"), NOW)


def test_a_node_that_fails_one_run_in_three_is_out_within_a_week_of_its_first_failure() -> None:
    random = Random(5)  # noqa: S311 - a simulation
    lives = [live(1 / 3, random, 60) for _ in range(2000)]
    assert sum(later <= 7 for later, _ in lives) >= 1980
    assert sum(night <= 14 for _, night in lives) >= 1970


def test_nodes_that_fail_one_run_in_200_stay_in_service_for_four_months() -> None:
    random = Random(6)  # noqa: S311 - a simulation
    assert sum(live(1 / 200, random, 120)[1] < inf for _ in range(1000)) <= 15


# -- what the brakes keep from being acted on


def a_node(state: State, *, enforced: bool, by: str = "") -> Node:
    """Make one whose state is acted on, or is not."""
    return Node(name="n1", state=state, enforced=enforced, by=by, not_before_ticket=5)


@pytest.mark.parametrize("before", HOLD_BY_STATE)
def test_a_hold_that_gets_no_harder_is_as_it_was_found(before: State) -> None:
    found = a_node(State.HEALTHY, enforced=True)
    assert restrain_hold(a_node(before, enforced=True), found, "it tripped") == found


@pytest.mark.parametrize("evidence", [(True, False), (False, True), (False, False)])
@pytest.mark.parametrize("by", ["", "ada"])
def test_hard_evidence_is_kept_while_nobody_acts_on_it(
    evidence: tuple[bool, bool], by: str
) -> None:
    old, new = evidence
    before = replace(a_node(State.VERIFYING, enforced=True, by=by), conclusive=old)
    after = replace(a_node(State.QUARANTINED, enforced=True), conclusive=new)
    assert restrain_hold(before, after, "it tripped").conclusive is any(evidence)
