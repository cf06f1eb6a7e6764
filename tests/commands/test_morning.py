"""``hpcverify fleet``: what is new, what needs a person today, and the trend."""

from __future__ import annotations

import json
import time

import pytest

from hpcverify.fleet.ledger import Ledger
from hpcverify.fleet.outages import NodeOutage, OutageCause
from hpcverify.fleet.states import DAY_S, Node, State
from hpcverify.insight.morning import compare_weeks
from tests.cli import Cli

NOW = time.time()
MAX_LINES = 25
"""Lines that a person reads before the first coffee."""


def put(ledger: Ledger, name: str, state: State, reason: str = "", days: float = 0.5) -> None:
    """Let *ledger* have a node that came into *state* some *days* ago."""
    verdict = "fail" if reason else "pass"
    node = Node(
        name=name,
        state=state,
        since=NOW - days * DAY_S,
        reason=reason,
        enforced=bool(reason),
        last_pass_at=NOW - DAY_S,
        verdict=verdict,
    )
    ledger.put(node, state.value, reason)


@pytest.fixture
def ledger(cli: Cli) -> Ledger:
    """Know of 100 nodes, of which five have problems."""
    ledger = Ledger(cli.state)
    for number in range(1, 96):
        put(ledger, f"n{number:03}", State.HEALTHY)
    put(ledger, "n096", State.QUARANTINED, "xid: GPU 3 fell off the bus")
    put(ledger, "n097", State.QUARANTINED, "gemm: GPU 0 is slow")
    put(ledger, "n098", State.QUARANTINED, "gemm: GPU 0 is slow", days=3)
    put(ledger, "n099", State.REPEAT_OFFENDER, "nic: link down", days=3)
    put(ledger, "n100", State.SUSPECT, "pcie: width 8 of 16")
    return ledger


@pytest.mark.usefixtures("ledger")
def test_the_morning_of_100_nodes_with_five_problems_fits_on_a_screen(cli: Cli) -> None:
    done = cli("fleet")
    lines = [line.strip() for line in done.stdout.splitlines()]
    assert (done.returncode, done.stderr) == (0, "")
    assert len(lines) <= MAX_LINES
    assert "1. n099 repeat offender: nic: link down" in lines
    assert lines[lines.index("3. n[097-098] quarantined: gemm: GPU 0 is slow") + 1] == (
        "hpcverify nodes repaired n[097-098] --reason …"
    )
    new = lines[lines.index("New since yesterday:") + 1 : lines.index("Needs a person today:") - 1]
    assert "n097 quarantined: gemm: GPU 0 is slow" in new
    assert "n100 suspect: pcie: width 8 of 16" in new
    assert not [line for line in new if "n099" in line]
    tasks = lines[lines.index("Needs a person today:") :]
    assert not [line for line in tasks if "n100" in line], "the controller reruns a suspect"


@pytest.mark.usefixtures("ledger")
def test_each_command_of_the_morning_is_one_that_the_command_line_takes(cli: Cli) -> None:
    tasks = json.loads(cli("fleet", "--json").stdout)["tasks"]
    assert len(tasks) == 3
    for task in tasks:
        program, *words = task["command"].replace("--reason …", "--help").split()
        assert program == "hpcverify"
        assert cli(*words).returncode == 0, words


def test_a_healthy_fleet_needs_no_person(cli: Cli) -> None:
    put(Ledger(cli.state), "n1", State.HEALTHY)
    lines = cli("fleet").stdout.splitlines()
    assert {"Nothing is new since yesterday.", "Nothing needs a person today."} <= {*lines}


def test_a_tripped_breaker_comes_before_all_nodes(cli: Cli, ledger: Ledger) -> None:
    ledger.trip("9 of 40 nodes")
    first, *_ = json.loads(cli("fleet", "--json").stdout)["tasks"]
    assert (first["command"], first["nodes"]) == ("hpcverify fleet breaker", [])


def fail(days: float, count: int) -> list[NodeOutage]:
    """Let *count* nodes fail *days* ago, and be out of service for a day."""
    began = NOW - days * DAY_S
    return [
        NodeOutage(
            node=f"n{days}-{number}",
            began=began,
            ended=began + DAY_S,
            cause=OutageCause.VERIFICATION,
            reason="gemm",
            confirmed=True,
            held=True,
        )
        for number in range(count)
    ]


@pytest.mark.parametrize(
    ("late", "early", "age", "direction"),
    [
        (20, 5, 60, "worse"),
        (5, 20, 60, "better"),
        (6, 4, 60, "no clear change"),
        (0, 0, 60, "no clear change"),
        (20, 0, 13, "unknown"),
    ],
)
def test_a_trend_is_more_than_chance(late: int, early: int, age: float, direction: str) -> None:
    outages = [*fail(3, late), *fail(10, early)]
    trend = compare_weeks(outages, NOW, NOW - age * DAY_S)
    assert (trend.failures, trend.failures_before, trend.direction) == (late, early, direction)


def test_nodes_out_of_service_are_counted_now_and_a_week_ago() -> None:
    trend = compare_weeks([*fail(0.5, 2), *fail(7.5, 3), *fail(3, 4)], NOW, NOW - 60 * DAY_S)
    assert (trend.out_of_service, trend.out_of_service_before) == (2, 3)
