"""``hpcverify qualify selftest`` says which checks can be trusted on a node."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from hpcverify.run.selftest import list_unprovable_checks, load_provable_checks
from tests.cli import Cli
from tests.nvml_lab.nvmllab import Lab

ROOT = Path(__file__).parents[2]
SECONDS = 60.0


@pytest.fixture
def cli(cli: Cli) -> Cli:
    """Give the site checks that can try themselves, and nothing else that can."""
    packages = '["tests.site.proving_checks"]'
    cli.config.write_text(f"check_packages = {packages}\n")
    cli.environment["PYTHONPATH"] = str(ROOT)
    return cli


def tried(cli: Cli, way: str, status: int) -> dict[str, Any]:
    cli.environment["METTLE"] = way
    done = cli("qualify", "selftest", "mettle", "--json")
    assert done.returncode == status, done.stderr
    proof: dict[str, Any]
    (proof,) = json.loads(done.stdout)
    return proof


def test_a_check_that_finds_what_it_must_is_sound(cli: Cli) -> None:
    proof = tried(cli, "holds", 0)
    assert proof["sound"]
    assert [t["fault"] for t in proof["trials"]] == ["none", "a flipped bit"]
    assert {(t["part_id"], t["holds"]) for t in proof["trials"]} == {("cpu", True)}


def test_a_check_that_misses_a_fault_must_not_be_trusted(cli: Cli) -> None:
    cli.environment["METTLE"] = "wrong"
    done = cli("qualify", "selftest", "mettle")

    assert done.returncode == 1
    assert "do not trust it on this node: a flipped bit" in done.stdout
    assert done.stdout.splitlines()[2:4] == [
        "WRONG CPU      a flipped bit                                    found",
        "               outcome: nothing found: by comparing twice",
    ]


def test_details_of_each_trial_are_shown_with_verbose(cli: Cli) -> None:
    brief = cli("qualify", "selftest", "mettle")
    verbose = cli("-v", "qualify", "selftest", "mettle")
    assert "comparing twice" not in brief.stdout
    assert "               detail: by comparing twice" in verbose.stdout


def test_an_interrupt_before_the_first_trial_is_one_line(cli: Cli, tmp_path: Path) -> None:
    package = tmp_path / "hasty_checks"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "hasty.py").write_text("import signal\nsignal.raise_signal(2)\n")
    cli.config.write_text('check_packages = ["hasty_checks"]')
    cli.environment["PYTHONPATH"] = str(tmp_path)
    done = cli("qualify", "selftest", "hasty")

    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.strip() == "hpcverify: interrupted"


@pytest.mark.parametrize(
    ("way", "reason"), [("unable", "apt-get install frob"), ("exit", "its worker exited with 7")]
)
def test_a_check_that_could_not_be_tried_is_neither_sound_nor_refuted(
    cli: Cli, way: str, reason: str
) -> None:
    proof = tried(cli, way, 3)
    assert not proof["sound"]
    assert [t["fault"] for t in proof["trials"]] == ["none"]
    assert reason in proof["shortfalls"][0]["reason"]


def test_a_check_that_skips_every_device_was_not_tried(cli: Cli) -> None:
    proof = tried(cli, "skip", 3)
    (skip,) = proof["skips"]
    assert (skip["part_id"], skip["text"]) == ("cpu", "skipped: there is no such part")


def test_the_table_has_a_line_for_each_trial_as_it_ends(cli: Cli) -> None:
    cli.environment["METTLE"] = "wait"
    command = [*cli.command, "qualify", "selftest", "mettle"]
    pipe, environment = subprocess.PIPE, cli.environment | {"PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, env=environment, stdout=pipe, text=True) as running:
        assert running.stdout is not None
        head, first = running.stdout.readline(), running.stdout.readline()
        running.send_signal(signal.SIGINT)
        rest = running.stdout.read()

    assert head.split() == ["part", "fault", "expected"]
    assert first.split()[:3] == ["ok", "CPU", "none"]
    assert "not fully tried on CPU: interrupted" in rest
    assert running.returncode == 3


def test_without_a_name_all_that_can_be_tried_are() -> None:
    assert load_provable_checks(None, ("tests.site.proving_checks",)).keys() == {"mettle"}


def test_a_check_without_a_selftest_is_one_line(cli: Cli) -> None:
    done = cli("qualify", "selftest", "mute")
    assert (done.returncode, done.stdout) == (2, "")
    assert "check mute has no selftest" in done.stderr


def test_an_unknown_check_is_one_line(cli: Cli) -> None:
    done = cli("qualify", "selftest", "metle")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines() == [
        "hpcverify: no check is called 'metle'; did you mean mettle?"
    ]


def test_a_gpu_that_someone_uses_is_left_alone(cli: Cli, lab: Lab) -> None:
    cli.environment["LD_LIBRARY_PATH"] = str(lab.library.parent)
    cli.environment["NVML_LAB_SCENARIO"] = str(lab.scenario)
    lab.write("gpu.3.process = 4242 1073741824 python3 train.py")
    done = cli("qualify", "selftest", "mettle")

    assert done.returncode == 3
    assert "in use by process 4242" in done.stderr


def test_every_device_has_trials_of_its_own(cli: Cli, lab: Lab) -> None:
    cli.environment["LD_LIBRARY_PATH"] = str(lab.library.parent)
    cli.environment["NVML_LAB_SCENARIO"] = str(lab.scenario)
    places = {trial["part_id"] for trial in tried(cli, "holds", 0)["trials"]}
    assert len(places) == 1 + 8


def test_a_device_that_cannot_be_reached_was_not_tried(cli: Cli, lab: Lab) -> None:
    cli.environment["LD_LIBRARY_PATH"] = str(lab.library.parent)
    cli.environment["NVML_LAB_SCENARIO"] = str(lab.scenario)
    lab.load("driver-mismatch")
    assert tried(cli, "holds", 3)["shortfalls"]


def test_nothing_is_left_behind(cli: Cli) -> None:
    tried(cli, "holds", 0)
    assert not list((cli.state / "work").iterdir())


@pytest.mark.system
def test_the_check_for_silent_corruption_is_sound_here(cli: Cli) -> None:
    cli.environment["OMP_NUM_THREADS"] = "1"  # two would wait for each other
    done = cli("qualify", "selftest", "sdc", "--json")
    assert done.returncode == 0, done.stderr
    (proof,) = json.loads(done.stdout)

    assert {trial["outcome"] for trial in proof["trials"]} == {
        *("found: compute", "found: memory", "nothing found", "checker broken")
    }
    assert {
        trial["fault"].split(": ", 1)[1].partition(",")[0]
        for trial in proof["trials"]
        if trial["expected"] == "nothing found"
    } == {"none", "control"}
    assert max(map(len, done.stderr.splitlines())) < 80


def test_without_a_name_the_checks_that_nobody_can_try_are_listed() -> None:
    packages = ("hpcverify_checks", "tests.site.proving_checks")
    without = list_unprovable_checks(packages)
    assert {"training", "allreduce", "storage", "gpu_memory", "p2p", "thermal"} <= set(without)
    assert not {"mettle", "inventory", *load_provable_checks(None, packages)} & set(without)
