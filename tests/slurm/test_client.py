"""The Slurm client, on a real cluster."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from hpcverify.errors import SlurmError
from hpcverify.slurm import Job
from hpcverify.slurm.client import MAX_NAMED_NODES, Slurm, parse_minutes
from hpcverify.slurm.command import run_command
from hpcverify.slurm.partitions import ZERO_EXEMPT_TIMES
from tests.slurm_lab.lab import Cluster

NASTY = '"disk" = \'a\' | b [root@5]\n   Reason=x\nNodeName=n9 State=IDLE, $(id) é\\n"'
"""A reason that is hard to quote and hard to read back."""

WAITS = "#!/bin/sh\ntrap 'exit 0' TERM\nsleep 60 & wait\n"
"""A job that ends at once when it is told to."""


@pytest.fixture(autouse=True)
def _as_it_was(cluster: Cluster) -> Iterator[None]:
    """Leave an idle cluster behind."""
    yield
    if ids := cluster.run("squeue", "-h", "-o", "%A").split():
        cluster.run("scancel", *ids)
    cluster.until(lambda: not cluster.run("squeue", "-h"))
    for name in cluster.slurm.list_reservations():
        cluster.slurm.unreserve(name)
    for name in cluster.slurm.list_hosts():
        cluster.slurm.resume(name)
    cluster.until(cluster.idle)


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "wait.sh"
    path.write_text(WAITS)
    return path


def submit(cluster: Cluster, script: Path, name: str, *options: str) -> int:
    where = ("-o", "/dev/null", "-D", "/")
    return cluster.slurm.submit(script, "-J", f"hpcverify-{name}", *where, *options)


def job(cluster: Cluster, number: int, state: str) -> Job:
    cluster.until(lambda: cluster.slurm.list_jobs("hpcverify-")[number].state == state)
    return cluster.slurm.list_jobs("hpcverify-")[number]


def test_the_version_is_known(cluster: Cluster) -> None:
    assert cluster.slurm.read_version() >= (20, 11)


def test_all_nodes_are_given_each_once(cluster: Cluster) -> None:
    hosts = cluster.slurm.list_hosts()
    assert sorted(hosts) == ["n1", "n2", "n3", "n4"]
    assert {host.state for host in hosts.values()} == {"IDLE"}
    assert (hosts["n1"].partitions, hosts["n1"].gpus) == (("batch", "verify"), 2)


def test_named_nodes_are_given_in_their_order(cluster: Cluster) -> None:
    assert list(cluster.slurm.list_hosts("n3", "n1")) == ["n3", "n1"]


def test_of_very_many_names_all_nodes_are_asked_for(cluster: Cluster) -> None:
    assert list(cluster.slurm.list_hosts(*["n1", "n2"] * MAX_NAMED_NODES)) == ["n1", "n2"]


def test_a_node_that_slurm_does_not_know_is_an_error(cluster: Cluster) -> None:
    with pytest.raises(SlurmError, match="n99"):
        cluster.slurm.list_hosts("n1", "n99")


def test_the_user_that_slurm_acts_as_is_known(cluster: Cluster) -> None:
    assert cluster.slurm.read_slurm_user() == cluster.slurm.user


def test_what_a_partition_lets_jobs_do_is_known(cluster: Cluster) -> None:
    unlimited = cluster.slurm.read_partition("batch")
    cluster.run("scontrol", "update", "partitionname=verify", "maxtime=1-02:03:00")
    limited = cluster.slurm.read_partition("verify")

    assert (unlimited.max_minutes, unlimited.is_preemptible) == (math.inf, False)
    assert (limited.max_minutes, limited.is_preemptible) == (1440 + 123, True)
    assert not limited.root_only
    cluster.run("scontrol", "update", "partitionname=verify", "rootonly=yes")
    assert cluster.slurm.read_partition("verify").root_only
    cluster.run("scontrol", "update", "partitionname=verify", "rootonly=no")
    with pytest.raises(SlurmError, match="nowhere"):
        cluster.slurm.read_partition("nowhere")


def test_all_partitions_are_given_with_whom_they_give_way_to(cluster: Cluster) -> None:
    cluster.run("scontrol", "update", "partitionname=verify", "hidden=yes")
    try:
        found = cluster.slurm.list_partitions()
    finally:
        cluster.run("scontrol", "update", "partitionname=verify", "hidden=no")

    told = {name: (p.preempt_mode, p.tier, p.hostlist, p.grace) for name, p in found.items()}
    assert told == {"batch": ("OFF", 10, "n[1-4]", "0"), "verify": ("REQUEUE", 1, "n[1-4]", "0")}
    assert all(p.open_to_all and p.state == "UP" for p in found.values())
    preemption = cluster.slurm.read_preemption()
    assert preemption.kind == "preempt/partition_prio"
    assert preemption.exempt in ZERO_EXEMPT_TIMES


def test_a_time_limit_that_is_none_is_an_error() -> None:
    with pytest.raises(SlurmError, match="is not a time limit"):
        parse_minutes("soon")


@pytest.mark.parametrize("name", ["ALL", "n[1-2]", "n1,n2", "--help", ""])
def test_what_may_be_several_nodes_is_never_drained(cluster: Cluster, name: str) -> None:
    with pytest.raises(SlurmError, match="is not a single name"):
        cluster.slurm.drain(name, "hpcverify: no")
    assert cluster.idle()


def test_a_drain_is_seen_with_who_and_when(cluster: Cluster) -> None:
    cluster.slurm.drain("n1", "hpcverify: gemm")
    host = cluster.slurm.list_hosts("n1")["n1"]

    assert (host.state, set(host.flags)) == ("IDLE", {"DRAIN"})
    assert (host.reason, host.reason_user) == ("hpcverify: gemm", cluster.slurm.user)
    assert host.reason_time >= cluster.conf.stat().st_mtime - 1
    assert cluster.idle("n2", "n3", "n4")


def test_a_reason_comes_back_word_for_word(cluster: Cluster) -> None:
    cluster.slurm.drain("n1", NASTY)
    assert cluster.slurm.list_hosts("n1")["n1"].reason == NASTY


def test_a_reason_is_replaced_and_the_drain_stays(cluster: Cluster) -> None:
    cluster.slurm.drain("n1", "one")
    cluster.slurm.set_reason("n1", NASTY)
    host = cluster.slurm.list_hosts("n1")["n1"]
    assert (host.reason, set(host.flags)) == (NASTY, {"DRAIN"})


def test_a_drain_is_taken_back_as_often_as_one_likes(cluster: Cluster) -> None:
    cluster.slurm.drain("n1", "hpcverify: x")
    cluster.slurm.resume("n1")
    cluster.slurm.resume("n1")
    host = cluster.slurm.list_hosts("n1")["n1"]
    assert ("DRAIN" in host.flags, host.reason) == (False, "")


def test_a_node_that_is_down_stays_down(cluster: Cluster) -> None:
    cluster.run("scontrol", "update", "nodename=n1", "state=down", "reason=no power")
    cluster.slurm.resume("n1")
    host = cluster.slurm.list_hosts("n1")["n1"]
    cluster.run("scontrol", "update", "nodename=n1", "state=resume")
    assert (host.state, host.reason) == ("DOWN", "no power")


def test_a_job_runs_where_it_was_sent(cluster: Cluster, script: Path) -> None:
    number = submit(cluster, script, "a", "-w", "n2")
    found = job(cluster, number, "RUNNING")
    assert (found.name, found.node, found.end) == ("hpcverify-a", "n2", 0)
    assert found.start > 0


def test_a_job_of_another_name_is_none_of_ours(cluster: Cluster, script: Path) -> None:
    cluster.slurm.submit(script, "-J", "theirs", "--hold")
    assert cluster.slurm.list_jobs("theirs")
    assert "theirs" not in {j.name for j in cluster.slurm.list_jobs("hpcverify-").values()}


def test_a_job_of_another_user_cannot_pass_for_ours(cluster: Cluster) -> None:
    forged = "x\n1|FAILED|n1|1|1|N/A|0:0|None|hpcverify-forged"
    wrapped = ("sbatch", "-J", forged, "--hold", "--wrap", "true", "-D", "/")
    if os.geteuid() == 0:
        cluster.run(*wrapped, "--uid=nobody")
    assert "forged" not in str(cluster.slurm.list_jobs("hpcverify-"))


def test_a_cancelled_job_that_never_started_says_so(cluster: Cluster, script: Path) -> None:
    number = submit(cluster, script, "b", "--hold")
    assert job(cluster, number, "PENDING").reason == "JobHeldUser"
    cluster.slurm.cancel(number)
    assert job(cluster, number, "CANCELLED").start == 0


def test_a_job_is_cancelled_as_often_as_one_likes(cluster: Cluster, script: Path) -> None:
    number = submit(cluster, script, "c")
    cluster.slurm.cancel(number)
    job(cluster, number, "CANCELLED")
    cluster.slurm.cancel(number)
    cluster.slurm.cancel()


def test_an_exit_status_is_kept(cluster: Cluster, tmp_path: Path) -> None:
    fails = tmp_path / "fails.sh"
    fails.write_text("#!/bin/sh\nexit 3\n")
    found = job(cluster, submit(cluster, fails, "d"), "FAILED")
    assert (found.exit_status, found.signal) == (3, 0)
    assert found.end >= found.start > 0


def test_a_job_that_made_way_was_preempted(cluster: Cluster, script: Path) -> None:
    how = ("-p", "verify", "-w", "n1", "--exclusive", "--no-requeue")
    number = submit(cluster, script, "e", *how)
    job(cluster, number, "RUNNING")
    cluster.run("srun", "-w", "n1", "--exclusive", "true")
    cluster.until(lambda: cluster.slurm.list_jobs("hpcverify-")[number].end)

    assert cluster.slurm.list_jobs("hpcverify-")[number].preempted


def test_a_script_that_is_not_there_is_an_error(cluster: Cluster) -> None:
    with pytest.raises(SlurmError, match="sbatch"):
        cluster.slurm.submit(Path("/nowhere.sh"))


def test_a_reserved_node_takes_our_jobs_only(cluster: Cluster, script: Path) -> None:
    cluster.slurm.reserve("hv-n3", "n3")
    theirs = submit(cluster, script, "theirs", "-w", "n3")
    ours = submit(cluster, script, "ours", "-w", "n3", "--reservation=hv-n3")

    assert job(cluster, ours, "RUNNING").node == "n3"
    waits = cluster.slurm.list_jobs("hpcverify-")[theirs]
    assert (waits.state, waits.start) == ("PENDING", 0)
    assert "reserved" in waits.reason or waits.reason == "None"


def test_a_reservation_is_seen_and_gone_again(cluster: Cluster) -> None:
    cluster.slurm.reserve("hv-n3", "n3")
    found = cluster.slurm.list_reservations()["hv-n3"]
    cluster.slurm.unreserve("hv-n3")
    assert (found.nodes, found.flags >= {"MAINT", "IGNORE_JOBS"}) == (("n3",), True)
    assert cluster.slurm.list_reservations() == {}


def test_a_reservation_leaves_running_jobs_alone(cluster: Cluster, script: Path) -> None:
    number = submit(cluster, script, "f", "-w", "n3")
    job(cluster, number, "RUNNING")
    cluster.slurm.reserve("hv-n3", "n3")
    assert cluster.slurm.list_jobs("hpcverify-")[number].state == "RUNNING"


def test_the_same_reservation_twice_is_an_error(cluster: Cluster) -> None:
    cluster.slurm.reserve("hv-n3", "n3")
    with pytest.raises(SlurmError):
        cluster.slurm.reserve("hv-n3", "n3")
    assert list(cluster.slurm.list_reservations()) == ["hv-n3"]


def test_polling_takes_one_command_whatever_is_asked(cluster: Cluster, script: Path) -> None:
    number = submit(cluster, script, "g", "--hold")
    asked: list[str] = []
    plain = cluster.slurm.run

    def counted(command: list[str] | tuple[str, ...]) -> str:
        asked.append(command[0])
        return plain(command)

    Slurm(counted, cluster.slurm.user).list_jobs("hpcverify-", [number])  # type: ignore[arg-type]

    assert asked == ["squeue"]


def test_an_unwilling_user_is_told_why(cluster: Cluster) -> None:
    as_nobody = partial(run_command, environ=cluster.env)
    slurm = Slurm(lambda words: as_nobody(["runuser", "-u", "nobody", "--", *words]))
    with pytest.raises(SlurmError, match="Invalid user id"):
        slurm.drain("n1", "no")
    assert sorted(slurm.list_hosts()) == ["n1", "n2", "n3", "n4"]
