"""What to do about a GPU, in the commands of its vendor: the one table of them."""

from __future__ import annotations

from collections.abc import Mapping

from hpcverify.telemetry.vendors import AMD, NVIDIA

UNKNOWN_VENDOR = ""
ACCEPT = "if that is meant, run once with --accept-parts"
"""Ends the text of what a part lost since an earlier run."""
FIXES: Mapping[str, Mapping[str, str]] = {
    "free_memory": {
        NVIDIA: "end the processes that nvidia-smi lists",
        AMD: "end the processes that amd-smi process lists",
        UNKNOWN_VENDOR: "end the other processes that use it",
    },
    "show_all": {
        NVIDIA: "unset CUDA_VISIBLE_DEVICES, or ask the scheduler for all GPUs of the node",
        AMD: "unset HIP_VISIBLE_DEVICES, ROCR_VISIBLE_DEVICES and CUDA_VISIBLE_DEVICES, let "
        "this user open /dev/kfd and /dev/dri (groups video and render), or ask the scheduler "
        "for all GPUs of the node",
        UNKNOWN_VENDOR: "ask the scheduler for all GPUs of the node",
    },
    "reset": {NVIDIA: "reset it (nvidia-smi -r -i {gpu})", UNKNOWN_VENDOR: "reset it"},
    "ecc": {NVIDIA: "nvidia-smi{only} -e 1", UNKNOWN_VENDOR: "turn it on"},
    "persistence": {
        NVIDIA: "run nvidia-persistenced, or nvidia-smi{only} -pm 1",
        UNKNOWN_VENDOR: "turn it on",
    },
    "compute_mode": {NVIDIA: "nvidia-smi{only} -c 0", UNKNOWN_VENDOR: "set it to default"},
    "power": {NVIDIA: "nvidia-smi{only} -pl", UNKNOWN_VENDOR: "set the limit to"},
    "heir": {
        NVIDIA: "end the process that inherited it (fuser -v /dev/nvidia*)",
        UNKNOWN_VENDOR: "end the process that inherited it",
    },
}
"""Commands by task and vendor; {gpu} stands for the id of the GPU, and {only} for the option that
names it."""


def write_fix(what: str, vendor: str, gpu: str = "") -> str:
    """Write how to do *what* with a GPU of *vendor*: with the id *gpu*, or any."""
    fix = FIXES[what].get(vendor, FIXES[what][UNKNOWN_VENDOR])
    return fix.format(gpu=gpu, only=f" -i {gpu}" if gpu else "")


def write_command(what: str, vendor: str, gpu: str) -> str:
    """Write the exact step of that; empty if it is not known for *vendor*."""
    return write_fix(what, vendor, gpu) if vendor in FIXES[what] else ""
