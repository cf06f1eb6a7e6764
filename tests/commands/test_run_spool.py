"""``hpcverify run`` as a hook and a sweep's job start it: spool, lock, exit status."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from hpcverify.commands._run import list_refusals
from hpcverify.model import Finding, FindingRule, Remedy, Run, Verdict
from hpcverify.records.spool import Arrival, gather
from hpcverify.records.store import Store
from hpcverify.summary.wording import format_run
from tests.cli import Cli
from tests.doubles import a_result, a_run
from tests.waiting import PATIENCE_S, wait_until


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    spool = tmp_path / "spool"
    spool.mkdir()
    return spool


def arrivals(spool: Path) -> list[Run]:
    """Gather all as the controller does; nothing may be refused."""
    found = list(gather(spool, os.geteuid(), lambda _: False, lambda _: ""))
    assert all(isinstance(item, Arrival) for item in found), found
    return [item.run for item in found if isinstance(item, Arrival)]


def busy(cli: Cli, pidfile: Path) -> None:
    """Make a suite whose first check never ends, and says so in *pidfile*."""
    params = f'{{ way = "leave_child", path = "{pidfile}" }}'
    cli.suite("acme", f'[[check]]\nname = "naughty"\nparams = {params}')


def begun(pidfile: Path) -> bool:
    return pidfile.exists() and pidfile.read_text().isdigit()


def test_a_run_is_kept_here_and_left_for_the_controller(cli: Cli, spool: Path) -> None:
    done = cli("run", "--check", "steady", "--spool", str(spool))
    (run,) = arrivals(spool)
    assert done.returncode == 0, done.stderr
    assert run.node == cli.node
    assert [path.stem for path in cli.list_documents()] == [run.id]


def test_the_token_is_in_the_copy_for_the_controller_alone(
    cli: Cli, spool: Path, tmp_path: Path
) -> None:
    cli.environment |= {"HPCVERIFY_TOKEN": "secret-token"}
    page = tmp_path / "page.html"
    files = ("--json", "-o", str(page))
    done = cli("run", "--check", "steady", "--spool", str(spool), *files)
    shown = cli("show", "last").stdout + cli("show", "last", "--json").stdout
    local = cli.list_documents()[0].read_text() + page.read_text()

    assert [run.token for run in arrivals(spool)] == ["secret-token"]
    assert "secret" not in local + done.stdout + done.stderr + shown


def test_a_spool_that_cannot_be_written_costs_one_line_and_no_run(cli: Cli, tmp_path: Path) -> None:
    done = cli("run", "--check", "steady", "--spool", str(tmp_path / "nowhere"))
    assert done.returncode == 2
    assert "nowhere/n1 cannot be made" in done.stderr
    assert "Traceback" not in done.stderr
    assert len(cli.list_documents()) == 1


def test_a_failure_is_a_failure_whatever_became_of_the_spool(cli: Cli, tmp_path: Path) -> None:
    assert cli("run", "--check", "grave", "--spool", str(tmp_path / "nowhere")).returncode == 1


def test_a_run_that_is_stopped_has_stored_and_spooled_all_at_once(
    cli: Cli, spool: Path, tmp_path: Path
) -> None:
    busy(cli, tmp_path / "pid")
    run = cli.start("run", "--suite", "acme", "--spool", str(spool))
    wait_until(lambda: begun(tmp_path / "pid"))
    run.send_signal(signal.SIGTERM)
    _, stderr = run.communicate(timeout=PATIENCE_S)  # the check would take longer by far
    (left,) = arrivals(spool)

    assert run.returncode == 3, stderr
    assert (left.complete, left.verdict.value) == (False, "error")
    assert left.results[0].measurements[0].name == "before"
    assert [path.stem for path in cli.list_documents()] == [left.id]


def test_a_run_that_waits_starts_when_the_other_ends(cli: Cli, tmp_path: Path) -> None:
    busy(cli, tmp_path / "pid")
    first = cli.start("run", "--suite", "acme")
    wait_until(lambda: begun(tmp_path / "pid"))
    second = cli.start("run", "--check", "steady", "--wait", "60s")
    at_once = cli("run", "--check", "steady", "--wait", "0.1s")
    first.terminate()
    first.communicate(timeout=PATIENCE_S)
    _, stderr = second.communicate(timeout=PATIENCE_S)

    assert at_once.returncode == 3
    assert f"process {first.pid}" in at_once.stderr
    assert second.returncode == 0, stderr
    assert len(cli.list_documents()) == 2


@pytest.mark.parametrize(
    ("check", "names", "status"),
    [
        ("grave", "steady grave", 1),
        ("grave", "steady", 0),
        ("grave", "", 0),
        ("steady", "steady grave", 0),
    ],
)
def test_only_hard_evidence_of_a_named_check_fails_closed(
    cli: Cli, check: str, names: str, status: int
) -> None:
    done = cli("run", "--check", check, "--fail-closed", names)
    assert done.returncode == status, done.stderr


def test_a_check_that_is_grouped_behind_another_has_a_line_of_its_own() -> None:
    """Slurm's prolog looks for the line of a check that may refuse a job."""
    lost = Finding("gpu_lost", "node", "GPU with NVML index 2: GPU is lost")
    rule = FindingRule(Verdict.FAIL, Remedy.REBOOT, conclusive=True, shared=True)
    results = tuple(
        a_result(name, verdict=Verdict.FAIL, findings=(lost,), rulings={lost.code: rule})
        for name in ("inventory", "recovery")
    )
    run = a_run(verdict=Verdict.FAIL, results=results)

    assert "recovery" not in format_run(run)[1]
    assert list_refusals(run, ["recovery"]) == [f"FAIL  recovery: node: {lost.text}"]


def test_a_failure_that_a_rerun_may_take_back_refuses_nothing(cli: Cli) -> None:
    cli.suite("acme", '[[check]]\nname = "steady"\nparams = { value = 11 }')
    assert cli("run", "--suite", "acme").returncode == 1
    assert cli("run", "--suite", "acme", "--fail-closed", "steady").returncode == 0


def test_a_node_that_could_not_be_judged_refuses_nothing(cli: Cli) -> None:
    cli.suite("acme", '[[check]]\nname = "naughty"\nparams = { way = "raise" }')
    assert cli("run", "--suite", "acme").returncode == 3
    assert cli("run", "--suite", "acme", "--fail-closed", "naughty").returncode == 0


def test_a_node_keeps_no_more_of_its_own_runs_than_it_needs(cli: Cli) -> None:
    store = Store(cli.state)
    for count in range(1021):
        run = a_run(id=f"20250101-000000-{count:06x}", node=cli.node, results=())
        store.get_document_path(run.id).write_bytes(msgspec.json.encode(run))
    cli("run", "--check", "steady")

    assert (len(cli.list_documents()), len(Store(cli.state).list_runs(limit=-1))) == (1000, 1000)


def test_a_run_with_neither_spool_nor_hook_loads_nothing_for_them(cli: Cli) -> None:
    code = (
        "import sys; from hpcverify import entry\n"
        "sys.argv = ['hpcverify', 'run', '--suite', 'prolog', '--json']\n"
        "try: entry.main()\nexcept SystemExit: pass\n"
        "print('LOADED', *sys.modules)"
    )
    output = subprocess.check_output([sys.executable, "-c", code], env=cli.environment, text=True)
    run, _, loaded = output.partition("LOADED")

    assert json.loads(run)["suite"] == "prolog"
    assert {"hpcverify.records.spool", "hpcverify.gate"}.isdisjoint(loaded.split())
