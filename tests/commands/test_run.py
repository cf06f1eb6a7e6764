"""``hpcverify run`` as its user meets it: real processes, real files, real signals."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from textwrap import dedent

import jsonschema
import pytest

from tests.cli import Cli, is_alive, open_closed_pipe
from tests.nvml_lab.nvmllab import Lab
from tests.waiting import PATIENCE_S, wait_until

SCHEMA = Path(__file__).parents[2] / "docs/reference/schema/run.json"
MANY = 10_000
"""Objects: fewer than the modules of any run have."""
PASSIVE = "inventory xid kernel_log recovery ecc nvlink pcie nic gpu_setup host"
CONTROL = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


@contextmanager
def mounted(folder: Path, options: str) -> Generator[None]:
    mount = ["mount", "-t", "tmpfs", "-o", options, "hpcverify-test", str(folder)]
    subprocess.check_call(mount)
    try:
        yield
    finally:
        subprocess.check_call(["umount", str(folder)])


def naughty(cli: Cli, way: str, path: str = "") -> None:
    """Make a suite of the site's own in which one check of two misbehaves."""
    cli.suite(
        "acme",
        f"""
        [[check]]
        name = "naughty"
        params = {{ way = "{way}", path = "{path}" }}
        [[check]]
        name = "steady"
        """,
    )


def test_a_run_prints_a_table_keeps_itself_and_exits_by_its_verdict(cli: Cli) -> None:
    done = cli("run", "--check", "steady", "--verbose")
    assert done.returncode == 0
    assert re.search(r"level +CPU +5 ms", done.stdout)
    assert len(cli.list_documents()) == 1


def test_json_is_the_document_and_nothing_else_on_standard_output(cli: Cli) -> None:
    run = json.loads(cli("run", "--check", "steady", "--json").stdout)
    jsonschema.validate(run, json.loads(SCHEMA.read_text()))
    assert run == json.loads(cli.list_documents()[0].read_text())
    assert run["chosen"] == ["steady"]


@pytest.mark.parametrize(("value", "status", "verdict"), [(5, 0, "pass"), (11, 1, "fail")])
def test_the_exit_status_is_the_verdicts(cli: Cli, value: float, status: int, verdict: str) -> None:
    params = f'[[check]]\nname = "steady"\nparams = {{ value = {value} }}'
    cli.suite("acme", params)
    done = cli("run", "--suite", "acme", "--json")
    assert (done.returncode, json.loads(done.stdout)["verdict"]) == (status, verdict)


@pytest.mark.parametrize(("strict", "status"), [((), 0), (("--strict",), 1)])
def test_a_warning_is_a_failure_only_if_strict(
    cli: Cli, strict: tuple[str, ...], status: int
) -> None:
    limit = '"level" = { high = 1, otherwise = "warn" }'
    cli.suite("acme", f'[[check]]\nname = "steady"\nlimits = {{ {limit} }}')
    assert cli("run", "--suite", "acme", *strict).returncode == status


@pytest.mark.parametrize("way", ["raise", "segfault", "unable"])
def test_a_broken_check_is_an_error_and_the_others_have_their_turn(cli: Cli, way: str) -> None:
    naughty(cli, way)
    done = cli("run", "--suite", "acme", "--json")
    verdicts = [r["verdict"] for r in json.loads(done.stdout)["results"]]
    assert done.returncode == 3
    assert verdicts == ["error", "pass"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_all_and_leaves_a_whole_document(
    cli: Cli, tmp_path: Path, number: signal.Signals
) -> None:
    pidfile = tmp_path / "pid"
    naughty(cli, "leave_child", str(pidfile))
    run = cli.start("run", "--suite", "acme")
    wait_until(lambda: pidfile.exists() and pidfile.read_text().isdigit())
    run.send_signal(number)
    _, stderr = run.communicate(timeout=PATIENCE_S)
    document = json.loads(cli.list_documents()[0].read_text())

    assert run.returncode == 3, stderr
    assert not document["complete"]
    assert [r["cause"] for r in document["results"]] == ["interrupted"] * 2
    assert document["results"][0]["measurements"][0]["name"] == "before"
    assert not is_alive(int(pidfile.read_text()))
    assert not list((cli.state / "scratch").iterdir())
    assert not list((cli.state / "work").iterdir())


def test_workers_die_with_an_engine_that_is_killed(cli: Cli) -> None:
    naughty(cli, "wait")
    run = cli.start("run", "--suite", "acme")
    children = Path(f"/proc/{run.pid}/task/{run.pid}/children")
    wait_until(lambda: len(children.read_text().split()) == 2)  # telemetry and node
    workers = [int(pid) for pid in children.read_text().split()]
    run.kill()
    run.communicate(timeout=PATIENCE_S)

    wait_until(lambda: not any(is_alive(pid) for pid in workers))


def test_what_a_killed_run_left_behind_is_removed_by_the_next(cli: Cli) -> None:
    for root in ("scratch", "work"):
        stale = cli.state / root / f"hpcverify-{cli.node}-stale"
        stale.mkdir(parents=True)
        (stale / "file").touch()
    other = cli.state / "scratch/hpcverify-other-node"
    other.mkdir()
    cli("run", "--check", "steady")

    assert list((cli.state / "scratch").iterdir()) == [other]
    assert not list((cli.state / "work").iterdir())


def test_no_umask_makes_what_a_run_keeps_writable_for_others(cli: Cli) -> None:
    page = cli.state.with_name("r.html")
    run = f"{cli.command[0]} run --check steady -o {page}"
    line = f"umask 0; exec {run}"
    assert subprocess.run(["sh", "-c", line], env=cli.environment, check=False).returncode == 0
    kept = [page, cli.state, *cli.state.rglob("*")]
    assert [path for path in kept if path.stat().st_mode & 0o022] == []


def test_a_second_run_names_the_holder_of_the_node(cli: Cli, tmp_path: Path) -> None:
    pidfile = tmp_path / "pid"
    naughty(cli, "leave_child", str(pidfile))
    first = cli.start("run", "--suite", "acme")
    wait_until(pidfile.exists)
    second = cli("run", "--check", "steady")
    first.terminate()
    first.communicate(timeout=PATIENCE_S)

    assert second.returncode == 3
    assert f"process {first.pid}" in second.stderr


@pytest.mark.system
def test_a_suite_that_used_up_its_budget_says_which_checks_had_no_turn(cli: Cli) -> None:
    naughty(cli, "wait")
    cli.suite_budget("acme", 5)
    run = json.loads(cli("run", "--suite", "acme", "--json").stdout)

    assert [r["cause"] for r in run["results"]] == ["timeout", "timeout"]
    assert "before it began" in run["results"][1]["reason"]
    assert "when the suite's budget of 5 s ran out" in run["results"][0]["reason"]
    assert run["results"][0]["remedy"] == "fix_configuration"


def test_a_table_fits_forty_columns(cli: Cli) -> None:
    cli.environment |= {"COLUMNS": "40", "TERM": "xterm"}
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "rb", closefd=True) as terminal:
        subprocess.run(
            [*cli.command, "run", "--check", "steady"],
            env=cli.environment,
            stdout=theirs,
            stderr=subprocess.DEVNULL,
            check=True,
        )
        os.close(theirs)
        lines = CONTROL.sub("", os.read(terminal.fileno(), 2**16).decode()).splitlines()

    assert "PASS" in "".join(lines)
    assert max(len(line) for line in lines if "hpcverify show" not in line) <= 40


def test_a_log_has_each_result_in_one_line_and_no_colour(cli: Cli) -> None:
    cli.environment["COLUMNS"] = "40"
    lines = cli("run", "--check", "steady").stdout.splitlines()
    (line,) = (line for line in lines if line.startswith("PASS"))
    assert "suite quick" in line
    assert "1 passed: steady" in lines
    assert not CONTROL.search("".join(lines))


def test_a_passive_suite_loads_nothing_that_the_prolog_would_wait_for(cli: Cli) -> None:
    code = """
        import gc, sys
        from hpcverify import entry
        sys.argv = ["hpcverify", "run", "--suite", "prolog", "--fail-closed", "ecc"]
        try:
            entry.main()
        except SystemExit as end:
            assert end.code == 0, end.code
            print("FROZEN", gc.get_freeze_count())
        print("LOADED", *sys.modules)
    """
    output = subprocess.check_output(
        [sys.executable, "-c", dedent(code)], env=cli.environment, text=True
    )
    _, _, rest = output.partition("FROZEN")
    frozen, _, loaded = rest.partition("LOADED")

    heavy = {"torch", "pandas", "numpy", "jinja2", "rich", "pynvml", "random"}
    heavy |= {"dataclasses", "difflib", "shutil", "statistics", "subprocess"}
    heavy |= {"click", "inspect", "pkgutil", "typing_extensions"}
    assert "hpcverify.run.orchestrator" in loaded
    assert heavy.isdisjoint(loaded.split())
    assert int(frozen) > MANY  # what was imported is not searched for garbage


def test_the_worker_of_a_passive_suite_loads_only_what_reads_gpus(lab: Lab) -> None:
    code = """
        import sys
        from hpcverify.run import worker
        assert worker.probe_ahead().inventory.of_kind("gpu")
        worker.preload_checks(sys.argv[2].split())
        print(*sys.modules)
    """
    loaded = lab.run(sys.executable, "-c", dedent(code), lab.root, PASSIVE).split()

    heavy = {"click", "dataclasses", "difflib", "sqlite3", "statistics", "traceback"}
    heavy |= {"ctypes.util", "random", "shutil", "subprocess", "tempfile"}  # not for pynvml either
    assert "hpcverify_checks.gpu_setup" in loaded
    assert heavy.isdisjoint(loaded)


def test_a_closed_pipe_changes_no_verdict_and_the_run_is_kept(cli: Cli) -> None:
    command = [*cli.command, "run", "--check", "steady", "--json"]
    pipe, environment = subprocess.PIPE, cli.environment
    with open_closed_pipe() as out:
        done = subprocess.run(
            command, env=environment, stdout=out, stderr=pipe, text=True, check=False
        )

    assert done.returncode == 0
    assert "hpcverify:" not in done.stderr
    assert "Traceback" not in done.stderr
    assert len(cli.list_documents()) == 1


def test_the_command_line_loads_nothing_heavy() -> None:
    code = "import sys, hpcverify.cli; print(*sys.modules)"
    loaded = subprocess.check_output([sys.executable, "-c", code], text=True).split()
    assert {"torch", "pandas", "numpy", "jinja2", "rich"}.isdisjoint(loaded)


def test_a_run_on_a_node_with_markup_in_its_name_is_shown_as_text(cli: Cli) -> None:
    cli.environment["SLURMD_NODENAME"] = "<b>[red]n1[/red]</b>"
    done = cli("run", "--check", "steady")
    shown = cli("history", "<b>[red]n1[/red]</b>")
    assert "<b>[red]n1[/red]</b>" in done.stdout
    assert shown.returncode == 0, shown.stderr


@pytest.mark.needs("root")
def test_the_disk_below_a_scratch_that_is_not_mounted_is_not_verified_in_its_place(
    cli: Cli, tmp_path: Path
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    cli.site(f'scratch = "{scratch}"')
    with mounted(scratch, "size=8m"):
        assert cli("run", "--check", "inventory").returncode == 0
    again = [cli("run", "--check", "inventory") for _ in range(2)]
    accepted = cli("run", "--check", "inventory", "--accept-parts")
    after = cli("run", "--check", "inventory")

    assert [run.returncode for run in again] == [3, 3]
    assert f"{scratch}  scratch file system not mounted (mount_missing)" in again[1].stdout
    assert "1. correct the configuration of" in again[1].stdout
    assert [accepted.returncode, after.returncode] == [0, 0], after.stdout


@pytest.mark.needs("root")
def test_a_scratch_that_has_become_read_only_keeps_no_passive_check_from_its_verdict(
    cli: Cli, tmp_path: Path
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with mounted(scratch, "ro"):
        cli.site(f'scratch = "{scratch}"')
        passive = cli("run", "--check", "inventory")
        both = cli("run", "--check", "inventory", "--check", "steady", "--json")
    steady, inventory = sorted(
        json.loads(both.stdout)["results"], key=lambda result: result["verdict"]
    )

    assert passive.returncode == 0, passive.stderr
    assert f"{scratch} cannot be used (Read-only file system" in passive.stderr
    assert both.returncode == 3
    assert (steady["verdict"], steady["cause"]) == ("error", "missing")
    assert f"{scratch} cannot be used (Read-only file system" in steady["reason"]
    assert inventory["verdict"] == "pass"


@pytest.mark.needs("root")
def test_a_full_scratch_directory_is_an_error_that_says_how_much_is_needed(
    cli: Cli, tmp_path: Path
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with mounted(scratch, "size=8m"):
        cli.site(f'scratch = "{scratch}"')
        done = cli("run", "--check", "storage", "--json")
        left = list(scratch.iterdir())
    (result,) = json.loads(done.stdout)["results"]

    assert done.returncode == 3
    assert result["cause"] == "no_space"
    assert str(scratch) in result["reason"]
    assert left == []


def test_a_bug_of_ours_leaves_a_log_and_says_where(cli: Cli) -> None:
    (cli.state / "runs").mkdir(parents=True)
    (cli.state / "work").touch()  # what should be a directory is none
    code = (
        "import hpcverify.run.lock, hpcverify.cli, sys\n"
        "hpcverify.run.lock.socket = None\n"
        "sys.argv = ['hpcverify', 'run', '--check', 'steady']\n"
        "hpcverify.cli.main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=cli.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    (log,) = (cli.state / "logs").iterdir()

    assert done.returncode == 3
    assert str(log) in done.stderr
    assert "Traceback" not in done.stderr
    assert "AttributeError" in log.read_text()


def test_a_run_whose_terminal_is_gone_is_kept(cli: Cli) -> None:
    command = [*cli.command, "run", "--check", "steady"]
    with open_closed_pipe() as out:
        subprocess.run(command, env=cli.environment, stdout=out, stderr=out, check=False)
    assert json.loads(cli.list_documents()[0].read_text())["verdict"] == "pass"


def test_a_closed_pipe_is_never_the_status_of_bad_hardware(cli: Cli) -> None:
    cli("run", "--check", "steady")
    command, null = [*cli.command, "show"], subprocess.DEVNULL
    with open_closed_pipe() as out:
        shown = subprocess.run(command, env=cli.environment, stdout=out, stderr=null, check=False)
    assert shown.returncode == 141


@pytest.mark.parametrize("closed", ["2>&-", ">&-", "<&- >&- 2>&-"])
def test_streams_that_the_caller_closed_cost_nothing_but_words(cli: Cli, closed: str) -> None:
    line = f"exec {' '.join(cli.command)} run --check steady {closed}"
    assert subprocess.run(["sh", "-c", line], env=cli.environment, check=False).returncode == 0
    assert len(cli.list_documents()) == 1


def test_a_node_on_which_nothing_can_be_started_is_not_called_bad(cli: Cli) -> None:
    line = f"ulimit -n 6; exec {' '.join(cli.command)} run --check steady"
    done = subprocess.run(
        ["sh", "-c", line], env=cli.environment, capture_output=True, text=True, check=False
    )
    assert done.returncode not in (0, 1), done.stderr


@pytest.mark.needs("root")
def test_a_full_state_directory_hides_no_verdict(cli: Cli) -> None:
    cli.site('[limits.steady]\nlevel = { high = 1, unit = "ms" }')
    cli.state.mkdir()
    with mounted(cli.state, "size=256k,mode=755"):
        cli("run", "--check", "steady")
        (cli.state / "fill").write_bytes(b"")
        with suppress(OSError), (cli.state / "fill").open("wb", buffering=0) as fill:
            while True:
                fill.write(bytes(512))
        done = cli("run", "--check", "steady")

    assert "FAIL" in done.stdout
    assert done.returncode == 1
    assert "No space left" in done.stderr
    assert "bug" not in done.stderr


@pytest.mark.needs("root")
def test_a_report_that_cannot_be_written_hides_no_verdict(cli: Cli) -> None:
    cli.site('[limits.steady]\nlevel = { high = 1, unit = "ms" }')
    done = cli("run", "--check", "steady", "-o", "/dev/full")
    assert done.returncode == 1
    assert "/dev/full cannot be written" in done.stderr


def in_rounds(cli: Cli, value: float, rounds: int = 3) -> None:
    """Make a suite of the site's own that goes through one check several times."""
    check = f'[[check]]\nname = "steady"\nparams = {{ value = {value} }}'
    cli.suite("acme", f"rounds = {rounds}\n{check}")


def test_a_suite_in_rounds_leaves_a_result_of_each(cli: Cli) -> None:
    in_rounds(cli, 5)
    done = cli("run", "--suite", "acme")
    run = json.loads(cli.list_documents()[0].read_text())

    assert done.returncode == 0
    assert [r["round"] for r in run["results"]] == [1, 2, 3]
    assert "[round 2/3, 1/1] PASS  steady" in done.stderr
    assert "no GPU  suite acme  3 rounds" in done.stdout
    assert "1 passed: steady" in done.stdout


def test_a_round_that_failed_is_the_last_and_is_named(cli: Cli) -> None:
    in_rounds(cli, 11)
    done = cli("run", "--suite", "acme")
    run = json.loads(cli.list_documents()[0].read_text())

    assert done.returncode == 1
    assert (len(run["results"]), run["complete"]) == (1, True)
    assert "  1 of 3 rounds  " in done.stdout
    assert "2 rounds left out: round 1 failed" in done.stdout.splitlines()


def test_a_signal_ends_all_rounds(cli: Cli, tmp_path: Path) -> None:
    pidfile = tmp_path / "pid"
    params = f'params = {{ way = "leave_child", path = "{pidfile}" }}'
    cli.suite("acme", f'rounds = 9\n[[check]]\nname = "naughty"\n{params}')
    run = cli.start("run", "--suite", "acme")
    wait_until(pidfile.exists)
    run.terminate()
    run.communicate(timeout=PATIENCE_S)
    document = json.loads(cli.list_documents()[0].read_text())

    assert run.returncode == 3
    assert (document["complete"], len(document["results"])) == (False, 1)
