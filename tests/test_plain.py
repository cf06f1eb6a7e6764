"""What one sees of a run in a log: where it is, what came of it."""

from __future__ import annotations

import pytest

from hpcverify.model import Cause, Verdict
from hpcverify.plain import clock, headline, run_lines, summary, turn
from hpcverify.suite import Plan, Step, load_suite, plan
from tests.doubles import a_result, a_run
from tests.test_suite import SITE


def of_two(rounds: int) -> Plan:
    planned = plan(load_suite("prolog"), SITE, ("steady", "naughty"))
    steps: tuple[Step, ...] = planned.steps
    return Plan(suite="s", budget=1, rounds=rounds, steps=steps)


@pytest.mark.parametrize(
    ("seconds", "told"),
    [(59.9, "0:59"), (61, "1:01"), (3599, "59:59"), (86400 + 61, "24:01:01")],
)
def test_a_clock_has_hours_where_there_are_any(seconds: float, told: str) -> None:
    assert clock(seconds) == told


@pytest.mark.parametrize(
    ("place", "rounds", "told"),
    [
        (2, 1, "[2/2]"),
        (1, 12, "[round 1/12, 1/2]"),
        (2, 12, "[round 1/12, 2/2]"),
        (3, 12, "[round 2/12, 1/2]"),
        (24, 12, "[round 12/12, 2/2]"),
    ],
)
def test_a_check_has_its_place_in_its_round(place: int, rounds: int, told: str) -> None:
    assert turn(place, of_two(rounds)) == told


def test_checks_are_counted_and_not_their_rounds() -> None:
    slow = a_result(verdict=Verdict.FAIL, round=2, reason="slow")
    others = (a_result("ecc"), a_result("ecc", round=2))
    run = a_run(
        verdict=Verdict.FAIL,
        rounds=9,
        left_out="round 2 failed",
        results=(a_result(), slow, *others),
    )
    lines = run_lines(run)

    assert "2 of 9 rounds: 1 fail, 1 pass; 7 rounds left out: round 2 f" in lines[-1]
    assert lines[1] == "FAIL  gemm [1 fail (round 2), 1 pass]: slow"
    assert len(lines) == 5


def test_an_interrupted_run_says_how_far_it_came() -> None:
    stopped = a_result(verdict=Verdict.ERROR, cause=Cause.INTERRUPTED, round=3)
    run = a_run(complete=False, rounds=9, results=(a_result(), stopped))

    assert summary(run).startswith(" (interrupted) after 0:03 of suite quick, 3 of 9")


def test_a_line_on_a_later_round_names_it() -> None:
    assert headline(a_result()) == " gemm (2.0 s)"
    assert headline(a_result(round=2)) == " gemm (2.0 s, round 2)"
