"""Slurm that is away, hangs or has forgotten: an error, and never an empty answer."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator

import pytest

from hpcverify.errors import SlurmError
from hpcverify.slurm.client import Slurm
from tests.slurm_lab.lab import Cluster, a_cluster

IMPATIENT = "MessageTimeout=2\n"
"""Commands give up after a second or two, not ten."""

QUESTIONS: dict[str, Callable[[Slurm], object]] = {
    "hosts": lambda slurm: slurm.list_hosts(),
    "jobs": lambda slurm: slurm.list_jobs("hpcverify-"),
    "reservations": lambda slurm: slurm.list_reservations(),
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Bring up two nodes and what keeps account of their jobs."""
    with a_cluster(2, extra=IMPATIENT, accounting=True) as up:
        yield up


@pytest.fixture(params=["KILL", "STOP"])
def away(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Take the controller away, or have it hang, for one test."""
    cluster.signal("slurmctld", request.param)
    cluster.until(lambda: not cluster.answers())
    yield cluster
    if request.param == "STOP":
        cluster.signal("slurmctld", "CONT")
    else:
        cluster.start("slurmctld")
    cluster.until(cluster.answers)
    cluster.until(cluster.idle)


def test_no_question_has_an_answer(away: Cluster) -> None:
    for ask in QUESTIONS.values():
        with pytest.raises(SlurmError):
            ask(away.slurm)
    with pytest.raises(SlurmError):
        away.slurm.resume("n1")


def test_without_munge_no_question_has_an_answer(cluster: Cluster) -> None:
    cluster.stop("munged")
    try:
        with pytest.raises(SlurmError, match=r"[Mm]unge"):
            cluster.slurm.list_hosts()
    finally:
        cluster.start("munged")
    cluster.until(cluster.idle)


def test_a_job_that_slurmctld_forgot_is_found_in_the_accounts(cluster: Cluster) -> None:
    wrapped = ("sbatch", "--parsable", "-J", "hpcverify-x", "-o", "/dev/null")
    number = int(cluster.run(*wrapped, "--wrap", "exit 3", "-w", "n2"))
    cluster.until(lambda: cluster.slurm.list_jobs("hpcverify-")[number].end)
    cluster.until(lambda: "FAILED" in cluster.run("sacct", "-nX", "-o", "state"))
    forget(cluster)

    assert cluster.slurm.list_jobs("hpcverify-") == {}
    job = cluster.slurm.list_jobs("hpcverify-", [number])[number]
    assert (job.name, job.state, job.node) == ("hpcverify-x", "FAILED", "n2")
    assert (job.exit_status, job.end >= job.start > 0) == (3, True)


def test_a_job_that_never_was_is_in_neither(cluster: Cluster) -> None:
    assert 4711 not in cluster.slurm.list_jobs("hpcverify-", [4711])


def forget(cluster: Cluster) -> None:
    """Start the controller anew, without what it had kept."""
    cluster.stop("slurmctld")
    shutil.rmtree(cluster.folder / "state")
    (cluster.folder / "state").mkdir()
    cluster.start("slurmctld")
    cluster.until(cluster.answers)
    cluster.until(cluster.idle)
