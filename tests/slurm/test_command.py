"""One command: bounded, undisturbed, and an error that says what was wrong."""

from __future__ import annotations

import os

import pytest

from hpcverify.errors import SlurmError
from hpcverify.slurm.command import clean_environment, run_command

UNCONFIGURED = "echo 'scontrol: fatal: Could not establish a configuration source' >&2; exit 1"
FAILING = {
    "sh -c: Invalid user id": "echo half; echo; echo Invalid user id >&2; echo more >&2; exit 1",
    "exit status 3": "exit 3",
    r"slurm\.conf not found\. Fix: set SLURM_CONF": UNCONFIGURED,
    "exit status -9": "kill -9 $$",
}


@pytest.mark.parametrize(
    ("told", "command"),
    [
        *((told, ["sh", "-c", script]) for told, script in FAILING.items()),
        ("scontrl is not installed or not in PATH", ["scontrl"]),
        ("/ cannot be run: Permission denied", ["/"]),
    ],
)
def test_a_command_that_fails_is_told_in_its_words_with_the_fix(
    told: str, command: list[str]
) -> None:
    with pytest.raises(SlurmError, match=told):
        run_command(command)


def test_a_slurm_conf_that_is_not_there_is_named_at_once() -> None:
    with pytest.raises(SlurmError, match=r"/x/slurm\.conf \(SLURM_CONF\) does not exist"):
        run_command(["sleep", "60"], environ={"SLURM_CONF": "/x/slurm.conf"})


def test_a_command_that_hangs_is_ended() -> None:
    with pytest.raises(SlurmError, match=r"did not end within 0.1 s"):
        run_command(["sleep", "60"], timeout=0.1)


@pytest.mark.parametrize(
    ("script", "printed"),
    [
        ("echo yes; echo no >&2", "yes\n"),
        (r"printf 'a\377b'", "a\N{REPLACEMENT CHARACTER}b"),  # no text: costs only itself
    ],
)
def test_what_it_prints_is_given(script: str, printed: str) -> None:
    assert run_command(["sh", "-c", script]) == printed


@pytest.mark.parametrize(
    "name", ["SLURM_JOB_ID", "SLURM_CLUSTERS", "SQUEUE_USERS", "SBATCH_PARTITION"]
)
def test_what_sways_slurm_is_left_out(name: str) -> None:
    assert name not in clean_environment({name: "7"})


def test_where_the_cluster_is_stays() -> None:
    kept = clean_environment(
        {**os.environ, "SLURM_CONF": "/etc/x", "SLURM_TIME_FORMAT": "relative"}
    )
    assert (kept["SLURM_CONF"], kept["SLURM_TIME_FORMAT"]) == ("/etc/x", "%s")
    assert kept["PATH"] == os.environ["PATH"]
