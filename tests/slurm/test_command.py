"""One command: bounded, undisturbed, and an error that says what was wrong."""

from __future__ import annotations

import os

import pytest

from hpcverify.errors import SlurmError
from hpcverify.slurm.command import clean_environment, run_command


def sh(script: str) -> str:
    """Run a shell script as though it were one of Slurm's commands."""
    return run_command(["sh", "-c", script])


def test_what_it_prints_is_given() -> None:
    assert sh("echo yes; echo no >&2") == "yes\n"


def test_a_failure_says_what_the_command_said() -> None:
    with pytest.raises(SlurmError, match="sh -c: Invalid user id"):
        sh("echo half an answer; echo; echo Invalid user id >&2; echo more >&2; exit 1")


def test_a_failure_without_a_word_is_one_too() -> None:
    with pytest.raises(SlurmError, match="exit status 3"):
        sh("exit 3")


def test_where_no_slurm_conf_is_found_the_fix_is_told() -> None:
    told = "scontrol: fatal: Could not establish a configuration source"
    with pytest.raises(SlurmError, match=r"it finds no slurm\.conf: set SLURM_CONF"):
        sh(f"echo '{told}' >&2; exit 1")


def test_a_slurm_conf_that_is_not_there_is_named_at_once() -> None:
    with pytest.raises(SlurmError, match=r"SLURM_CONF names /x/slurm\.conf, which does not exist"):
        run_command(["sleep", "60"], environ={"SLURM_CONF": "/x/slurm.conf"})


def test_a_command_that_is_killed_is_a_failure() -> None:
    with pytest.raises(SlurmError, match="exit status -9"):
        sh("kill -9 $$")


def test_a_command_that_is_missing_is_named() -> None:
    with pytest.raises(SlurmError, match="scontrl is not installed or not in PATH"):
        run_command(["scontrl"])


def test_a_command_that_may_not_be_run_is_named() -> None:
    with pytest.raises(SlurmError, match="/ cannot be run: Permission denied"):
        run_command(["/"])


def test_a_command_that_hangs_is_ended() -> None:
    with pytest.raises(SlurmError, match=r"did not end within 0.1 s"):
        run_command(["sleep", "60"], timeout=0.1)


def test_what_is_no_text_costs_only_itself() -> None:
    assert sh(r"printf 'a\377b'") == "a\N{REPLACEMENT CHARACTER}b"


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
