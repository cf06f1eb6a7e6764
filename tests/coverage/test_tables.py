"""The tables name only what there is, each line is read, and the package has its classes."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter

import pytest

from hpcverify.model import Verdict
from hpcverify.plan.catalog import load_check
from hpcverify.selection.suites import FAULT_CLASSES_PATH
from hpcverify.telemetry.kernel_log import KernelMessage
from hpcverify_checks.kernel_log.lines import read_events
from hpcverify_checks.xid.lines import read_events as read_xids
from tests.coverage.classes import fault_classes
from tests.coverage.injections import INJECTIONS, NOBODY
from tests.coverage.tables import (
    FAULT_COUNT,
    GPUD,
    MATCHERS,
    STRESS,
    TRACE,
    UNNAMED,
    WISHES,
    Matcher,
)

GPUD_RULES = 33
"""Constants event* of its matchers of the kernel log and of the Fabric Manager's, and the
four forms of Xids and the one of SXids."""


def test_every_fault_of_the_trace_is_in_one_class() -> None:
    assert sum(row.count for row in TRACE) == FAULT_COUNT
    assert max(Counter((row.component, row.what) for row in TRACE).values()) == 1


def test_every_class_has_a_test_of_its_check_or_a_reason() -> None:
    for row in TRACE:
        assert bool(row.checks) == bool(row.tests)
        assert row.tests or row.missing


def test_what_is_unseen_is_what_nobody_named() -> None:
    assert {row.component for row in TRACE if not row.tests} | {STRESS} == UNNAMED


@pytest.mark.system
def test_every_test_that_is_named_is_collected() -> None:
    named = {test for row in TRACE for test in row.tests}
    named |= {test for row in INJECTIONS for test in row.tests}
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run([*command, *sorted(named)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


def test_every_check_that_is_named_exists() -> None:
    named = {check for row in TRACE for check in row.checks}
    named |= {row.check for row in MATCHERS if row.check}
    named |= {row.check for row in INJECTIONS}
    for check in named:
        assert load_check(check).summary


@pytest.mark.parametrize(
    "row", [row for row in MATCHERS if row.line], ids=lambda row: f"{row.tool} {row.name}"
)
def test_the_line_of_another_tools_rule_is_read(row: Matcher) -> None:
    message = [KernelMessage(row.line, 0.0, "0")]
    found = [("kernel_log", event.row.code) for event in read_events(message)]
    found += [("xid", event.row.code) for event in read_xids(message)]
    assert found == [(row.check, row.code)]


def test_every_rule_has_a_counterpart_or_a_reason() -> None:
    assert sum(row.tool == GPUD for row in MATCHERS) == GPUD_RULES
    assert max(Counter((row.tool, row.name) for row in MATCHERS).values()) == 1
    for row in MATCHERS:
        assert row.check or row.note
        assert bool(row.code) == bool(row.line)


def test_every_injection_is_once_in_the_table_and_what_is_not_found_has_a_reason() -> None:
    assert max(Counter((row.check, row.fault) for row in INJECTIONS).values()) == 1
    for row in INJECTIONS:
        assert row.tests or row.part == NOBODY
        assert (row.part == NOBODY) == (row.verdict is Verdict.PASS)
        assert row.note or row.verdict is not Verdict.PASS


def test_every_wish_has_its_thread_and_an_answer() -> None:
    for row in WISHES:
        assert re.fullmatch(r"[\w-]+/[\w.-]+#\d+", row.thread)
        assert re.match(r"yes:|no\b|in a node:", row.here)


def test_suites_are_judged_by_the_classes_of_the_table() -> None:
    assert FAULT_CLASSES_PATH.read_text() == fault_classes(), "run: make faults"
