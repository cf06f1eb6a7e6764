"""Output that cannot be written costs one line and a known status, never a verdict."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import IO

import pytest

from hpcverify.fleet.ledger import Ledger
from hpcverify.fleet.states import Node, State
from hpcverify.model import Coverage, Finding, Inventory, Measurement, Part, Verdict
from hpcverify.records import documents
from hpcverify.records.store import Store
from hpcverify.summary.wording import format_run
from tests.cli import Cli, open_closed_pipe
from tests.doubles import a_result, a_run

ROOT = Path(__file__).parents[2]
FULL = Path("/dev/full")
KEPT = "nothing is lost, see: hpcverify history"
PRINTING = (
    ("--help",),
    ("history",),
    ("history", "--help"),
    ("qualify", "selftest", "mettle"),
    ("qualify", "selftest", "mettle", "--json"),
)


@pytest.fixture
def cli(cli: Cli) -> Cli:
    """Add checks that have a selftest."""
    cli.config.write_text('check_packages = ["acme_checks", "proving_checks"]')
    cli.environment["PYTHONPATH"] += f"{os.pathsep}{ROOT}"
    return cli


def printing_to(cli: Cli, out: int | IO[str], *arguments: str) -> tuple[int, str]:
    """Run a command that prints to *out*; return its status and its fault."""
    done = subprocess.run(
        [*cli.command, *arguments],
        env=cli.environment,
        stdout=out,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    return done.returncode, done.stderr.strip().rpartition("\n")[2]


@pytest.mark.parametrize("arguments", PRINTING)
def test_a_full_output_is_named(cli: Cli, arguments: tuple[str, ...]) -> None:
    with FULL.open("w") as full:
        status, message = printing_to(cli, full, *arguments)
    assert status == 2
    assert message == "hpcverify: standard output cannot be written: no space is left"


@pytest.mark.parametrize("arguments", PRINTING)
def test_an_output_that_nobody_reads_ends_in_silence(cli: Cli, arguments: tuple[str, ...]) -> None:
    with open_closed_pipe() as pipe:
        status, message = printing_to(cli, pipe, *arguments)
    assert status == 141
    assert "hpcverify:" not in message


def test_a_run_that_nobody_reads_has_its_verdict_and_its_files(cli: Cli, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    with open_closed_pipe() as pipe:
        run = ("run", "--check", "steady", "-o", str(page))
        status, message = printing_to(cli, pipe, *run)

    assert status == 0
    assert "hpcverify:" not in message
    assert page.read_text().startswith("<!doctype html>")


def test_only_what_is_kept_is_called_not_lost(cli: Cli) -> None:
    with FULL.open("w") as full:
        status, message = printing_to(cli, full, "run", "--check", "steady")
        assert (status, message.partition("; ")[2]) == (2, KEPT)
        assert KEPT not in printing_to(cli, full, "show")[1]
    assert len(list((cli.state / "runs").iterdir())) == 1


def test_a_run_says_which_page_it_wrote(cli: Cli, tmp_path: Path) -> None:
    page = str(tmp_path / "page.html")
    assert f"wrote {page}\n" in cli("run", "--check", "steady", "-o", page).stdout


def test_a_page_on_standard_output_is_alone_there(cli: Cli) -> None:
    done = cli("run", "--check", "steady", "-o", "-")
    assert done.stdout.startswith("<!doctype html>")
    assert done.stdout.rstrip().endswith("</html>")
    assert "PASS" in done.stderr
    assert not Path("-").exists()


@pytest.mark.parametrize("arguments", [(), ("rnu",), ("history", "n9")])
def test_a_fault_that_nobody_can_read_does_not_change_the_status(
    cli: Cli, arguments: tuple[str, ...]
) -> None:
    with FULL.open("w") as full:
        done = subprocess.run(
            [*cli.command, *arguments], env=cli.environment, stderr=full, check=False
        )
    assert done.returncode == 2


ORDER = "\x1b[2J\x1b]0;title\x07\x9b31m\x85\u202e\u2028"
"""Clear the screen, name the window, ring, turn red, break the line, and write backwards."""
ORDERS = {character for character in ORDER if not character.isprintable()}


def test_what_others_wrote_gives_the_terminal_no_orders(cli: Cli) -> None:
    part = Part("gpu", "GPU-1", f"GPU 0{ORDER}", {"name": f"H100{ORDER}"})
    result = a_result(
        verdict=Verdict.FAIL,
        reason=f"slow{ORDER}",
        measurements=(Measurement("speed", 1.0, "", "GPU-1"),),
        findings=(Finding("note", "GPU-1", f"said {ORDER}"),),
        coverage=(Coverage("GPU-1", f"looked at {ORDER}"),),
    )
    run = a_run(node="n1", inventory=Inventory(parts=(part,)), results=(result,), suite=ORDER)
    documents.write(run, Store(cli.state).get_document_path(run.id))

    ledger = Ledger(cli.state)
    ledger.put(Node(name="n1", state=State.HELD, reason=ORDER), "held", ORDER, text=ORDER)
    ledger.trip(ORDER)
    for arguments in (
        ("show",),
        ("show", "--json"),
        ("history",),
        ("history", "--json"),
        ("history", "--format", "csv", "-o", "/dev/stdout"),
        ("report", "--node", "n1", "--format", "json", "-o", "-"),
        (f"a{ORDER}",),
        ("show", ORDER),
        ("nodes",),
        ("nodes", "show", "n1"),
        ("nodes", "--json"),
        ("fleet", "breaker"),
        ("fleet", "events"),
        ("fleet", "events", "--format", "ocsf"),
    ):
        done = cli(*arguments)
        assert not ORDERS & {*done.stdout, *done.stderr}, arguments
    assert "title" in cli("show").stdout


def test_what_is_printed_in_a_log_gives_a_terminal_no_orders() -> None:
    result = a_result(verdict=Verdict.FAIL, reason=f"slow{ORDER}")
    message = "\n".join(format_run(a_run(node=f"n{ORDER}", results=(result,))))
    assert not ORDERS & {*message}


@pytest.mark.parametrize("encoding", ["latin-1", "ascii"])
def test_an_encoding_that_lacks_a_character_stops_no_output(cli: Cli, encoding: str) -> None:
    run = a_run(
        results=(
            a_result(
                verdict=Verdict.FAIL, reason="5 \N{MICRO SIGN}s \N{GREATER-THAN OR EQUAL TO} 4"
            ),
        )
    )
    documents.write(run, Store(cli.state).get_document_path(run.id))
    cli.environment["PYTHONIOENCODING"] = encoding

    for arguments in (("show",), ("report", "--node", "n1", "-o", "-")):
        done = subprocess.run(
            [*cli.command, *arguments], env=cli.environment, capture_output=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert b"gemm" in done.stdout
