"""What one sees of a run in a log: where it is, what came of it."""

from __future__ import annotations

import pytest

from hpcverify.check import judge
from hpcverify.model import (
    Cause,
    Finding,
    FindingRule,
    Inventory,
    Limit,
    Measurement,
    Part,
    Remedy,
    Run,
    Verdict,
)
from hpcverify.plan.suite import Plan, Step, load_suite, make_plan
from hpcverify.summary.wording import (
    MAX_LINE_CHARACTERS,
    explain_verdict,
    format_cells,
    format_duration,
    format_headline,
    format_next_steps,
    format_position,
    format_run,
    format_summary,
    shorten,
)
from tests.doubles import a_result, a_run
from tests.plan.test_suite import SITE


def of_two(rounds: int) -> Plan:
    planned = make_plan(load_suite("prolog"), SITE, ("steady", "naughty"))
    steps: tuple[Step, ...] = planned.steps
    return Plan(suite="s", budget=1, rounds=rounds, steps=steps)


@pytest.mark.parametrize(
    ("seconds", "told"), [(59.9, "0:59"), (61, "1:01"), (3599, "59:59"), (86400 + 61, "24:01:01")]
)
def test_a_clock_has_hours_where_there_are_any(seconds: float, told: str) -> None:
    assert format_duration(seconds) == told


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
    assert format_position(place, of_two(rounds)) == told


def test_checks_are_counted_and_not_their_rounds() -> None:
    slow = a_result(verdict=Verdict.FAIL, round=2, reason="slow")
    others = (a_result("ecc"), a_result("ecc", round=2))
    run = a_run(
        verdict=Verdict.FAIL,
        rounds=9,
        left_out="round 2 failed",
        results=(a_result(), slow, *others),
    )
    lines = format_run(run)

    assert "2 of 9 rounds: 1 fail, 1 pass; 7 rounds left out: round 2 f" in lines[-1]
    assert lines[1] == "FAIL  gemm [1 fail (round 2), 1 pass]: slow"
    assert len(lines) == 5


def test_a_reason_that_another_check_gave_is_not_repeated() -> None:
    results = [
        a_result(check, verdict=Verdict.ERROR, reason=reason, findings=(), limits=())
        for check, reason in {
            "inventory": "node: NVML does not start",
            "ecc": "NVML does not start",
            "nvlink": "another",
            "pcie": "NVML does not start",
        }.items()
    ]

    assert format_run(a_run(results=tuple(results)))[1:-2] == [
        "ERROR inventory: node: NVML does not start",
        "ERROR ecc: the same as inventory",
        "ERROR nvlink: another",
        "ERROR pcie: the same as inventory",
    ]


def test_what_was_skipped_comes_last_in_one_line() -> None:
    """A required check that was skipped counts as ERROR, and stands above."""
    results = (
        a_result("p2p", verdict=Verdict.SKIP, reason="no GPU on this node"),
        a_result("gemm"),
        a_result("ecc", verdict=Verdict.SKIP, reason="no EDAC driver"),
        a_result("xid", verdict=Verdict.SKIP, reason="no GPU on this node"),
        a_result("smart", verdict=Verdict.SKIP, reason="denied", required=True),
    )
    first, second, *skipped = format_run(a_run(results=results))[1:-2]

    assert (first, second.split(":")[0]) == ("SKIP  smart: denied", "PASS  gemm")
    assert skipped == ["3 skipped: no GPU on this node (p2p, xid); for other reasons: ecc"]


def test_an_interrupted_run_says_how_far_it_came() -> None:
    stopped = a_result(verdict=Verdict.ERROR, cause=Cause.INTERRUPTED, round=3)
    run = a_run(complete=False, rounds=9, results=(a_result(), stopped))

    assert format_summary(run).startswith(" (interrupted) after 0:03 of suite quick, 3 of 9")


def test_a_line_on_a_later_round_names_it() -> None:
    assert format_headline(a_result()) == " gemm (2.0 s)"
    assert format_headline(a_result(round=2)) == " gemm (2.0 s, round 2)"


def slow(count: int) -> Run:
    """Fail one GPU by far, and *count* more by a little."""
    gpus = [Part("gpu", f"gpu-{i}", f"GPU {i}") for i in range(count + 2)]
    rates = [Measurement("bf16.sustained", 701.0 - i, "TFLOP/s", f"gpu-{i}") for i in range(count)]
    worst = Measurement("bf16.sustained", 12.0, "TFLOP/s", f"gpu-{count}")
    limit = Limit(name="*", low=702, remedy=Remedy.REPLACE, source="spec")
    node = Inventory(parts=tuple(gpus))
    ruled = judge([*rates, worst], [limit], {}, node.format_names)
    failed = a_result(
        verdict=Verdict.FAIL,
        reason=ruled.reason,
        remedy=ruled.remedy,
        measurements=(*rates, worst),
        limits=(limit,),
        findings=(),
    )
    return a_run(verdict=Verdict.FAIL, results=(failed,), inventory=node)


WORST = "GPU 23: bf16.sustained 12 TFLOP/s < 702 (spec)"


def test_of_many_failures_a_line_tells_the_worst_and_counts_the_others() -> None:
    line, *_, last = format_run(slow(23))[1:]

    assert line == f"FAIL  gemm: {WORST} (+23 more)"
    assert last.endswith("next: replace GPU 23, GPU 22, GPU 21 (+21 more)")
    assert explain_verdict(slow(23)) == f"gemm: GPU 23 +23 more: {WORST.partition(': ')[2]}"


def test_one_failure_is_told_alone() -> None:
    assert format_run(slow(0))[1].endswith("12 TFLOP/s < 702 (spec)")
    assert explain_verdict(slow(0)) == "gemm: GPU 0: bf16.sustained 12 TFLOP/s < 702 (spec)"
    assert format_next_steps(slow(0)) == "replace GPU 0"


def test_what_several_checks_say_of_a_part_is_said_once() -> None:
    lost = Finding("gpu_lost", "node", "GPU with NVML index 2: GPU is lost")
    rulings = {"gpu_lost": FindingRule(Verdict.FAIL, Remedy.REBOOT)}
    results = [
        a_result(
            name,
            verdict=Verdict.FAIL,
            reason=f"node: {lost.text}",
            remedy=Remedy.REBOOT,
            findings=(lost,),
            rulings=rulings,
        )
        for name in ("inventory", "recovery", "ecc", "nvlink")
    ]
    run = a_run(verdict=Verdict.FAIL, results=tuple(results))

    assert explain_verdict(run) == f"inventory and 3 more checks: node: {lost.text}"
    assert format_summary(run).endswith("next: drain the node and reboot it")


def test_a_check_that_passed_tells_its_speed_and_the_share_of_the_possible() -> None:
    rate = Measurement("bf16.sustained", 742e3, "GFLOP/s", "cpu")
    share = Measurement("bf16.of_peak", 0.75, "ratio", "cpu")
    spread = Measurement("bf16.spread", 2.9, "ratio", "cpu")
    limits = (
        Limit(name="bf16.sustained", low=702e3, source="spec"),
        Limit(name="bf16.spread", high=3, source="default"),
    )
    fast = a_result(measurements=(rate, share, spread), limits=limits)

    assert format_cells(fast, a_run(results=(fast,))) == [
        *("CPU: bf16.sustained 742 TFLOP/s (75 % of peak)", ">= 702 TFLOP/s", "spec")
    ]


def test_a_line_of_progress_is_cut() -> None:
    assert shorten("x" * MAX_LINE_CHARACTERS) == "x" * MAX_LINE_CHARACTERS
    assert len(shorten("x" * (MAX_LINE_CHARACTERS + 1))) == MAX_LINE_CHARACTERS
    assert shorten("x" * (MAX_LINE_CHARACTERS + 1)).endswith("x…")
