"""The reliability report is made from the site's own outages, or not at all."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from hpcverify.commands.reliability import command
from hpcverify.fleet.ledger import Ledger, LedgerChange
from hpcverify.fleet.states import DAY_S, Node, State
from hpcverify.insight.outlook import (
    build_reliability_report,
    describe_reliability,
)
from hpcverify.plan.config import Site
from tests.doubles import Clock

NOW = time.time() - 40 * DAY_S
"""The start of the fleet; the command asks the real clock."""


@pytest.fixture
def clock() -> Clock:
    """Give a clock to turn on."""
    return Clock(NOW)


@pytest.fixture
def ledger(tmp_path: Path, clock: Clock) -> Ledger:
    """Give the ledger of a fleet of 16 nodes."""
    ledger = Ledger(tmp_path, clock)
    ledger.read_fleet_start()
    ledger.add_nodes([f"n{number}" for number in range(16)])
    return ledger


@pytest.fixture
def fail(ledger: Ledger, clock: Clock) -> Callable[..., None]:
    """Give what has a node fail, found in a run of ours or in one of its own, for a day."""

    def fail(name: str, *, ticket: int = 0) -> None:
        bad = Node(
            name=name, state=State.QUARANTINED, enforced=True, checks=("gemm",), first_seen_at=NOW
        )
        ledger.record_judgments(
            [LedgerChange(bad, f"{name} {clock.now}", {}, "quarantined", ticket=ticket)]
        )
        clock.now += DAY_S
        well = Node(name=name, state=State.HEALTHY, first_seen_at=NOW)
        ledger.put(well, "healthy")
        clock.now += DAY_S

    return fail


def test_without_failures_it_says_that_there_is_no_history_yet(
    ledger: Ledger, clock: Clock
) -> None:
    clock.now += 40 * DAY_S

    report = build_reliability_report(ledger, Site())

    assert describe_reliability(report)[0].startswith(
        "no history yet: 0 failures of 16 nodes, 40 days"
    )


def test_failures_become_a_rate(ledger: Ledger, clock: Clock, fail: Callable[..., None]) -> None:
    for number in range(4):
        fail(f"n{number}", ticket=number % 2)
    clock.now = NOW + 40 * DAY_S

    report = build_reliability_report(ledger, Site())

    found = report.reliability
    assert (found.outages, found.found) == (4, 2)
    assert found.node_days == pytest.approx(16 * 40 - 4)
    assert found.failure_rate
    assert found.failure_rate.value == pytest.approx(4 / 636)


def test_only_the_days_that_were_asked_for_count(
    ledger: Ledger, clock: Clock, fail: Callable[..., None]
) -> None:
    fail("n1")
    clock.now = NOW + 40 * DAY_S
    assert build_reliability_report(ledger, Site(), days=10).reliability.outages == 0


def test_where_one_node_has_all_failures_the_mtbf_has_no_upper_end(
    ledger: Ledger, clock: Clock, fail: Callable[..., None]
) -> None:
    for _ in range(4):
        fail("n1", ticket=1)
    clock.now = NOW + 40 * DAY_S
    told = "\n".join(describe_reliability(build_reliability_report(ledger, Site())))
    assert re.search(r"MTBF of a node: 159 days \(\d+ or more\)", told)


def test_the_command_prints_both(
    ledger: Ledger, fail: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(4):
        fail(f"n{number}", ticket=1)
    monkeypatch.setenv("HPCVERIFY_STATE", str(ledger.path.parent))

    printed = CliRunner().invoke(command, [])
    as_json = CliRunner().invoke(command, ["--json"])

    assert "failures per 1,000 node-days: 6.29" in printed.output
    rate = json.loads(as_json.output)["reliability"]["failure_rate"]
    assert rate["low"] < rate["value"] < rate["high"]
