"""A torch that cannot compute on this node is named with the build or the driver that can."""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hpcverify.check import Unable
from hpcverify.model import Cause, Device, Inventory, Part
from hpcverify.testing import make_context
from hpcverify_checks.node.device import find_torch_device
from hpcverify_checks.node.torch_build import (
    LOADER_VARIABLES,
    has_kernels,
    require_kernels,
    write_reinstall_command,
    write_torch_fix,
)

WHEEL = ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120", "compute_120")
"""What torch 2.13's wheels for CUDA 13 are built for."""
RELEASES_2_13 = torch.cuda.PYTORCH_RELEASES_CODE_CC
RELEASES_2_14 = {"12.6": RELEASES_2_13["12.6"], "13.0": RELEASES_2_13["13.0"]}
"""Torch 2.14.1 has kernels for compute capability 10.0 only in builds for CUDA 13."""
INDEX = "https://download.pytorch.org/whl"


def torch_for(
    cuda: str | None,
    releases: Mapping[str, Any] = RELEASES_2_13,
    built: tuple[str, ...] = WHEEL,
) -> Any:
    version = SimpleNamespace(cuda=cuda, hip=None)
    there = SimpleNamespace(PYTORCH_RELEASES_CODE_CC=releases, get_arch_list=lambda: built)
    return SimpleNamespace(__version__="2.13.0+cu130", version=version, cuda=there)


@pytest.fixture(autouse=True)
def _on_x86(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")


@pytest.mark.parametrize("capability", [(7, 5), (8, 0), (8, 9), (9, 0), (10, 3), (12, 0), (12, 1)])
def test_a_gpu_that_the_wheel_has_kernels_for_is_used(capability: tuple[int, int]) -> None:
    require_kernels(torch_for("13.0"), capability, "580.65.06")


@pytest.mark.parametrize(
    ("capability", "built", "runs"),
    [
        ((8, 9), ("sm_80",), True),  # of the same major version
        ((8, 0), ("sm_86",), False),  # but not of a later minor one
        ((9, 0), ("sm_86",), False),
        ((9, 0), ("compute_86",), True),  # PTX, for any later GPU
        ((7, 0), ("compute_86",), False),
        ((9, 0), ("sm_90a",), True),
        ((10, 0), ("compute_90a",), False),  # of one architecture only
        ((10, 3), ("sm_100a",), False),
        ((10, 3), ("sm_100f",), True),  # of a family
        ((12, 0), ("sm_100f", "compute_100f"), False),
    ],
)
def test_code_runs_where_cuda_says_that_it_does(
    capability: tuple[int, int], built: tuple[str, ...], *, runs: bool
) -> None:
    assert has_kernels(capability, built) is runs


def test_a_wheel_without_kernels_for_the_gpu_is_named_with_the_one_that_has_them() -> None:
    with pytest.raises(Unable, match=r"compute capability 7\.0") as caught:
        require_kernels(torch_for("13.0"), (7, 0), "580.65.06")
    assert caught.value.cause is Cause.MISCONFIGURED
    assert str(caught.value).endswith(
        f"-m pip install --force-reinstall torch==2.13.0 --index-url {INDEX}/cu126"
    )


def test_a_gpu_that_no_wheel_is_for_is_sent_to_the_list_of_builds() -> None:
    with pytest.raises(Unable, match=r"pytorch\.org/get-started"):
        require_kernels(torch_for("13.0"), (3, 5), "580.65.06")


@pytest.mark.parametrize("built", [(), ("gfx942", "gfx90a")])
def test_a_build_that_does_not_say_is_tried(built: tuple[str, ...]) -> None:
    require_kernels(torch_for("13.0", {}, built), (7, 0), "")


@pytest.mark.parametrize(
    ("capability", "driver", "installed", "releases", "fix"),
    [
        # Which driver runs which CUDA: CUDA Compatibility, "Minor Version Compatibility", table 1.
        ("9.0", "535.129.03", "13.0", RELEASES_2_13, "cu126"),
        ("8.0", "550.54.15", "13.0", RELEASES_2_13, "cu126"),
        ("9.0", "560.35.03", "13.0", RELEASES_2_14, "cu126"),
        ("7.0", "570.148.08", "13.0", RELEASES_2_14, "cu126"),
        ("10.0", "570.148.08", "13.0", RELEASES_2_13, "cu129"),
        ("10.0", "570.148.08", "13.0", RELEASES_2_14, "driver R580 or later"),
        ("12.0", "575.57.08", "13.0", RELEASES_2_14, "driver R580 or later"),
        ("10.0", "570.148.08", "12.6", RELEASES_2_14, "R580 or later, then * cu130"),
        ("10.0", "580.65.06", "12.6", RELEASES_2_14, "cu130"),
        ("8.0", "470.256.02", "13.0", RELEASES_2_13, "driver R580 or later"),
        ("8.0", "470.256.02", "12.6", RELEASES_2_13, "driver R525 or later"),
        ("9.0", "550.54.15", None, RELEASES_2_14, "cu126"),  # a build without CUDA
        ("", "550.54.15", "13.0", RELEASES_2_14, "cu126"),  # NVML did not report the capability
        ("10.0", "", "12.6", RELEASES_2_14, "cu130"),
    ],
)
def test_the_build_that_the_driver_runs_is_named_or_else_the_driver(
    capability: str, driver: str, installed: str | None, releases: Mapping[str, Any], fix: str
) -> None:
    written = write_torch_fix(torch_for(installed, releases), capability, driver)
    *steps, last = fix.split(" * ")
    assert all(step in written for step in steps)
    assert written.endswith(f"--index-url {INDEX}/{last}" if last.startswith("cu") else last)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ("2.13.0", "torch==2.13.0"),
        ("2.13.0+cu126", f"torch==2.13.0 --index-url {INDEX}/cu126"),
        ("2.9.0a0+50eac811a6.nv25.09", "torch"),  # of NVIDIA's containers
        ("2.13.0+gitd38164a", "torch==2.13.0"),
    ],
)
def test_the_command_names_only_a_version_and_an_index_that_exist(found: str, words: str) -> None:
    assert write_reinstall_command(found).endswith(f" --force-reinstall {words}")


UUID = "0a1b2c3d-0000-0000-0000-000000000001"
GPU = Device(kind="cuda", part=f"GPU-{UUID}", label="GPU 0")


def start_on(tmp_path: Path, driver: str, capability: str) -> None:
    part = Part("gpu", GPU.part, GPU.label, {"driver": driver, "compute_capability": capability})
    node = Inventory(parts=(part,), devices=(GPU,))
    find_torch_device(make_context(tmp_path, device=GPU, peers=(GPU,), inventory=node))


@pytest.mark.parametrize(
    ("capability", "driver", "fix"),
    [("9.0", "550.54.15", f"{INDEX}/cu126"), ("10.0", "560.35.03", f"{INDEX}/cu129")],
)
def test_a_driver_that_is_too_old_for_torch_is_named_with_the_build_that_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capability: str, driver: str, fix: str
) -> None:
    def refuse() -> None:  # c10/cuda/CUDAFunctions.cpp
        raise RuntimeError("The NVIDIA driver on your system is too old (found version 12040).")

    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "init", refuse)
    with pytest.raises(Unable) as caught:
        start_on(tmp_path, driver, capability)
    assert (caught.value.cause, caught.value.code) == (Cause.MISCONFIGURED, "cuda_driver_too_old")
    assert f"the NVIDIA driver {driver} is too old for torch" in str(caught.value)
    assert str(caught.value).endswith(fix)


def test_a_build_without_cuda_is_named_with_the_one_that_the_driver_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(Unable, match="a build without CUDA") as caught:
        start_on(tmp_path, "550.54.15", "9.0")
    assert caught.value.fix.endswith(f"{INDEX}/cu126")


@pytest.mark.parametrize(
    "line",
    [
        # What ld.so, torch's preloading of its libraries and its C extension raise.
        'raise OSError("libcudnn.so.9: cannot open shared object file: No such file")',
        'raise ImportError("undefined symbol: ncclCommWindowRegister")',
        'raise ValueError("libcublas.so.*[0-9] not found in the system path")',
        "import typing_extensions_that_is_missing",
        "",  # a folder that an uninstall left: nothing is in it
    ],
)
def test_a_torch_that_does_not_import_is_misconfigured_with_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text(line)
    for name in [name for name in sys.modules if name.partition(".")[0] == "torch"]:
        monkeypatch.delitem(sys.modules, name)
    for name in LOADER_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(Unable, match=r"^torch 2\S* does not import \(\w+: ") as caught:
        find_torch_device(make_context(tmp_path))
    assert (caught.value.cause, caught.value.code) == (Cause.MISCONFIGURED, "torch_broken")
    assert f"{sys.executable} -m pip install --force-reinstall torch==2" in caught.value.fix
    assert caught.value.fix.startswith(sys.executable)

    monkeypatch.setenv("LD_LIBRARY_PATH", "/opt/cuda-11/lib64")
    with pytest.raises(Unable, match="unset LD_LIBRARY_PATH, or "):
        find_torch_device(make_context(tmp_path))


def test_a_node_without_memory_does_not_blame_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def shortage(_flush: object) -> None:
        raise MemoryError

    monkeypatch.setattr(torch, "set_flush_denormal", shortage)
    with pytest.raises(MemoryError):
        find_torch_device(make_context(tmp_path))
