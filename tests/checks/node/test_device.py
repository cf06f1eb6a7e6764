"""A worker computes on its own part, whatever the order of the GPUs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
import torch

from hpcverify.check import Unable
from hpcverify.model import Cause, Device, Inventory, Part
from hpcverify.telemetry.vendors import AMD, write_torch_ids
from hpcverify.testing import make_context
from hpcverify_checks.node.device import (
    choose_amd_dtypes,
    find_gpu_index,
    find_torch_device,
    list_native_dtypes,
    list_slow_dtypes,
    remove_overrides,
    reserve_gpu_cores,
    use_float32_precision,
)
from hpcverify_checks.ranks.board import FolderBoard
from hpcverify_checks.ranks.peers import RESULT
from hpcverify_checks.ranks.rendezvous import RankGroup
from tests.waiting import PATIENCE_S

WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
UUIDS = ("0a1b2c3d-0000-0000-0000-000000000001", "0A1B2C3D-0000-0000-0000-000000000002")
GPU = Device(kind="cuda", part=f"GPU-{UUIDS[1].lower()}", label="GPU 1")


def test_a_gpu_is_found_by_its_uuid_however_torch_prints_it() -> None:
    assert find_gpu_index(GPU.part, UUIDS) == 1
    assert find_gpu_index(GPU.part, UUIDS[::-1]) == 0
    assert find_gpu_index(GPU.part, [f"GPU-{uuid}" for uuid in UUIDS]) == 1


@pytest.mark.parametrize("uuids", [(), UUIDS[:1]])
def test_a_gpu_that_torch_does_not_see_is_a_partial_view(uuids: tuple[str, ...]) -> None:
    with pytest.raises(Unable, match="CUDA_VISIBLE_DEVICES") as caught:
        find_gpu_index(GPU.part, uuids)
    assert caught.value.cause is Cause.PARTIAL_VIEW


def test_a_gpu_and_a_torch_without_cuda_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(Unable, match="pip install") as caught:
        find_torch_device(make_context(tmp_path, device=GPU, peers=(GPU,)))
    assert caught.value.cause is Cause.MISSING


AMD_INVENTORY = Inventory(parts=(Part("gpu", "GPU-f887f319cf12ccc9", "GPU 0", {"vendor": "AMD"}),))
AMD_GPU = Device(kind="cuda", part="GPU-f887f319cf12ccc9", label="GPU 0")
MI300X = SimpleNamespace(
    uuid="66383837-6633-3139-6366-313263636339", pci_domain_id=0, pci_bus_id=14, pci_device_id=0
)
"""As torch 2.11+rocm7.2 shows one (AMDResearch/hpcfund issue 86)."""


def test_a_gpu_of_amd_is_found_by_its_unique_id_or_its_place() -> None:
    other = SimpleNamespace(**vars(MI300X) | {"uuid": MI300X.uuid[:-1] + "8", "pci_bus_id": 15})
    ids = [write_torch_ids(properties, AMD) for properties in (other, MI300X)]
    assert find_gpu_index(AMD_GPU.part, ids, AMD) == 1
    assert find_gpu_index("gpu-0000:0e:00.0", ids, AMD) == 1
    with pytest.raises(Unable, match="HIP_VISIBLE_DEVICES") as caught:
        find_gpu_index("GPU-0000000000000000", ids, AMD)
    assert "/dev/kfd" in str(caught.value)


def test_a_gpu_of_amd_and_a_torch_without_rocm_is_missing(tmp_path: Path) -> None:
    ctx = make_context(tmp_path, device=AMD_GPU, peers=(AMD_GPU,), inventory=AMD_INVENTORY)
    with pytest.raises(Unable, match="an index with ROCm builds") as caught:
        find_torch_device(ctx)
    assert caught.value.cause is Cause.MISSING


@pytest.mark.parametrize("architecture", ["gfx90a", "gfx942", "gfx950", "gfx1100"])
def test_types_that_are_not_known_to_be_exact_on_a_gpu_of_amd_are_left_out(
    architecture: str,
) -> None:
    native = choose_amd_dtypes(architecture)
    assert {"fp32", "fp64"} <= native
    assert native.isdisjoint({"fp8", "tf32"})
    assert ("bf16" in native) == (architecture in ("gfx90a", "gfx942"))


def test_no_torch_is_missing_with_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(Unable, match=r"^torch is not installed: ") as caught:
        find_torch_device(make_context(tmp_path))
    assert caught.value.cause is Cause.MISSING
    assert re.search(r"pip install 'torch>=[\d.]+'$", caught.value.fix)
    assert str(caught.value).endswith(caught.value.fix)


def test_the_cpu_is_a_device_and_computes_fp32_and_fp64(tmp_path: Path) -> None:
    device = find_torch_device(make_context(tmp_path))
    assert device == torch.device("cpu")
    assert {"fp32", "fp64"} <= list_native_dtypes(device)


def test_what_changes_how_products_are_computed_is_taken_out_of_the_environment() -> None:
    overrides = {
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
        "PYTORCH_ALLOC_CONF": "expandable_segments:True",
        "PYTORCH_HIP_ALLOC_CONF": "expandable_segments:True",
        "PYTORCH_NO_CUDA_MEMORY_CACHING": "1",
        "CUDA_LAUNCH_BLOCKING": "1",
        "CUDA_DEVICE_MAX_CONNECTIONS": "1",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "50",
        "NVIDIA_TF32_OVERRIDE": "1",
        "CUBLAS_EMULATE_SINGLE_PRECISION": "1",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "DNNL_DEFAULT_FPMATH_MODE": "BF16",
        "MKL_CBWR": "COMPATIBLE",
        "ATEN_CPU_CAPABILITY": "default",
        "OMP_PROC_BIND": "close",
        "OMP_PLACES": "cores",
        "GOMP_CPU_AFFINITY": "0",
        "KMP_AFFINITY": "compact",
        "KMP_HW_SUBSET": "1c",
        "OMP_THREAD_LIMIT": "1",
        "OMP_DYNAMIC": "true",
        "OMP_MAX_ACTIVE_LEVELS": "0",
    }
    kept = {"PATH": "/bin", "MKL_NUM_THREADS": "2", WORKSPACE: ":16:8"}
    environ = kept | overrides
    assert remove_overrides(environ) == list(overrides)
    assert environ == kept
    assert remove_overrides(environ) == []


@pytest.mark.parametrize("given", [":0:0", ":16:4096", ":4096:2:16:8", ""])
def test_a_workspace_with_which_cublas_is_not_reproducible_is_ignored_and_told(given: str) -> None:
    environ = {WORKSPACE: given}
    assert remove_overrides(environ) == [WORKSPACE]
    assert environ == {WORKSPACE: ":4096:8"}
    assert remove_overrides(environ) == []


@pytest.mark.parametrize("given", [":4096:8", ":16:8"])
def test_a_workspace_with_which_cublas_is_reproducible_stays(given: str) -> None:
    environ = {WORKSPACE: given}
    assert remove_overrides(environ) == []
    assert environ == {WORKSPACE: given}


def test_cublas_gets_a_reproducible_workspace_without_a_word_where_none_is_given() -> None:
    environ = dict[str, str]()
    assert remove_overrides(environ) == []
    assert environ == {WORKSPACE: ":4096:8"}


EXAMINED = """
import os, sys
from pathlib import Path
from hpcverify.model import Coverage, Finding
from hpcverify_checks import sdc
from hpcverify.testing import make_context

params = sdc.SdcParams(seconds=0.2, size=128, depth=128)
for found in sdc.measure(make_context(Path(sys.argv[1])), params):
    if isinstance(found, Finding) or (
        isinstance(found, Coverage) and "environment" in found.text
    ):
        print(found.text)
print(*(name for name in os.environ if name.startswith("ONEDNN")))
"""


@pytest.mark.system
def test_an_override_is_told_and_has_no_effect(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", EXAMINED, str(tmp_path)],
        env={**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": ""},
        capture_output=True,
        timeout=300,
        check=False,
    )
    names = "ATEN_CPU_CAPABILITY, ONEDNN_MAX_CPU_ISA"
    expected = f"set in the environment and ignored: {names}"
    assert done.stdout.decode().splitlines() == [expected, ""], done.stderr


RANK = """
import sys, torch
torch.set_flush_denormal(True)
sys.modules["a_rank"] = sys  # any module with run_rank
sys.run_rank = lambda rank, order: [str(torch.tensor(1e-310, dtype=torch.float64) * 1.0).encode()]
from hpcverify_checks.ranks import rank_main
rank_main.main()
"""


@pytest.mark.system
def test_a_rank_does_not_flush_subnormals_whatever_a_library_has_told_it(tmp_path: Path) -> None:
    group = RankGroup(folder=str(tmp_path), world=2, backend="gloo", timeout=PATIENCE_S)
    order = msgspec.json.encode(group).decode()
    subprocess.run(
        [sys.executable, "-c", RANK, "a_rank", "1", str(os.getpid()), order],
        check=True,
        timeout=300,
    )
    assert b"e-310" in FolderBoard(tmp_path).read(RESULT)[1]


BOUND = """
import os, sys
from pathlib import Path
from hpcverify.check import Unable
from hpcverify.model import Device
from hpcverify.testing import make_context
from hpcverify_checks.node.device import find_torch_device

before = os.sched_getaffinity(0)
gpu = Device("cuda", "GPU-0", "GPU 0")
try:  # there is no such GPU, but torch has been loaded by then
    find_torch_device(make_context(Path(sys.argv[1]), device=gpu, peers=(gpu,)))
except Unable:
    import torch
    print(os.sched_getaffinity(0) == before, torch.get_num_threads())
"""


@pytest.mark.system
def test_a_gpus_worker_keeps_the_cores_near_its_gpu_whatever_openmp_was_told(
    tmp_path: Path,
) -> None:
    free, bound = (
        subprocess.run(
            [sys.executable, "-c", BOUND, str(tmp_path)],
            env={**os.environ, **told},
            capture_output=True,
            text=True,
            check=True,
            timeout=300,
        ).stdout
        for told in ({}, {"OMP_PROC_BIND": "close", "OMP_PLACES": "cores"})
    )
    assert bound == free
    assert bound.startswith("True")


def test_the_precision_of_float32_is_restored() -> None:
    before = torch.get_float32_matmul_precision()
    with use_float32_precision("high"):
        assert torch.get_float32_matmul_precision() == "high"
    assert torch.get_float32_matmul_precision() == before


@pytest.mark.parametrize("gpus", [0, 1, 99])
def test_the_host_leaves_a_core_to_each_gpu_and_keeps_one(tmp_path: Path, gpus: int) -> None:
    threads = torch.get_num_threads()
    ctx = make_context(tmp_path, inventory=Inventory(devices=(GPU,) * gpus))
    with reserve_gpu_cores(ctx):
        assert torch.get_num_threads() == max(1, threads - gpus)
    assert torch.get_num_threads() == threads


def test_a_type_that_takes_far_longer_than_fp32_is_left_out() -> None:
    seconds = {"fp32": 5e-5, "bf16": 150e-5, "int8": 3e-5, "fp16": 10e-5}
    slow = list_slow_dtypes(seconds.keys() - {"fp32"}, seconds.__getitem__)
    assert slow == {"bf16": pytest.approx(30)}


@pytest.mark.system
def test_a_library_that_passes_over_the_units_of_a_cpu_is_not_mistaken_for_them() -> None:
    native = subprocess.run(
        [sys.executable, "-W", "error", "-c", ASKED],
        env={**os.environ, "ONEDNN_MAX_CPU_ISA": "SSE41"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()

    assert {"fp32", "fp64"} <= set(native)
    assert "bf16" not in native


ASKED = """
import torch
from hpcverify_checks.node.device import list_native_dtypes
print(*list_native_dtypes(torch.device("cpu")))
"""
