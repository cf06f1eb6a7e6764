"""The hooks under a real Slurm: what becomes of jobs and nodes."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator

import pytest

from tests.slurm.hooks import HERE, LATER, Hooks
from tests.slurm_lab.lab import Cluster

NODE = "n1"
SLEEP = f"sleep 322.{os.getpid()}"
"""No other test's: it is looked for by its name."""
SLOW = f"trap '' TERM INT HUP; {SLEEP} & wait; wait"


@pytest.fixture
def hooks(cluster: Cluster) -> Iterator[Hooks]:
    """Have a cluster whose jobs pass by our hooks, as those of an ordinary user."""
    folder = cluster.folder / "hooks"
    folder.mkdir(exist_ok=True)
    made = Hooks(folder)
    made.prepare(HPCVERIFY_USERS="4242")
    made.command()
    for hook in ("prolog", "epilog", "healthcheck"):
        script = folder / hook
        script.write_text(f"#!/bin/sh\nexec {HERE / hook} {made.settings}\n")
        script.chmod(0o755)
    cluster.reconfigure(f"Prolog={folder}/prolog\nEpilog={folder}/epilog")
    yield made
    for file in (made.state / "gate", made.called):
        file.unlink(missing_ok=True)


def job(cluster: Cluster, *does: str) -> subprocess.CompletedProcess[str]:
    does = does or ("echo", "the job ran")
    command = ("srun", "--immediate=20", "-w", NODE, *does)
    return subprocess.run(command, env=cluster.env, capture_output=True, text=True, check=False)


def back(cluster: Cluster) -> None:
    cluster.until(lambda: "DRAIN" in cluster.slurm.list_hosts(NODE)[NODE].flags)
    cluster.run("scontrol", "update", f"nodename={NODE}", "state=undrain")
    cluster.run("scancel", "-u", "root")
    cluster.until(lambda: cluster.idle(NODE))


@pytest.mark.parametrize(
    "word",
    [None, "quaran", "quarantined\n1\nstale\n\n", f"ok\n{LATER}\n\n\n"],
    ids=["missing", "corrupt", "stale", "ok"],
)
def test_a_job_runs_unless_a_word_that_stands_refuses_it(
    cluster: Cluster, hooks: Hooks, word: str | None
) -> None:
    if word is not None:
        hooks.word(word)
    cluster.until(lambda: cluster.idle(NODE))
    assert job(cluster).stdout == "the job ran\n"
    cluster.until(lambda: cluster.idle(NODE))


def test_a_job_on_a_quarantined_node_does_not_run_and_slurmd_is_told_why(
    cluster: Cluster, hooks: Hooks
) -> None:
    hooks.word(f"quarantined\n{LATER}\nGPU 3: fell off the bus\n\n")
    done = job(cluster)

    assert done.returncode != 0
    assert "the job ran" not in done.stdout
    cluster.until(lambda: cluster.slurm.list_hosts(NODE)[NODE].reason == "Prolog error")
    assert "no job starts on n1: GPU 3: fell off the bus" in cluster.log("slurmd.n1")
    back(cluster)


def test_hard_evidence_refuses_the_job(cluster: Cluster, hooks: Hooks) -> None:
    hooks.word(f"ok\n{LATER}\n\ninventory\n")
    hooks.command("echo FAIL inventory: GPU 3 is gone", "exit 1")
    assert "the job ran" not in job(cluster).stdout
    back(cluster)


@pytest.mark.parametrize("checks", ["", "inventory"], ids=["observe", "enforce"])
def test_a_hung_probe_costs_a_job_its_deadline_at_most(
    cluster: Cluster, hooks: Hooks, checks: str
) -> None:
    hooks.prepare(HPCVERIFY_USERS="4242", HPCVERIFY_DEADLINE=2)
    hooks.word(f"ok\n{LATER}\n\n{checks}\n")
    hooks.command(SLOW)

    assert job(cluster).stdout == "the job ran\n"
    cluster.until(lambda: cluster.idle(NODE))
    cluster.until(lambda: not asleep())


def asleep() -> str:
    """Name the processes that `SLOW` left behind."""
    command = ("pgrep", "-fx", SLEEP)
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def test_what_runs_beside_a_job_outlives_the_prolog(cluster: Cluster, hooks: Hooks) -> None:
    hooks.command("sleep 1", f"echo over >>{hooks.called}")
    # The job ends after the first: its epilog would find the prolog's at work.
    job(cluster, "sh", "-c", f"until grep over {hooks.called}; do sleep 0.1; done")

    cluster.until(lambda: hooks.called.read_text().count("over") >= 2)
    assert "--suite prolog" in hooks.called.read_text()
    assert "--suite epilog" in hooks.called.read_text()


@pytest.mark.parametrize("broken", ["/nowhere/hpcverify", "/etc/hostname"])
def test_without_hpcverify_jobs_run_and_nodes_stay(
    cluster: Cluster, hooks: Hooks, broken: str
) -> None:
    hooks.prepare(HPCVERIFY=broken, HPCVERIFY_USERS="4242")
    hooks.word(f"ok\n{LATER}\n\ninventory\n")
    assert job(cluster).stdout == "the job ran\n"
    cluster.until(lambda: cluster.idle(NODE))


def test_health_checks_that_overlap_are_one(cluster: Cluster, hooks: Hooks) -> None:
    go, started = hooks.folder / "go", hooks.folder / "started"
    hooks.prepare(HPCVERIFY_DEADLINE=30)
    hooks.command(f"until [ -e {go} ]; do sleep 0.1; done")
    script = hooks.folder / "healthcheck"
    script.write_text(f"#!/bin/sh\necho >>{started}\nexec {HERE}/healthcheck {hooks.settings}\n")
    every_second = "HealthCheckInterval=1\nHealthCheckNodeState=ANY"
    cluster.reconfigure(f"HealthCheckProgram={script}\n{every_second}")
    # The nodes of the lab share a machine, and so the lock: four start each second.
    cluster.until(lambda: started.exists() and len(started.read_text()) >= 10)
    calls = hooks.called.read_text().splitlines()
    go.touch()  # first: slurmd waits for the one under way when it reads anew
    cluster.until(lambda: len(hooks.called.read_text().splitlines()) > 1)
    cluster.reconfigure("")

    assert calls == [f"run --suite prolog --spool {hooks.folder}/spool"]
