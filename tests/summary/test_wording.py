"""What one sees of a run in a log: where it is, what came of it."""

from __future__ import annotations

import pytest

from hpcverify.commands.show import format_row
from hpcverify.model import Cause, Limit, Measurement, Verdict
from hpcverify.plan.suite import Plan, Step, load_suite, make_plan
from hpcverify.summary.wording import (
    PlainProgress,
    format_headline,
    format_position,
    format_run,
)
from tests.doubles import a_result, a_run
from tests.plan.test_suite import SITE


def of_two(rounds: int) -> Plan:
    planned = make_plan(load_suite("prolog"), SITE, ("steady", "naughty"))
    steps: tuple[Step, ...] = planned.steps
    return Plan(suite="s", budget=1, rounds=rounds, steps=steps)


@pytest.mark.parametrize(
    ("place", "rounds", "text"),
    [
        (2, 1, "[2/2]"),
        (1, 12, "[round 1/12, 1/2]"),
        (2, 12, "[round 1/12, 2/2]"),
        (3, 12, "[round 2/12, 1/2]"),
        (24, 12, "[round 12/12, 2/2]"),
    ],
)
def test_a_check_has_its_place_in_its_round(place: int, rounds: int, text: str) -> None:
    assert format_position(place, of_two(rounds)) == text


def test_a_log_tells_once_what_keeps_several_checks_from_running(
    capsys: pytest.CaptureFixture[str],
) -> None:
    progress = PlainProgress()
    told = (("gemm", "no scratch"), ("sdc", "no scratch"), ("p2p", "no peer"))
    plan = of_two(1)
    for place, (name, reason) in enumerate((*told, ("gemm", "no scratch"))):
        progress.begin_step(plan.steps[place % 2], place % 2 + 1, plan, "the node")
        progress.end_step(a_result(name, verdict=Verdict.ERROR, reason=reason, seconds=0.0))

    assert capsys.readouterr().err.splitlines() == [
        "[1/2] ERROR gemm (0.0 s): no scratch",
        "[2/2] ERROR sdc (0.0 s): as for gemm",
        "[1/2] ERROR p2p (0.0 s): no peer",
        "[2/2] ERROR gemm (0.0 s): as before",
    ]


def test_checks_are_counted_and_not_their_rounds() -> None:
    slow = a_result(verdict=Verdict.FAIL, round=2, reason="slow", findings=())
    others = (a_result("ecc"), a_result("ecc", round=2))
    run = a_run(
        verdict=Verdict.FAIL,
        rounds=9,
        left_out="round 2 failed",
        results=(a_result(), slow, *others),
    )
    lines = format_run(run)

    assert lines == [
        "FAIL  n1  no GPU  suite quick  2 of 9 rounds  3.0 s",
        "  FAIL  node  1 fail (round 2), 1 pass  slow (gemm)  1. inspect the node",
        "7 rounds left out: round 2 failed",
        "1 passed: ecc",
        "next: drain the node, step 1, then: hpcverify run --suite quick --check gemm",
    ]


def test_what_was_skipped_comes_last_in_one_line() -> None:
    """A required check that was skipped counts as ERROR and comes first."""
    results = (
        a_result("p2p", verdict=Verdict.SKIP, reason="no GPU on this node"),
        a_result("gemm"),
        a_result("ecc", verdict=Verdict.SKIP, reason="no EDAC driver"),
        a_result("xid", verdict=Verdict.SKIP, reason="no GPU on this node"),
        a_result("smart", verdict=Verdict.SKIP, reason="denied", required=True),
    )
    first, passed, skipped = format_run(a_run(verdict=Verdict.ERROR, results=results))[1:-1]

    assert first.startswith("  ERROR node  denied (smart) [skipped, but required: counts as an")
    assert passed == "1 passed: gemm"
    assert [skipped] == ["3 skipped: no GPU on this node (p2p, xid); for other reasons: ecc"]


def test_an_interrupted_run_says_how_far_it_came() -> None:
    stopped = a_result(verdict=Verdict.ERROR, cause=Cause.INTERRUPTED, round=3)
    run = a_run(complete=False, rounds=9, results=(a_result(), stopped))

    head, *lines = format_run(run)
    assert "3 of 9 rounds" in head
    assert any("the run was interrupted before every check had run" in line for line in lines)


def test_a_line_on_a_later_round_names_it() -> None:
    assert format_headline(a_result()) == " gemm (2.0 s)"
    assert format_headline(a_result(round=2)) == " gemm (2.0 s, round 2)"


def test_a_value_and_its_limit_each_have_a_unit_that_suits_its_size() -> None:
    leftover = Measurement("memory.leftover", 2**-10, "GiB", "cpu")
    limits = (Limit(name="memory.leftover", high=1, source="default"),)
    left = a_result("gpu_setup", measurements=(leftover,), limits=limits)

    _, value, bounds, _ = format_row(leftover, left.limits)
    assert (value, bounds) == ("1 MiB", "≤ 1 GiB")


def test_a_line_break_in_a_name_makes_no_line_of_its_own() -> None:
    run = a_run(node="n1\nn2: PASS")

    assert all("\n" not in line for line in format_run(run))
