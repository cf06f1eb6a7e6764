"""The hooks with the real command, on a node with GPUs that only NVML shows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hpcverify.gate import FREE_PREFIX, GATE_NAME, PLACES_NAME, JobGate, read, write
from tests.cli import COMMAND
from tests.nvml_lab.nvmllab import Lab
from tests.slurm.hooks import LATER, Hooks
from tests.waiting import wait_until

pytestmark = pytest.mark.needs("root")  # as slurmd starts hooks

WORN = ("gpu.3.ecc.volatile.dram_uncorrectable = 1", "gpu.3.ecc.aggregate.dram_uncorrectable = 1")
HUNG = ("fault = nvmlDeviceGetCount_v2 hang=forever lock=1",)


@pytest.fixture
def node(tmp_path: Path, lab: Lab) -> Hooks:
    """Make a node whose hooks verify it in earnest."""
    hooks = Hooks(tmp_path / "node")
    hooks.folder.mkdir()
    (hooks.folder / "spool").mkdir()
    hooks.prepare(HPCVERIFY_DEADLINE=20)
    # A network of its own: the lock that runs on one node share belongs to it.
    hooks.command(
        f"export LD_LIBRARY_PATH={lab.library.parent}",
        f"export NVML_LAB_SCENARIO={lab.scenario}",
        f"export HPCVERIFY_CONFIG={tmp_path}/site.toml",
        f'exec unshare -n {" ".join(COMMAND)} "$@"',
    )
    (tmp_path / "site.toml").write_text("")
    return hooks


def closed(node: Hooks, *checks: str) -> None:
    """Have evidence of *checks* refuse jobs, on one node at most."""
    write(node.state / "gate", JobGate("ok", LATER, "", checks))
    places = node.folder / "spool" / GATE_NAME / PLACES_NAME
    places.mkdir(parents=True, exist_ok=True)
    (places / f"{FREE_PREFIX}1").touch()


def runs(node: Hooks) -> list[dict[str, Any]]:
    """Read what the node left in the spool."""
    found = (node.folder / "spool/n1").glob("[0-9]*.json")
    documents = [json.loads(path.read_text()) for path in found]
    return sorted(documents, key=lambda run: run["started"])


def test_hard_evidence_refuses_the_job_where_the_site_wants_it(node: Hooks, lab: Lab) -> None:
    closed(node, "xid", "ecc")
    healthy = [node("prolog").returncode for _ in range(3)]
    lab.write(*WORN)
    done = node("prolog")

    assert healthy == [0, 0, 0]
    assert done.returncode == 1, runs(node)[-1]["verdict"]
    assert "print hpcverify: no job starts on n1: ecc: " in done.stdout
    assert len(runs(node)) == 4


def test_hard_evidence_is_only_told_of_while_the_site_observes(node: Hooks, lab: Lab) -> None:
    closed(node, "ecc")
    node("prolog")
    closed(node)
    lab.write(*WORN)

    assert node("prolog").returncode == 0
    wait_until(lambda: len(runs(node)) == 2)
    assert runs(node)[-1]["verdict"] == "fail"


def test_a_gpu_that_is_gone_refuses_the_job(node: Hooks, lab: Lab) -> None:
    closed(node, "inventory")
    node("prolog")
    lab.write("gpu.3.absent = 1")
    assert node("prolog").returncode == 1


def test_the_evidence_of_another_check_lets_the_job_run(node: Hooks, lab: Lab) -> None:
    closed(node, "pcie")
    node("prolog")
    lab.write(*WORN)
    assert node("prolog").returncode == 0
    assert runs(node)[-1]["verdict"] == "fail"


def test_a_driver_that_hangs_costs_the_deadline_at_most(node: Hooks, lab: Lab) -> None:
    node.prepare(HPCVERIFY_DEADLINE=3)
    closed(node, "inventory")
    lab.write(*HUNG)  # without the deadline the prolog would never end
    assert node("prolog").returncode == 0


def test_a_health_check_leaves_a_run_and_takes_the_word(node: Hooks) -> None:
    word = JobGate("quarantined", LATER, "xid: GPU 3: Xid 79")
    write(node.folder / "spool/gate/n1", word)
    assert (node("prolog", user="0").returncode, node("healthcheck").returncode) == (0, 0)
    assert ([run["suite"] for run in runs(node)], read(node.state / "gate")) == (["prolog"], word)
    assert "Xid 79" in node("prolog").stdout
