"""Which suite buys most in the time."""

from __future__ import annotations

import pytest

from hpcverify.selection.suites import SuiteWorth, choose_suite, compute_worth, read_seen_faults


def worth(suite: str, minutes: float, share: float, *, loads: bool = True) -> SuiteWorth:
    return SuiteWorth(suite=suite, minutes=minutes, share=share, loads=loads)


def test_a_suite_sees_the_classes_that_any_of_its_checks_finds() -> None:
    total = sum(fault.count for fault in read_seen_faults())

    assert compute_worth("fans", 1, ["chassis"], loads=False).share * total == pytest.approx(65)
    assert compute_worth("none", 1, ["unheard_of"], loads=False).share == 0
    every = {check for fault in read_seen_faults() for check in fault.checks}
    assert compute_worth("all", 1, every, loads=True).share == 1


def test_what_sees_most_in_the_time_is_chosen_and_of_equals_what_takes_least() -> None:
    suites = [
        worth("passive", 1, 0.9, loads=False),
        worth("short", 7, 0.5),
        worth("long", 50, 0.9),
        worth("longer", 60, 0.9),
    ]

    chosen = {minutes: choose_suite(suites, minutes) for minutes in (5, 7, 49, 50, 999)}

    assert {minutes: one.suite if one else "" for minutes, one in chosen.items()} == {
        5: "",
        7: "short",
        49: "short",
        50: "long",
        999: "long",
    }
