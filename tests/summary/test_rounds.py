"""The rounds of a run brought together: the worst speaks, the median is remembered."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from hpcverify.model import Measurement, Result, Verdict
from hpcverify.summary.rounds import (
    choose_worst_round,
    choose_worst_rounds,
    compute_medians,
    explain_left_out,
    format_round_count,
    format_tally,
)
from tests.doubles import a_result, a_run

PASS, SKIP, WARN, FAIL = Verdict.PASS, Verdict.SKIP, Verdict.WARN, Verdict.FAIL


def rounds(*verdicts: Verdict, check: str = "c", required: bool = False) -> list[Result]:
    return [
        Result(check=check, round=number, verdict=verdict, required=required)
        for number, verdict in enumerate(verdicts, start=1)
    ]


@pytest.mark.parametrize(
    ("verdicts", "number"),
    [((PASS, WARN, FAIL), 3), ((PASS, WARN, WARN), 2), ((SKIP, PASS, SKIP), 2), ((SKIP, SKIP), 1)],
)
def test_the_first_of_the_worst_speaks_for_a_check(
    verdicts: tuple[Verdict, ...], number: int
) -> None:
    assert choose_worst_round(rounds(*verdicts)).round == number


def test_the_skip_of_a_required_check_is_worse_than_a_warning() -> None:
    assert choose_worst_round(rounds(WARN, SKIP, PASS, required=True)).verdict is SKIP


def test_checks_keep_the_order_of_the_suite() -> None:
    first, second = (rounds(PASS, FAIL, check=check) for check in "ba")
    mixed = [first[0], second[0], first[1], second[1]]

    assert [(r.check, r.round) for r in choose_worst_rounds(mixed)] == [("b", 2), ("a", 2)]


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        ((PASS, PASS), "2 pass"),
        ((PASS, PASS, FAIL), "1 fail (round 3), 2 pass"),
        ((PASS, WARN, WARN), "2 warn (first: round 2), 1 pass"),
        ((SKIP, PASS), "1 pass (round 2), 1 skip"),
    ],
)
def test_verdicts_are_counted_the_worst_first(verdicts: tuple[Verdict, ...], expected: str) -> None:
    assert format_tally(rounds(*verdicts)) == expected


def measured(*values: float | None) -> list[Result]:
    return [
        a_result(round=n, measurements=(Measurement("speed", value, "GB/s", "cpu"),))
        for n, value in enumerate(values, start=1)
    ]


@pytest.mark.parametrize(
    ("values", "middle"), [((9.0, 1.0, 2.0), 2.0), ((None, 4.0, 2.0), 3.0), ((None, None), None)]
)
def test_what_is_typical_of_a_part_is_the_median_of_its_rounds(
    values: tuple[float | None, ...], middle: float | None
) -> None:
    assert compute_medians(measured(*values)) == (Measurement("speed", middle, "GB/s", "cpu"),)


def test_a_run_of_one_round_says_nothing_of_rounds() -> None:
    assert (format_round_count(a_run()), explain_left_out(a_run())) == ("", "")


def test_rounds_that_were_left_out_are_counted_with_the_reason() -> None:
    two = (a_result(), a_result(round=2))
    ended = a_run(rounds=3, results=two, left_out="round 2 failed")

    assert format_round_count(ended) == "2 of 3 rounds"
    assert explain_left_out(ended) == "1 round left out: round 2 failed"
    assert format_round_count(replace(ended, rounds=2)) == "2 rounds"


def test_a_last_round_that_was_cut_short_is_said_and_none_is_left_out() -> None:
    cut = "round 2 was cut short"
    two = a_run(rounds=2, results=(a_result(), a_result(round=2)), left_out=cut)

    assert explain_left_out(two) == cut
