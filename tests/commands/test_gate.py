"""``hpcverify gate``: the prolog's question, for people."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from textwrap import dedent

import pytest

from hpcverify.gate import JobGate, write
from tests.cli import Cli

LATER = 99_999_999_999


@pytest.mark.parametrize(("verdict", "status"), [("ok", 0), ("quarantined", 1), ("hold", 1)])
def test_gate_exits_and_speaks_as_the_word_says(cli: Cli, verdict: str, status: int) -> None:
    write(cli.state / "gate", JobGate(verdict, LATER, "GPU 3: lost"))
    done = cli("gate")

    assert done.returncode == status
    assert done.stdout.startswith(f"{verdict} until ")
    assert done.stdout.endswith(": GPU 3: lost\n")
    assert done.stdout.split()[4].startswith(time.tzname)  # the zone of this host


def test_without_a_word_jobs_run_and_the_file_is_named(cli: Cli) -> None:
    done = cli("gate")
    assert done.returncode == 0
    assert done.stdout == f"ok: there is no gate file {cli.state}/gate, so jobs run\n"


def test_with_a_spool_gate_asks_there_first(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "spool").mkdir()
    write(cli.state / "gate", JobGate("hold", LATER, "fan"))
    write(tmp_path / "spool" / "gate" / cli.node, JobGate("ok", LATER))

    assert cli("gate").returncode == 1
    assert cli("gate", "--spool", f"{tmp_path}/spool").returncode == 0
    assert cli("gate").returncode == 0
    assert cli("gate", "--spool", f"{tmp_path}/none").returncode == 0


def test_a_stale_word_refuses_nobody(cli: Cli) -> None:
    write(cli.state / "gate", JobGate("quarantined", 1))
    done = cli("gate")
    assert done.returncode == 0
    assert f"{cli.state}/gate is not a valid gate file" in done.stdout


def test_gate_loads_nothing_that_takes_time(cli: Cli) -> None:
    code = """
        import sys
        before = set(sys.modules)
        from hpcverify import entry
        sys.argv = ["hpcverify", "gate"]
        try:
            entry.main()
        except SystemExit as end:
            assert end.code == 0
        print("LOADED", *(set(sys.modules) - before))
    """
    output = subprocess.check_output(
        [sys.executable, "-I", "-c", dedent(code)], env=cli.environment, text=True
    )
    loaded = set(output.partition("LOADED")[2].split())

    ours = {"hpcverify", "hpcverify.entry", "hpcverify.gate"}
    assert loaded - {"__future__", "time", "stat"} == ours


def test_the_help_of_gate_has_an_example(cli: Cli) -> None:
    done = cli("gate", "--help")
    assert done.returncode == 0
    assert "Example:\n    hpcverify gate" in done.stdout


def test_an_argument_too_many_is_wrong_usage(cli: Cli) -> None:
    assert cli("gate", "n1").returncode == 2
