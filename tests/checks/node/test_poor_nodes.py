"""Ranks of one node need its loopback, and say so at once; they need no temporary folder."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

pytestmark = [pytest.mark.system, pytest.mark.needs("root")]

HPCVERIFY = Path(sys.executable).with_name("hpcverify")
FIX = "ip link set lo up"
COLLECTIVES = ("--operation", "all_reduce", "--size", "4K", "--time", "0.2s", "--no-stragglers")
READ_ONLY = """
for folder in /tmp /var/tmp; do mount -t tmpfs -o ro none $folder; done
cd /proc && exec "$@"
"""
MEASURE = """
import sys
from pathlib import Path
from importlib import import_module
from hpcverify.check import Unable
from hpcverify.testing import make_context
check = import_module(f"hpcverify_checks.{sys.argv[1]}").CHECK
params = check.params(ranks=2)
try:
    list(check.measure(make_context(Path(sys.argv[2])), params))
except Unable as exc:
    print(exc.cause.name, exc)
"""


def run(*command: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, however slow the machine is."""
    return subprocess.run(command, capture_output=True, text=True, check=False)


UP_AND_DOWN = 'ip link set lo up; ip link set lo down; exec "$@"'


def without_loopback(*command: str) -> Sequence[str]:
    """Be in a network of one's own, which nobody has set up."""
    return ("unshare", "--net", *command)


@pytest.mark.parametrize("state", ["never up", "down again"])
def test_collectives_name_the_loopback_that_is_down(state: str) -> None:
    """One that was up keeps its address, and loses what is sent to it."""
    before = ("sh", "-c", UP_AND_DOWN, "sh") if state == "down again" else ()
    done = run(*without_loopback(*before, str(HPCVERIFY), "fabric", "test", *COLLECTIVES))

    assert done.returncode == 3, done.stderr
    assert FIX in done.stderr
    assert "bug" not in done.stderr


@pytest.mark.parametrize("check", ["allreduce", "training", "collectives"])
def test_a_check_of_ranks_names_the_loopback_that_is_down(tmp_path: Path, check: str) -> None:
    done = run(*without_loopback(sys.executable, "-c", MEASURE, check, str(tmp_path)))

    assert done.stdout.startswith("MISCONFIGURED"), done.stderr
    assert FIX in done.stdout


def test_collectives_need_no_folder_for_temporary_files() -> None:
    shell = ("unshare", "--mount", "sh", "-ec", READ_ONLY, "sh")
    done = run(*shell, str(HPCVERIFY), "fabric", "test", *COLLECTIVES)

    assert done.returncode == 0, done.stderr
    assert "every result was right" in done.stdout
