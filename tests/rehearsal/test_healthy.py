"""A healthy node of any part passes every check that loads its GPUs: nobody is accused."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from hpcverify.model import Run, Verdict
from tests.rehearsal.gpu import EXCLUSIVE
from tests.rehearsal.node import ACTIVE, Node, make_node
from tests.rehearsal.parts import INTEGRATED, PARTS

pytestmark = pytest.mark.system

Rehearse = Callable[..., Node]
NODES_AT_ONCE = 3
NVIDIA_PARTS = [name for name, part in PARTS.items() if not part.architecture]


def explain(run: Run) -> dict[str, str]:
    """Give the reason of each check that did not pass; this machine may have no BMC."""
    others = [r for r in run.results if r.verdict is not Verdict.PASS]
    return {r.check: r.reason for r in others if r.check != "chassis" or r.verdict > Verdict.SKIP}


def test_the_quick_suite_passes_on_four_gpus(rehearse: Rehearse) -> None:
    run = rehearse(gpus=4).run()

    assert explain(run) == {}
    assert len(run.results) >= len(ACTIVE)
    assert run.verdict is Verdict.PASS
    parts = {part.id for part in run.inventory.parts if part.kind == "gpu"}
    for name in ACTIVE:
        (result,) = (r for r in run.results if r.check == name)
        seen = {m.part_id for m in result.measurements} | {c.part_id for c in result.coverage}
        assert seen & parts == parts or "node" in seen


@pytest.fixture(scope="module")
def runs(
    tmp_path_factory: pytest.TempPathFactory, nvml_library: Path
) -> Iterator[Mapping[str, Future[Run]]]:
    """Begin a run for each part: most of its time, the telemetry watches its soak."""
    soak = {"thermal": {"seconds": 5}}
    nodes = {
        part: make_node(tmp_path_factory.mktemp(part), nvml_library, part=part, params=soak)
        for part in NVIDIA_PARTS
    }
    names = [word for name in ACTIVE for word in ("--check", name)]
    with ThreadPoolExecutor(NODES_AT_ONCE) as pool:
        yield {part: pool.submit(node.run, *names) for part, node in nodes.items()}


@pytest.mark.parametrize("part", NVIDIA_PARTS)
def test_each_check_passes_on_each_part(runs: Mapping[str, Future[Run]], part: str) -> None:
    run = runs[part].result()

    assert explain(run) == {}
    assert [r.check for r in run.results] == list(ACTIVE)


def test_eight_gpus_reach_each_other(rehearse: Rehearse) -> None:
    run = rehearse(gpus=8).run("--check", "p2p")
    (p2p,) = run.results

    assert explain(run) == {}
    assert len([m for m in p2p.measurements if m.name == "p2p.write"]) == 8
    assert "56 pairs" in " ".join(c.text for c in p2p.coverage)


def test_gpus_are_found_whatever_order_cuda_counts_them_in(rehearse: Rehearse) -> None:
    run = rehearse(gpus=3, is_reversed=True).run(
        "--check", "gemm", "--check", "pcie_bandwidth", faults="slow@0:share=0.5"
    )
    gemm = next(r for r in run.results if r.check == "gemm")

    assert gemm.verdict is Verdict.FAIL
    assert "GPU 2" in gemm.reason
    assert "GPU 0" not in gemm.reason


def test_gpus_that_take_one_process_each_are_given_to_the_check_of_all_and_back(
    rehearse: Rehearse, tmp_path: Path
) -> None:
    node = rehearse(gpus=2)
    with (tmp_path / "scenario.txt").open("a") as scenario:
        scenario.write("gpu.*.compute_mode = 3\n")  # NVML_COMPUTEMODE_EXCLUSIVE_PROCESS
    (tmp_path / "locks").mkdir()
    checks = ("gemm", "p2p", "pcie_bandwidth")
    run = node.run(*(f"--check={name}" for name in checks), **{EXCLUSIVE: str(tmp_path / "locks")})

    assert explain(run) == {}
    assert {r.check for r in run.results if r.verdict is Verdict.PASS} >= {*checks}


def test_memory_that_is_the_hosts_is_left_to_the_host(rehearse: Rehearse) -> None:
    run = rehearse(gpus=1).run("--check", "gpu_memory", **{INTEGRATED: "1"})
    (memory,) = run.results

    assert memory.verdict is Verdict.SKIP
    assert "it shares the host's" in memory.reason
    assert not memory.measurements
