"""What Slurm says of jobs."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcverify.slurm import Job
from hpcverify.slurm.jobs import from_sacct, from_squeue

RECORDED = Path(__file__).with_name("recorded")
ROW = "7|{state}|{node}|100|200|{preempted}|{code}|None|hpcverify-7-n1|"


def row(state: str = "COMPLETED", node: str = "n1", preempted: str = "N/A", code: str = "0") -> Job:
    printed = ROW.format(state=state, node=node, preempted=preempted, code=code)
    return from_squeue(printed + "\n", "hpcverify-")[7]


@pytest.mark.parametrize("version", ["22.05", "24.11"])
def test_only_jobs_of_the_prefix_are_given(version: str) -> None:
    jobs = from_squeue((RECORDED / f"squeue-{version}.txt").read_text(), "hpcverify-la")
    assert [job.name for job in jobs.values()] == ["hpcverify-late"]
    assert {(job.state, job.start, job.end) for job in jobs.values()} == {("PENDING", 0, 0)}


def test_no_job_at_all_is_an_answer() -> None:
    assert from_squeue("", "hpcverify-") == {}


def test_a_row_that_breaks_off_is_left_out() -> None:
    assert from_squeue("7|RUNNING|n1|100", "") == {}


def test_when_a_job_may_start_is_not_when_it_started() -> None:
    assert row("PENDING", node="").start == 0


def test_a_job_that_was_given_up_while_it_waited_never_started() -> None:
    job = row("CANCELLED", node="")
    assert (job.start, job.end) == (0, 200)


def test_when_a_job_must_end_is_not_when_it_ended() -> None:
    assert (row("RUNNING").start, row("RUNNING").end) == (100, 0)


@pytest.mark.parametrize(
    ("code", "status", "signal"),
    [("0", 0, 0), ("768", 3, 0), ("9", 0, 9), ("3:0", 3, 0), ("0:9", 0, 9)],
)
def test_an_exit_code_is_read_in_both_forms(code: str, status: int, signal: int) -> None:
    assert (row(code=code).exit_status, row(code=code).signal) == (status, signal)


def test_a_job_that_ended_in_its_grace_time_was_preempted() -> None:
    assert row("COMPLETED", preempted="150").preempted
    assert row("PREEMPTED").preempted
    assert not row("COMPLETED").preempted


def test_sacct_names_who_cancelled_and_that_is_no_state() -> None:
    printed = "8|CANCELLED by 0|None assigned|None|200|0:0|None|hpcverify-8-n1\n"
    job = from_sacct(printed, "hpcverify-")[8]
    assert (job.state, job.node, job.start) == ("CANCELLED", "", 0)
