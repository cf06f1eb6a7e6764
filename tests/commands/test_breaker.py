"""A brake that is on is told, with what it takes to be off again."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import pytest

from hpcverify.fleet.ledger import Ledger, LedgerChange
from hpcverify.fleet.states import Node
from tests.cli import Cli

HOUR = 3600.0


def failing(cli: Cli, failed: int, ran: int, hours: float = 1.0) -> Ledger:
    """Have *ran* nodes run a check some hours ago, of which so many failed it."""
    at = time.time() - hours * HOUR
    ledger = Ledger(cli.state, lambda: at)
    for number in range(1, ran + 1):
        node, bad = Node(name=f"n{number}"), number <= failed
        ledger.record_judgments([LedgerChange(node, f"run-{number}", {"gemm": bad}, "verified")])
    return Ledger(cli.state)


def test_without_a_brake_there_is_one_line(cli: Cli) -> None:
    failing(cli, 1, 10)
    done = cli("fleet", "breaker")
    assert (done.returncode, done.stdout) == (0, "not tripped\n")


def test_a_doubt_is_told_with_how_widely_and_until_when(cli: Cli) -> None:
    failing(cli, 4, 10, hours=2)
    ends = datetime.fromtimestamp(time.time() + 22 * HOUR, UTC)

    first, doubt = cli("fleet", "breaker").stdout.splitlines()

    assert first == "not tripped"
    assert doubt.startswith("doubted: gemm fails on 4 of the 10 nodes that ran it: ")
    assert f"nodes are not held for it alone until {ends:%Y-%m-%d %H:}" in doubt


def test_a_reset_says_what_a_doubt_needs_instead(cli: Cli) -> None:
    failing(cli, 4, 10)

    done = cli("fleet", "breaker", "reset", "--reason", "image 41")

    assert (done.returncode, done.stdout) == (4, "")
    assert done.stderr.startswith("hpcverify: the breaker is not tripped, and a doubt")
    assert "fix what makes gemm fail" in done.stderr
    assert done.stderr.endswith("then hpcverify fleet sweep n[1-4]\n")


def test_a_reset_of_a_tripped_breaker_ends_its_doubts_as_well(cli: Cli) -> None:
    failing(cli, 4, 10).trip("9 of 40 nodes")
    assert cli("fleet", "breaker").stdout.startswith("tripped: 9 of 40 nodes; reset with")
    assert cli("fleet", "breaker", "reset", "--reason", "image 41").returncode == 0
    assert cli("fleet", "breaker").stdout == "not tripped\n"


@pytest.mark.parametrize("arguments", [("--help",), ("reset", "--help")])
def test_help_comes_without_a_ledger(cli: Cli, arguments: tuple[str, ...]) -> None:
    assert cli("fleet", "breaker", *arguments).returncode == 0
    assert not cli.state.exists()
