"""Bad input gets one line that names the thing and the fix, and a known status."""

from __future__ import annotations

import os
import sqlite3
from datetime import UTC, datetime
from pathlib import Path

import pytest

from hpcverify.errors import StoreError
from hpcverify.records import documents
from tests.cli import Cli
from tests.doubles import a_run


def refused(cli: Cli, *arguments: str, status: int = 2) -> str:
    """Run a command that must be refused; return its one line of error."""
    done = cli(*arguments)

    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    return lines[0]


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (("run", "--suite", "quik"), "no suite is called 'quik'; did you mean quick?"),
        (("run", "--check", "gem"), "no check is called 'gem'; did you mean gemm?"),
        (("show", "20251231"), "no run is called '20251231'; there is none"),
        (("report", "--node", "n9", "-o", "x"), "no node with a run is called 'n9'"),
        (("report", "a.json", "--fleet", "-o", "x"), "with FILE, only -o is allowed"),
        (("history", "n9"), "no node is called 'n9'"),
        (
            ("run", "--check", "steady", "-o", "/no/such/x.json"),
            "/no/such/x.json cannot be written: there is no directory /no/such",
        ),
    ],
)
def test_an_argument_that_names_nothing(cli: Cli, arguments: tuple[str, ...], fault: str) -> None:
    assert fault in refused(cli, *arguments)


def test_a_file_that_is_no_document_of_collectives(cli: Cli) -> None:
    message = refused(cli, "report", __file__, "-o", "x", status=StoreError.exit_code)
    assert "is not a document of collectives" in message


@pytest.mark.parametrize(
    ("arguments", "named", "command"),
    [
        (("rnu",), "'rnu'", "hpcverify"),
        (("report",), "'--output'", "hpcverify report"),
        (("run", "--siute", "quick"), "--suite", "hpcverify run"),
        (("show", "--round", "x"), "'--round'", "hpcverify show"),
        (("config", "chekc"), "'chekc'", "hpcverify config"),
        (("nodes", "hold", "n1"), "'--reason'", "hpcverify nodes hold"),
        (("nodes", "repaired", "n1"), "'--reason'", "hpcverify nodes repaired"),
        (("nodes", "release", "n1"), "'--reason'", "hpcverify nodes release"),
        (("run", "--wait", "nan"), "'nan' is not a duration", "hpcverify run"),
        (
            ("fabric", "bisect", "--budget", "inf"),
            "inf is not a finite number",
            "hpcverify fabric bisect",
        ),
        (
            ("fleet", "reliability", "--period", "90"),
            "'90' is not a duration",
            "hpcverify fleet reliability",
        ),
        (("fabric", "test", "--time", "1e999"), "not a duration", "hpcverify fabric test"),
        (("run", "--expect-gpus", "80000"), "80000 is not in the range", "hpcverify run"),
        (("run", "--json", "-o", "-"), "both write to standard output", "hpcverify run"),
    ],
)
def test_wrong_usage_is_one_line_that_names_the_help(
    cli: Cli, arguments: tuple[str, ...], named: str, command: str
) -> None:
    message = refused(cli, *arguments)
    assert named in message
    assert message.endswith(f"; see: {command} --help")


def test_without_a_command_there_is_help(cli: Cli) -> None:
    done = cli()
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("Usage: hpcverify")


NO_RUNS = "no runs of this node yet: hpcverify run"


@pytest.mark.parametrize("arguments", [("show", "--json"), ("report", "-o", "-")])
def test_without_runs_there_is_no_document(cli: Cli, arguments: tuple[str, ...]) -> None:
    assert refused(cli, *arguments) == f"hpcverify: {NO_RUNS}"


@pytest.mark.parametrize("command", ["show", "history"])
def test_a_node_without_runs_has_nothing_to_show_and_that_is_no_error(
    cli: Cli, command: str
) -> None:
    done = cli(command)

    assert (done.returncode, done.stdout, done.stderr) == (0, f"{NO_RUNS}\n", "")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("scratsch = '/tmp'", "unknown field `scratsch`; did you mean scratch?"),
        ("scratch = 3", "Expected `str`, got `int` - at `$.scratch`"),
        ("scratch = = 3", "not TOML:"),
        ("[limits.gem]", "no check is called 'gem'; did you mean gemm?"),
        (
            "[limits.steady]\nlevl = { low = 1 }",
            "limits.steady: no measurement is called 'levl'; did you mean level?",
        ),
        (
            '[limits.steady]\nlevel = { low = 1, unit = "msec" }',
            "limits.steady.'level': no unit is called 'msec'; did you mean",
        ),
        ('[limits.steady]\nlevel = { low = 1, otherwise = "fial" }', "Invalid enum value 'fial'"),
        ("[limits.steady]\nlevel = { low = 5, high = 1 }", "low 5 is above high 1"),
        ("[limits.steady]\nlevel = { low = nan }", "must be a finite number"),
        ("[limits.steady]\nlevel = { of_spec = 85 }", "as 0.85"),
        ("[limits.steady]\nlevel = {}", "it has no bound"),
    ],
)
def test_a_mistake_in_the_site_file(cli: Cli, text: str, fault: str) -> None:
    cli.site(text)

    message = refused(cli, "run", "--check", "steady")
    checked = cli("config", "check")

    assert "site.toml" in message
    assert fault in message
    assert (checked.returncode, checked.stderr.strip()) == (2, message)


def test_a_check_package_that_is_not_there(cli: Cli) -> None:
    cli.config.write_text('check_packages = ["no_such_checks"]')
    message = refused(cli, "run", "--check", "gemm")
    assert "'no_such_checks' cannot be imported. Fix: install it, or remove it" in message


def test_a_mistake_in_a_suite_is_found_before_anything_runs(cli: Cli) -> None:
    cli.suite("acme", '[[check]]\nname = "steady"\nparams = { vlaue = 1 }')
    message = refused(cli, "run", "--suite", "acme")
    assert "suite acme: check steady: params" in message
    assert "did you mean value?" in message
    assert not list(cli.state.glob("runs/*.json"))


@pytest.mark.parametrize(
    ("params", "fault"),
    [
        ("seconds = nan", "check[storage].params.seconds must be a finite number"),
        ("seconds = inf", "check[storage].params.seconds must be a finite number"),
        ("seconds = 0", "check storage: params: seconds must be > 0"),
        ("seconds = 120", "does not fit into the suite's budget of 120 s"),
    ],
)
def test_parameters_with_which_no_check_can_run(cli: Cli, params: str, fault: str) -> None:
    cli.suite("acme", f'[[check]]\nname = "storage"\nparams = {{ {params} }}')
    message = refused(cli, "run", "--suite", "acme")
    checked = cli("config", "check")
    assert fault in message
    assert (checked.returncode, checked.stderr.strip()) == (2, message)


def test_a_check_that_a_suite_has_no_time_for_is_not_begun(cli: Cli) -> None:
    cli.suite("short", '[[check]]\nname = "sdc"', budget=10)
    message = refused(cli, "run", "--suite", "short")
    assert "check sdc: seconds = 20 does not fit" in message
    assert "the suite's budget of 10 s. Fix: raise the budget, or lower seconds" in message


def test_a_scratch_directory_that_is_missing(cli: Cli) -> None:
    cli.site('scratch = "/no/such/scratch"')

    done = cli("run", "--check", "steady")

    assert done.returncode == 3
    # In the line of the check that did not run, and in the summary.
    for told in (done.stderr, done.stdout):
        assert told.count("/no/such/scratch cannot be used (No such file") == 1
    assert "change scratch in the site file" in done.stdout
    assert "1. correct the configuration of" in done.stdout
    assert "listing the hardware failed" not in done.stdout


def test_a_state_directory_that_cannot_be_written(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    cli.environment["HPCVERIFY_STATE"] = str(tmp_path / "file")
    message = refused(cli, "run", "--check", "steady")
    assert f"the state directory {tmp_path}/file cannot be written" in message
    assert "set HPCVERIFY_STATE" in message


@pytest.fixture
def kept(cli: Cli) -> Cli:
    assert cli("run", "--check", "steady").returncode == 0
    return cli


def test_a_store_from_a_newer_version(kept: Cli) -> None:
    db = sqlite3.connect(kept.state / "store.sqlite")
    db.execute("pragma user_version = 99")
    db.close()
    assert "has version 99" in refused(kept, "run", "--check", "steady")
    assert "upgrade hpcverify" in refused(kept, "history")


def test_an_index_that_is_damaged_stops_no_command_and_is_named(kept: Cli) -> None:
    store = kept.state / "store.sqlite"
    store.write_bytes(b"\0" * 4096)
    done = kept("run", "--check", "steady")

    assert done.returncode == 0
    assert f"{store} is damaged" in done.stderr
    assert kept("history").stdout.count("PASS") == 2
    assert f"fix index: a damaged one was moved to {store.with_suffix('.damaged')}" in (
        kept("doctor").stdout
    )


def test_a_run_of_a_clock_that_was_ahead_is_named_and_is_not_the_last(kept: Cli) -> None:
    started = datetime(2099, 1, 1, tzinfo=UTC)
    ahead = a_run(id="20990101-000000-abcdef", started=started)
    documents.write(ahead, kept.state / f"runs/{ahead.id}.json")
    done = kept("run", "--check", "steady")
    listed = kept("history").stdout.splitlines()

    assert f"run {ahead.id} is dated after now" in done.stderr
    assert listed[-1].startswith(ahead.id)
    assert ahead.id not in kept("show").stdout
    assert f"ok  clock: run {ahead.id} is dated after now" in kept("doctor").stdout


@pytest.mark.system
def test_a_store_that_is_locked(kept: Cli) -> None:
    holder = sqlite3.connect(kept.state / "store.sqlite")
    holder.execute("begin exclusive")
    message = refused(kept, "history")
    holder.close()
    assert "database is locked; if another hpcverify is running, wait for it" in message


def test_a_document_cut_in_half_is_named_and_loses_nothing(kept: Cli) -> None:
    half = kept.state / "runs" / "half.json"
    documents.write(a_run(id="half"), half)
    half.write_bytes(half.read_bytes()[:500])
    done = kept("run", "--check", "steady")

    assert done.returncode == 0
    assert f"{half} is not a complete run document" in done.stderr
    assert half.exists()
    assert kept("history").stdout.count("PASS") == 2


@pytest.mark.needs("root")
def test_a_state_directory_that_others_can_change_is_named(cli: Cli) -> None:
    cli.state.mkdir()
    cli.state.chmod(0o777)
    assert f"chmod go-w {cli.state}" in refused(cli, "history")


def test_a_report_onto_a_pipe_is_refused_and_does_not_wait_for_a_reader(
    cli: Cli, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "pipe")
    message = refused(cli, "report", "-o", str(tmp_path / "pipe"))
    assert "pipe cannot be written: it is a named pipe" in message


def test_a_full_disk_for_the_state_is_named(cli: Cli) -> None:
    cli.environment["HPCVERIFY_STATE"] = "/dev/full/state"
    assert "cannot be written" in refused(cli, "run", "--check", "steady")


def test_the_doctor_names_what_is_wrong_with_the_site(cli: Cli) -> None:
    cli.site("scratsch = 1")
    done = cli("doctor")
    assert done.returncode == 3
    assert "fix configuration:" in done.stdout
    assert "did you mean scratch?" in done.stdout


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("click", "raise ImportError('this is another click')"),
        ("msgspec", "raise AttributeError('half an installation')"),
    ],
)
@pytest.mark.parametrize("arguments", [("checks",), ("run", "--check", "inventory")])
def test_what_cannot_even_start_is_one_line_and_no_fail(
    cli: Cli, tmp_path: Path, module: str, text: str, arguments: tuple[str, ...]
) -> None:
    (tmp_path / f"{module}.py").write_text(text)
    cli.environment["PYTHONPATH"] = str(tmp_path)
    cli.command = ("env", *cli.command)  # a process that has imported nothing yet
    assert "cannot start" in refused(cli, *arguments, status=3)


@pytest.mark.parametrize("arguments", [(), ("config",)])
def test_no_command_is_help_and_no_pass(cli: Cli, arguments: tuple[str, ...]) -> None:
    done = cli(*arguments)
    assert done.returncode == 2
    assert done.stderr.startswith("Usage: hpcverify")
    assert "no command was given, so nothing was done" in done.stderr


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("HPCVERIFY_STATE", "/tmp/\udcff"),  # noqa: S108 - it is refused
        ("SLURMD_NODENAME", "n\udcff"),
        ("SLURMD_NODENAME", "n1\x1b[2J"),
    ],
)
def test_a_name_that_cannot_be_written_is_named(cli: Cli, variable: str, value: str) -> None:
    cli.environment[variable] = value
    assert variable in refused(cli, "run", "--check", "steady")


@pytest.mark.parametrize(
    "arguments",
    [
        ("fleet", "events", "--node", "n\udcff"),
        ("fleet", "breaker", "reset", "--reason", "\udcff"),
        ("nodes", "hold", "n\udcff", "--reason", "fan"),
    ],
)
def test_an_argument_that_is_not_utf8_is_named(cli: Cli, arguments: tuple[str, ...]) -> None:
    assert "\\udcff' is not UTF-8" in refused(cli, *arguments)


def test_a_crowded_node_is_no_bug_of_ours(cli: Cli) -> None:
    cli.command = ("prlimit", "--nofile=7", *cli.command)
    assert "raise ulimit -n" in refused(cli, "run", "--check", "steady", status=3)
