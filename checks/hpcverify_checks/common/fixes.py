"""What to do about a GPU, in the commands of its vendor: the one table of them."""

from __future__ import annotations

from collections.abc import Mapping

from hpcverify.telemetry.vendors import AMD, NVIDIA

UNKNOWN_VENDOR = ""
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
    "ecc": {NVIDIA: "nvidia-smi -e 1", UNKNOWN_VENDOR: "turn it on"},
    "persistence": {
        NVIDIA: "run nvidia-persistenced, or nvidia-smi -pm 1",
        UNKNOWN_VENDOR: "turn it on",
    },
    "compute_mode": {NVIDIA: "nvidia-smi -c 0", UNKNOWN_VENDOR: "set it to default"},
    "power": {NVIDIA: "nvidia-smi -pl", UNKNOWN_VENDOR: "set the limit to"},
    "heir": {
        NVIDIA: "end the process that inherited it (fuser -v /dev/nvidia*)",
        UNKNOWN_VENDOR: "end the process that inherited it",
    },
}
"""Commands by task and vendor; {gpu} stands for the id of the GPU, where only that one is
meant."""


def write_fix(what: str, vendor: str) -> str:
    """Write how to do *what* with a GPU of *vendor*."""
    return FIXES[what].get(vendor, FIXES[what][UNKNOWN_VENDOR])
