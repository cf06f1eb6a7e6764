"""``hpcverify fabric bisect`` on a real Slurm, with a stand-in for the measurement."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Generator
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pytest

from hpcverify.fleet.states import State
from hpcverify.isolation.journal import JOURNAL_NAME
from tests.fleet.cluster import Fleet
from tests.isolation.stand_in import SimulatedCluster
from tests.slurm_lab.lab import a_cluster

pytestmark = pytest.mark.needs("root", "slurmctld", "munged")

ROOT = Path(__file__).parents[2]
PROGRAM = """#!/bin/sh
if [ "$1 $2" = "fabric test" ]; then
    export SIMULATED_CLUSTER={folder}/simulated.json PYTHONPATH={root}
    exec {python} -m tests.isolation.stand_in "$@"
fi
exec {real} "$@"
"""


@pytest.fixture
def fleet() -> Generator[Fleet]:
    """Give a site of six nodes, n1 to n6, whose collectives are simulated."""
    # the folder goes last: what still runs on a node writes into it
    with TemporaryDirectory(prefix="hvisolate-", dir="/tmp") as name, a_cluster(6) as up:
        fleet = Fleet(up, Path(name))
        fleet.prepare()
        real = fleet.folder / "hpcverify"
        real.rename(fleet.folder / "real")
        real.write_text(
            PROGRAM.format(
                folder=name, root=ROOT, python=sys.executable, real=fleet.folder / "real"
            )
        )
        real.chmod(0o755)
        yield fleet


def simulate(fleet: Fleet, cluster: SimulatedCluster) -> None:
    """Say who is bad."""
    (fleet.folder / "simulated.json").write_bytes(msgspec.json.encode(cluster))


def read_journal(fleet: Fleet, kind: str) -> list[dict[str, object]]:
    """Read the entries of a kind, of the only isolation."""
    found = list((fleet.folder / "controller" / "isolations").glob(f"*/{JOURNAL_NAME}"))
    lines = found[0].read_text().splitlines(keepends=True) if found else []
    entries = [json.loads(line) for line in lines if line.endswith("\n")]
    return [entry for entry in entries if entry["kind"] == kind]


def test_a_bad_node_is_found_by_an_isolation_that_was_killed_and_becomes_a_suspect(
    fleet: Fleet,
) -> None:
    """What it did is not done again; the job that ran on is waited for."""
    pause = fleet.folder / "pause"
    simulate(fleet, SimulatedCluster(bad=("n3",), pause=str(pause)))
    fleet("fleet", "collect")
    begun = fleet.begin("fabric", "bisect", "n[1-6]")
    fleet.cluster.until(lambda: len(read_journal(fleet, "judged")) >= 2)
    pause.touch()
    fleet.cluster.until(
        lambda: len(read_journal(fleet, "submitted")) > len(read_journal(fleet, "ended"))
    )
    begun.send_signal(signal.SIGKILL)
    begun.communicate()
    pause.unlink()

    done = fleet("fabric", "bisect", "--resume", "--json")

    assert done.returncode == 1, done.stderr
    answer = json.loads(done.stdout)
    assert ([one["node"] for one in answer["faulty"]], answer["passed"]) == (["n3"], 5)
    shown = fleet.cluster.run("squeue", "-h", "-t", "all", "-o", "%j").split()
    tests = [name.rsplit("a", 1)[0] for name in shown if name.startswith("hpcverify-isolate")]
    assert len(set(tests)) == len(tests) == len(read_journal(fleet, "ended")), "tested twice"
    assert fleet("fleet", "collect").stdout.startswith("runs taken in: 0; ")
    suspect = fleet.node("n3")
    assert (suspect.state, suspect.enforced, suspect.checks) == (
        State.SUSPECT,
        False,
        ("collectives",),
    )
    assert (fleet.drained(), fleet.states()) == (set(), {"n3": "suspect"})
    assert not (fleet.spool / ".isolate").exists()

    verified = fleet("fleet", "sweep", "n3", "--suite", "told")

    assert verified.returncode == 0, verified.stderr
    assert fleet.node("n3").state is State.SUSPECT, "by itself it clears nothing"
    assert fleet("fabric", "bisect", "--resume").returncode == 2


def list_states(fleet: Fleet, name: str = "hpcverify-isolate") -> list[str]:
    """List the states of the jobs whose name begins with *name*."""
    shown = fleet.cluster.run("squeue", "-h", "-t", "all", "-o", "%j %T")
    return [line.split()[1] for line in shown.splitlines() if line.startswith(name)]


def test_tests_give_way_to_a_users_job_and_what_is_lost_is_left_out(fleet: Fleet) -> None:
    """A user takes n2 and n5 goes down while tests hang; then it is ended, and resumed."""
    pause = fleet.folder / "pause"
    simulate(fleet, SimulatedCluster(pause=str(pause)))
    pause.touch()
    begun = fleet.begin("fabric", "bisect", "--wait", "3s")
    fleet.cluster.until(lambda: list_states(fleet).count("RUNNING") == 2)

    user = ("sbatch", "-p", "batch", "-w", "n2", "--exclusive", "-J", "user", "--wrap", "sleep 999")
    fleet.cluster.run(*user, "-o", "/dev/null")
    fleet.cluster.until(lambda: list_states(fleet, "user") == ["RUNNING"])
    fleet.cluster.run("scontrol", "update", "nodename=n5", "state=down", "reason=a test")
    fleet.cluster.until(lambda: fleet.host("n5").state == "DOWN")
    begun.terminate()
    said, _ = begun.communicate()

    assert begun.returncode == 3
    assert "resume with: hpcverify fabric bisect --resume" in said
    fleet.cluster.until(lambda: not {"RUNNING", "PENDING"}.intersection(list_states(fleet)))

    pause.unlink()
    done = fleet("fabric", "bisect", "--resume")

    assert done.returncode == 3
    assert "untested: n2: is busy" in done.stdout
    assert "untested: n5: is down" in done.stdout
    assert "4 passed" in done.stdout
    assert "failed" not in done.stdout
    assert not list(fleet.spool.glob("n*/*.json"))


def test_a_dry_run_shows_the_plan_and_what_is_wrong_is_one_line(fleet: Fleet) -> None:
    """Nothing is written, and no job is submitted."""
    fleet.cluster.run("scontrol", "update", "nodename=n6", "state=drain", "reason=fans")

    shown = fleet("fabric", "bisect", "--dry-run", "--budget", "20")
    plan = json.loads(fleet("fabric", "bisect", "--dry-run", "--json").stdout)

    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.startswith("5 nodes, n[1-5], in groups by lot")
    assert "left out: n6 is drained (fans)" in shown.stdout
    assert "stages: groups of nodes\n" in shown.stdout
    assert {node for test in plan["first"] for node in test["members"]} == {*plan["nodes"]}

    refused = {
        ("n9",): "no node is called 'n9'",
        ("n1",): "fewer than two nodes can be tested",
        ("n[1,6]",): "fewer than two nodes can be tested: n6 is drained (fans)",
        ("--reservation", "none"): "no reservation is called 'none'",
        ("--resume",): "no isolation to resume",
        ("--resume", "x"): "no isolation 'x'",
        ("--resume", "x", "--dry-run"): "--resume continues a search",
    }
    for arguments, why in refused.items():
        done = fleet("fabric", "bisect", *arguments)
        assert (done.returncode, done.stdout) == (2, ""), arguments
        assert why in done.stderr
        assert "Traceback" not in done.stderr
    assert not (fleet.folder / "controller" / "isolations").exists()
    assert list_states(fleet) == []


def test_nodes_are_grouped_by_the_switches_of_the_site_file(fleet: Fleet) -> None:
    with fleet.config.open("a") as site:
        site.write('[fabric.switches]\nleft = "n[1-3]"\nright = "n[4-6]"\n')

    plan = json.loads(fleet("fabric", "bisect", "--dry-run", "--json").stdout)

    groups = {frozenset(test["members"]) for test in plan["first"]}
    assert groups == {frozenset({"n1", "n2", "n3"}), frozenset({"n4", "n5", "n6"})}

    fleet.config.write_text(fleet.config.read_text().replace("n[4-6]", "n[4-"))
    refused = fleet("fabric", "bisect", "--dry-run")
    assert refused.returncode == 2
    assert "site.toml: fabric.switches.right: 'n[4-' is not a list of nodes" in refused.stderr


def test_a_sweep_tries_all_links_once_and_then_none(fleet: Fleet) -> None:
    simulate(fleet, SimulatedCluster())
    with fleet.config.open("a") as site:
        site.write('[fabric]\nperiod_days = 7\nswitches = { a = "n[1-3]", b = "n[4-6]" }\n')

    done = fleet("fleet", "sweep")
    again = fleet("fleet", "sweep", "--dry-run")

    assert done.returncode == 0, done.stderr
    assert "links: 3 pairs of nodes: 3 passed" in done.stderr
    assert "links tried: 6 of 6 nodes, 1 of 1 pairs of switches" in fleet("nodes").stdout
    assert "0 pairs of nodes to try links between" in again.stdout
    assert set(fleet.states().values()) == {"healthy"}


def test_a_sweep_isolates_what_spoils_a_pair_and_suspects_that_node_only(fleet: Fleet) -> None:
    simulate(fleet, SimulatedCluster(missing=("n3",)))
    with fleet.config.open("a") as site:
        site.write("[fabric]\nperiod_days = 7\n")

    done = fleet("fleet", "sweep")

    assert done.returncode == 1, done.stderr
    assert "links: 3 pairs of nodes: 2 passed, 1 failed" in done.stderr
    assert "n3 slows or fails collectives" in done.stdout
    assert {name for name, state in fleet.states().items() if state != "healthy"} == {"n3"}
    assert fleet.node("n3").state is State.SUSPECT
    assert fleet.drained() == set()


def admit_batch(fleet: Fleet) -> None:
    """Admit all six nodes, of which n5 fails its own suite; the others pass it."""
    with fleet.config.open("a") as site:
        site.write("[fabric]\nperiod_days = 7\n")
    fleet.tell("n5", "corrupt")
    assert fleet("nodes", "admit", "n[1-6]", "--suite", "told").returncode == 0
    fleet.collected()
    assert fleet.states() == {
        name: "quarantined" if name == "n5" else "verifying" for name in fleet.states()
    }


def reserved(fleet: Fleet) -> set[str]:
    """Name the reservations that there are."""
    return set(fleet.cluster.slurm.list_reservations())


def test_an_admission_of_a_batch_ends_with_tests_between_its_nodes(fleet: Fleet) -> None:
    """Five of them pass alone, each in its reservation; n3 spoils collectives."""
    simulate(fleet, SimulatedCluster(bad=("n3",)))
    admit_batch(fleet)
    assert reserved(fleet) == {f"hpcverify-n{number}" for number in (1, 2, 3, 4, 6)}

    done = fleet("fleet", "sweep")

    assert done.returncode == 1, done.stderr
    assert "n3 slows or fails collectives" in done.stdout
    assert fleet.states() == {
        **dict.fromkeys(("n1", "n2", "n4", "n6"), "healthy"),
        "n3": "suspect",
        "n5": "quarantined",
    }
    assert reserved(fleet) == {"hpcverify-n3"}
    fleet.cluster.until(lambda: fleet.cluster.idle("n1", "n2", "n4", "n6"))
    assert "fabric" in fleet("history", "n3").stdout

    again = fleet("nodes", "admit", "n3", "--suite", "told", "--reason", "cable replaced")
    assert again.returncode == 0, again.stderr
    fleet.collected()
    assert fleet.node("n3").state is State.HEALTHY
    assert reserved(fleet) == set()


def test_nodes_that_are_released_while_a_killed_sweep_tested_them_are_users_again(
    fleet: Fleet,
) -> None:
    pause = fleet.folder / "pause"
    simulate(fleet, SimulatedCluster(pause=str(pause)))
    admit_batch(fleet)
    pause.touch()
    begun = fleet.begin("fleet", "sweep")
    fleet.cluster.until(lambda: "RUNNING" in list_states(fleet))
    begun.send_signal(signal.SIGKILL)
    begun.communicate()
    assert fleet("nodes", "release", "n[1-4,6]", "--force", "--reason", "needed").returncode == 0

    fleet("fleet", "collect")

    assert reserved(fleet) == set()
    assert not {"RUNNING", "PENDING"}.intersection(list_states(fleet))
    fleet.cluster.run(
        "sbatch", "-p", "batch", "-w", "n2", "-J", "user", "-o", "/dev/null", "--wrap", "true"
    )
    fleet.cluster.until(lambda: list_states(fleet, "user") == ["COMPLETED"])
    pause.unlink()


def test_a_sweep_that_is_killed_while_it_tests_a_batch_leaves_it_to_the_next(fleet: Fleet) -> None:
    """Meanwhile no user's job gets in, and no job or reservation of ours is left behind."""
    pause = fleet.folder / "pause"
    simulate(fleet, SimulatedCluster(pause=str(pause)))
    admit_batch(fleet)
    pause.touch()
    begun = fleet.begin("fleet", "sweep")
    fleet.cluster.until(lambda: "RUNNING" in list_states(fleet))
    begun.send_signal(signal.SIGKILL)
    begun.communicate()
    user = ("sbatch", "-p", "batch", "-w", "n2", "-J", "user", "-o", "/dev/null")
    fleet.cluster.run(*user, "--wrap", "true")
    pause.unlink()

    done = fleet("fleet", "sweep")

    assert done.returncode == 0, done.stderr
    assert set(fleet.states().items()) == {
        ("n5", "quarantined"),
        *((name, "healthy") for name in ("n1", "n2", "n3", "n4", "n6")),
    }
    assert reserved(fleet) == set()
    fleet.cluster.until(lambda: list_states(fleet, "user") == ["COMPLETED"])
    assert not {"RUNNING", "PENDING"}.intersection(list_states(fleet))
