"""What the libraries beside CUDA lack or refuse is told, and accuses no GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcverify.model import Remedy, Result, Run, Verdict
from tests.rehearsal.node import Node, make_node
from tests.rehearsal.preload import TRITON

pytestmark = pytest.mark.system

REAL_TRITON = {TRITON: "real"}
OFFSETS = "operand offsets 16, 48, 80, 112 left out: the library refuses them"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, nvml_library: Path) -> Node:
    return make_node(tmp_path_factory.mktemp("node"), nvml_library, gpus=1)


def examined(run: Run) -> Result:
    (result,) = run.results
    return result


def covered(result: Result) -> list[str]:
    return [coverage.text for coverage in result.coverage]


def test_a_triton_that_is_not_installed_is_told(node: Node) -> None:
    result = examined(node.run("--check", "sdc"))
    assert result.verdict is Verdict.PASS
    reason = "Triton compiles no kernel here: ModuleNotFoundError: No module named 'triton'"
    assert any(text.endswith(reason) for text in covered(result))


def test_a_real_triton_that_finds_no_libcuda_leaves_the_work_to_torch(node: Node) -> None:
    result = examined(node.run("--check", "sdc", **REAL_TRITON))
    assert result.verdict is Verdict.PASS
    reason = "Triton compiles no kernel here: AssertionError: libcuda.so cannot found!"
    assert any(reason in text for text in covered(result))


def test_a_gpu_that_breaks_is_no_missing_triton(node: Node) -> None:
    result = examined(node.run("--check", "sdc", faults="ecc@0", **REAL_TRITON))
    assert (result.verdict, result.remedy) == (Verdict.FAIL, Remedy.RESET_GPU)
    assert "uncorrectable ECC error encountered" in (result.reason or "")


def test_the_comparison_of_triton_is_awake_in_the_whole_check(
    tmp_path: Path, nvml_library: Path
) -> None:
    brief = {"sdc": {"seconds": 1e-7}}  # of the model: the interpreter is slow
    node = make_node(tmp_path, nvml_library, gpus=1, params=brief)
    result = examined(node.run("--check", "sdc", TRITON_INTERPRET="1", **REAL_TRITON))
    assert result.verdict is Verdict.PASS
    assert not any("compared by torch" in text for text in covered(result))


def test_offsets_that_a_library_refuses_are_left_out(node: Node) -> None:
    result = examined(node.run("--check", "sdc", faults="picky@*"))
    assert result.verdict is Verdict.PASS
    assert {f"fp8: {OFFSETS}", f"int8: {OFFSETS}"} <= set(covered(result))


def test_offsets_at_which_a_kernel_breaks_its_process_are_left_out(node: Node) -> None:
    result = examined(node.run("--check", "sdc", faults="misaligned@*"))
    assert result.verdict is Verdict.PASS
    why = 'left out: there a kernel of the library ended in "misaligned address"'
    left_out = OFFSETS.partition(" left out")[0]
    assert {f"fp8: {left_out} {why}", f"int8: {left_out} {why}"} <= set(covered(result))


def test_types_that_a_library_refuses_warn_and_the_others_are_examined(node: Node) -> None:
    result = examined(node.run("--check", "sdc", faults="refused@*"))
    assert (result.verdict, result.remedy) == (Verdict.WARN, Remedy.FIX_CONFIGURATION)
    assert "fp8 is not verified: the library refuses its products" in (result.reason or "")
    assert {m.name for m in result.measurements} > {"products", "stress.products"}


def test_a_workspace_of_the_site_is_ignored_and_told(node: Node) -> None:
    given = {"CUBLAS_WORKSPACE_CONFIG": ":0:0"}
    result = examined(node.run("--check", "sdc", **given))
    assert result.verdict is Verdict.PASS
    told = "set in the environment and ignored: CUBLAS_WORKSPACE_CONFIG"
    assert told in covered(result)
