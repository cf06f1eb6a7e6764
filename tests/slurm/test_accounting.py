"""What Slurm's accounting has of everybody's jobs."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcverify.errors import SlurmError
from hpcverify.slurm.accounting import UserJob, parse_avoided_nodes, parse_user_jobs
from tests.slurm_lab.lab import a_cluster

MINUTES = 60


def test_a_job_that_ended_is_read_with_its_nodes() -> None:
    printed = "1000|gpu|NODE_FAIL|100|200|n[1-3]\n"

    assert list(parse_user_jobs(printed)) == [
        UserJob(
            user=1000,
            partition="gpu",
            state="NODE_FAIL",
            start=100,
            end=200,
            nodes=("n1", "n2", "n3"),
        )
    ]


@pytest.mark.parametrize(
    "row", ["1000|gpu|CANCELLED by 0|Unknown|200|None assigned", "1000|gpu|FAILED|100|200|n[1-"]
)
def test_a_job_that_did_not_run_or_whose_nodes_are_unclear_is_left_out(row: str) -> None:
    assert list(parse_user_jobs(f"{row}\n")) == []


def test_a_job_that_runs_has_no_end() -> None:
    (job,) = parse_user_jobs("1000|gpu|RUNNING|100|Unknown|n1\n")
    assert (job.start, job.end) == (100, 0)


def test_an_answer_in_another_form_is_an_error() -> None:
    assert list(parse_user_jobs("")) == []
    with pytest.raises(SlurmError, match="printed unexpected output: '1000 gpu'"):
        list(parse_user_jobs("1000 gpu\n"))


def test_who_cancelled_a_job_is_no_state() -> None:
    (job,) = parse_user_jobs("1000|gpu|CANCELLED by 0|100|200|n1\n")
    assert job.state == "CANCELLED"


def test_each_user_counts_once_for_a_node_that_their_jobs_avoid() -> None:
    printed = "1000|n[1-2]\n1000|n1\n1001|n1\n1002|\n1003|(null)\n"
    assert parse_avoided_nodes(printed) == {"n1": {1000, 1001}, "n2": {1000}}


@pytest.mark.needs("root", "slurmctld", "munged", "slurmdbd", "mariadbd")
def test_a_job_that_is_requeued_as_its_node_fails_is_read_as_node_fail(tmp_path: Path) -> None:
    """Slurm requeues such a job, and then shows its first run only if it is asked to."""
    script = tmp_path / "wait.sh"
    script.write_text("#!/bin/sh\nexec sleep 600\n")

    with a_cluster(2, accounting=True) as cluster:
        cluster.run("sbatch", "-o", "/dev/null", "--uid=nobody", "--requeue", script)
        cluster.until(lambda: "RUNNING" in cluster.run("squeue", "-h", "-o", "%T"))
        job, node = cluster.run("squeue", "-h", "-o", "%i %N").split()
        # The node stays down: the end of the first run, which it reports late, would end a
        # second run on it.
        cluster.run("scontrol", "update", f"nodename={node}", "state=down", "reason=lost")
        cluster.until(lambda: "PENDING" in cluster.run("squeue", "-h", "-o", "%T"))
        cluster.run("scontrol", "update", f"jobid={job}", "starttime=now")
        cluster.until(lambda: "RUNNING" in cluster.run("squeue", "-h", "-o", "%T"))

        def read() -> list[tuple[str, tuple[str, ...]]]:
            return [(job.state, job.nodes) for job in cluster.slurm.list_user_jobs(MINUTES) or ()]

        cluster.until(lambda: "RUNNING" in cluster.run("sacct", "-anXP", "-o", "State"))
        cluster.until(lambda: ("NODE_FAIL", (node,)) in read())


@pytest.mark.needs("root", "slurmctld", "munged", "slurmdbd", "mariadbd")
def test_jobs_of_other_users_are_read_from_a_real_slurm(tmp_path: Path) -> None:
    script = tmp_path / "fail.sh"
    script.write_text("#!/bin/sh\nexit 1\n")
    with a_cluster(2, accounting=True) as cluster:
        sbatch = ("sbatch", "-o", "/dev/null", "-w", "n1")
        for user in ("nobody", "daemon"):
            cluster.run(*sbatch, f"--uid={user}", script, SBATCH_NO_REQUEUE="1")
        cluster.run(*sbatch, "--uid=nobody", "-x", "n2", "--hold", script)

        def read() -> list[UserJob]:
            return [job for job in cluster.slurm.list_user_jobs(MINUTES) or () if job.end]

        cluster.until(lambda: len(read()) == len(("nobody", "daemon")))
        jobs = read()
        avoided = cluster.slurm.list_avoided_nodes()
        cluster.run("sacctmgr", "-i", "add", "account", "HPC")
        cluster.until(lambda: "hpc" in (cluster.slurm.list_accounting_names("account") or ()))
        qos = cluster.slurm.list_accounting_names("qos")

    assert {(job.state, job.nodes) for job in jobs} == {("FAILED", ("n1",))}
    assert {job.user for job in jobs} == {1, 65534}
    assert all(0 < job.start <= job.end for job in jobs)
    assert avoided == {"n2": {65534}}
    assert qos == {"normal"}
