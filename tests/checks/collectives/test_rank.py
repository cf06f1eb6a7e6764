"""A rank computes on the CPU only where there is no GPU, and not where CUDA does not start."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from hpcverify.check import Unable
from hpcverify_checks.collectives.rank import RankOrder, find_device
from hpcverify_checks.ranks.collective import CollectiveJob

UNEXPECTED = "Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions? Error "


def find_with(error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Find the device of a rank whose CUDA build raises *error* at its start."""

    def refuse() -> None:
        raise RuntimeError(error)

    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    monkeypatch.setattr(torch.cuda, "init", refuse)
    job = CollectiveJob(
        folder=str(tmp_path), world=1, backend="gloo", timeout=1, operations=(), sizes=(), seconds=1
    )
    device, _ = find_device(RankOrder(job, 0, 0, "n1", 1, -1))
    return device.type


@pytest.mark.parametrize(
    "error",
    ["Found no NVIDIA driver on your system. Please check", "No CUDA GPUs are available"],
)
def test_a_rank_without_a_gpu_computes_on_the_cpu(
    error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert find_with(error, tmp_path, monkeypatch) == "cpu"


@pytest.mark.parametrize(
    ("error", "fix"),
    [
        (
            "The NVIDIA driver on your system is too old (found version 12040).",
            "--index-url https://download.pytorch.org/whl/cu126",
        ),
        (UNEXPECTED + "802: system not yet initialized", "systemctl start nvidia-fabricmanager"),
        (
            UNEXPECTED + "803: system has unsupported display driver / cuda driver combination",
            "reb",
        ),
        (
            "CUDA unknown error - this may be due to an incorrectly set up env",
            "modprobe nvidia_uvm",
        ),
    ],
)
def test_a_rank_whose_cuda_does_not_start_does_not_pass_on_the_cpu(
    error: str, fix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Unable, match=fix):
        find_with(error, tmp_path, monkeypatch)
