"""The table of transitions holds, whatever happens to a node and in whatever order."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from hpcverify.errors import ActionError
from hpcverify.fleet import transitions
from hpcverify.fleet.evidence import Evidence, is_enforced
from hpcverify.fleet.states import FAILED_STATES, Hold, Node, State
from hpcverify.fleet.transitions import (
    IN_SERVICE_STATES,
    RESERVED_STATES,
    TRANSITIONS,
    Decision,
    NodeEvent,
)
from hpcverify.model import Cause, Verdict
from hpcverify.plan.config import Quarantine, Site
from tests.fleet.states_page import PAGE, replace_table

CHECKS: tuple[str, ...] = ("gemm", "sdc")
SITES = [
    Site(),
    Site(quarantine=Quarantine(enforce=("*",), fail_closed=("sdc",))),
    Site(quarantine=Quarantine(enforce=("sdc",), drain_errors=(Cause.CRASHED,))),
]
CALM = Site()
SUITES = st.sampled_from(["quick", "quick", "burnin"])
MOSTLY = st.sampled_from([True, True, True, False])
Step = tuple[Callable[[Node, float], Node], Evidence | None, Site, bool]
"""What happens; the run that it is, if it is one; the site; whether a person did it."""


@st.composite
def nodes(draw: st.DrawFn) -> Node:
    """Draw a node as it may be found, held or not."""
    state = draw(st.sampled_from([*State, *RESERVED_STATES, *RESERVED_STATES]))
    failed = state not in IN_SERVICE_STATES and draw(MOSTLY)
    return Node(
        name="n1",
        state=state,
        enforced=state not in IN_SERVICE_STATES and (state not in FAILED_STATES or draw(MOSTLY)),
        checks=draw(st.sampled_from([("gemm",), ("sdc",), ("gemm", "sdc")])) if failed else (),
        conclusive=failed and draw(st.booleans()),
        by=draw(st.sampled_from(["", "ada"])) if state is State.VERIFYING else "",
        suite=draw(SUITES),
        not_before_ticket=draw(st.sampled_from([0, 3, 5])),
        repeat_offender=failed and not draw(MOSTLY),
    )


@st.composite
def evidence(draw: st.DrawFn) -> Evidence:
    """Draw what a run may say."""
    rest = draw(st.sampled_from(["passed", "absent", "absent", "suppressed", "gone", "silent"]))
    odd = draw(st.sampled_from(["failed", "hard", "passed", "standing", rest]))
    said = dict.fromkeys(CHECKS, rest) | {draw(st.sampled_from(CHECKS)): odd}
    failed = {c: k == "hard" for c, k in said.items() if k in {"failed", "hard"}}
    known = tuple(check for check, k in said.items() if k == "suppressed")
    silent = {check: "no library" for check, k in said.items() if k == "silent"}
    cause = draw(st.sampled_from([Cause.MISSING, Cause.CRASHED]))
    unjudged = tuple((cause, f"{check}: no library") for check in silent)
    verdict = Verdict.FAIL if failed or known else Verdict.ERROR if unjudged else Verdict.PASS
    return Evidence(
        id="a",
        node="n1",
        suite=draw(SUITES),
        ticket=draw(st.sampled_from([0, 3, 9, 9, 9])),
        complete=draw(MOSTLY),
        passive=not draw(MOSTLY),
        verdict=verdict,
        failures=failed,
        diagnoses=(),
        suppressed_checks=known,
        passed_checks=frozenset(c for c, k in said.items() if k in {"passed", "standing"}),
        unresolved_checks=frozenset(check for check, k in said.items() if k == "standing"),
        not_applicable=frozenset(check for check, k in said.items() if k == "gone"),
        unanswered_checks=silent,
        unjudged=unjudged,
    )


@st.composite
def runs(draw: st.DrawFn) -> Step:
    """Draw a run that is judged, with a brake on it or without."""
    found, site = draw(evidence()), draw(st.sampled_from(SITES))
    past, brake = draw(st.integers(0, 3)), not draw(MOSTLY)

    def judge(node: Node, now: float) -> Node:
        after = transitions.apply_evidence(node, found, site, now, past)
        return transitions.restrain_hold(node, after, "it tripped") if brake else after

    return judge, found, site, False


def decide(event: Callable[..., Any], **options: Any) -> Step:
    """Make a person's decision, which may be refused."""

    def act(node: Node, now: float) -> Node:
        decision = Decision(by="ada", reason="so", at=now, last_ticket=int(now) % 5)
        try:
            return event(node, decision, **options).node  # type: ignore[no-any-return]
        except ActionError:
            return node

    return act, None, CALM, True


def happen(
    may: Callable[[Node], bool], event: Callable[[Node, float], Node], *, person: bool
) -> Step:
    """Make what happens only to a node that it *may* happen to."""
    return (lambda node, now: event(node, now) if may(node) else node), None, CALM, person


def held(node: Node) -> bool:
    """Whether it is out of service, and not for its turn alone."""
    return node.desired_hold is not Hold.NONE and not node.awaits_verification


DOUBTS: dict[str, str] = dict.fromkeys(CHECKS, "fails on many")
HAPPENINGS = [
    decide(transitions.hold),
    decide(transitions.release),
    decide(transitions.release, force=True),
    decide(transitions.repair, suite=None, default="quick"),
    decide(transitions.admit, suite="burnin"),
    happen(held, lambda node, _: transitions.give_up_hold(node, ""), person=True),
    happen(held, lambda node, _: transitions.give_up_hold(node, "fan"), person=True),
    happen(
        lambda node: bool(node.owed_checks),
        lambda node, now: transitions.keep_until_verified(node, now, 3),
        person=False,
    ),
    happen(
        lambda node: node.state in IN_SERVICE_STATES,
        lambda node, now: transitions.reserve_overdue(node, "quick", 7, now, 3),
        person=False,
    ),
    happen(
        lambda node: node.awaits_verification,
        lambda node, now: transitions.end_verification(node, "it was cancelled", now),
        person=False,
    ),
    happen(
        partial(transitions.has_unanswered_evidence, site=SITES[1]),
        lambda node, _: transitions.reserve_for_evidence(node, 3),
        person=False,
    ),
    happen(lambda _: True, transitions.forget_evidence, person=True),
    happen(
        partial(transitions.explains_refusal, site=SITES[1]),
        lambda node, now: transitions.quarantine_refused(node, "Prolog", SITES[1], now, 1),
        person=False,
    ),
]


@given(nodes(), st.lists(st.one_of(runs(), runs(), st.sampled_from(HAPPENINGS)), max_size=5))
@settings(max_examples=300)
def test_no_sequence_of_events_leaves_the_table_or_frees_who_neither_passed_nor_was_let_go(
    node: Node, steps: list[Step]
) -> None:
    for now, (act, found, site, person) in enumerate(steps, 1):
        before, node = node, act(node, float(now))

        if node.state is not before.state:
            assert any(
                before.state in rule.before and rule.after in {None, node.state}
                for rule in TRANSITIONS.values()
            )
        assert node.enforced is (node.desired_hold is not Hold.NONE)
        if held(before) and not held(node) and not person:
            assert found is not None
            assert before.state in RESERVED_STATES
            assert found.complete
            assert found.ticket > before.not_before_ticket
            owed = {c for c in before.checks if is_enforced([c], site)}
            assert found.cleared_checks >= owed
            assert not (before.by and (found.failures or before.repeat_offender))


def test_a_doubt_lets_go_of_a_suspect_without_conclusive_evidence_alone() -> None:
    suspect = Node(name="n1", state=State.SUSPECT, enforced=True, checks=("gemm",))
    assert transitions.release_if_doubted(suspect, DOUBTS).desired_hold is Hold.NONE
    conclusive = replace(suspect, conclusive=True)
    assert transitions.release_if_doubted(conclusive, DOUBTS) == conclusive


@pytest.mark.parametrize("state", [State.HEALTHY, State.UNVERIFIED])
def test_what_the_table_does_not_know_is_a_mistake_of_ours(state: State) -> None:
    with pytest.raises(ValueError, match="not for the event VERIFICATION_END"):
        transitions.end_verification(Node(name="n1", state=state), "so", 1.0)


def test_every_state_is_entered_and_left_by_some_event() -> None:
    entered = {rule.after for rule in TRANSITIONS.values()} - {None}
    assert entered == set(State)
    assert set(TRANSITIONS) == set(NodeEvent)


def test_the_page_shows_the_table_as_it_is() -> None:
    page = PAGE.read_text()
    assert page == replace_table(page), "make states writes it anew"


def test_no_other_file_of_the_product_sets_a_state() -> None:
    product = Path(transitions.__file__).parents[1]
    strays = {
        str(path.relative_to(product))
        for path in product.rglob("*.py")
        if re.search(r"\bstate\"?\s*[=:]\s*State\.", path.read_text())
    }

    assert strays == set()
