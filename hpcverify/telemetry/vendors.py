"""
Whose GPUs a node has, and what answers for them: the one place that decides it.

A node has GPUs of one vendor: those of NVIDIA if it has any, else those of AMD. So the
small AMD GPU inside of a CPU is nobody's concern on a node with others. There is a
`GpuSource` for NVIDIA's; the others can be computed on, and their telemetry is not
observable.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from hpcverify.model import VENDOR_FACT, Inventory
from hpcverify.telemetry import pci
from hpcverify.telemetry.gpus import GpuSource, GpuSurvey

NVIDIA, AMD = "NVIDIA", "AMD"

SourceFinder = Callable[[str], GpuSource | None]
"""Finds the source that answers for the GPUs of a vendor; None if there is none."""


def survey_gpus(root: Path = Path("/")) -> GpuSurvey:
    """List the GPUs of the node with file system *root*, and what is amiss with them."""
    addresses = pci.list_nvidia_gpus(root)
    if not addresses and (folders := pci.list_amd_gpus(root)):
        from hpcverify.telemetry import amd  # noqa: PLC0415 - few nodes have one

        return amd.survey_gpus(folders, root)
    from hpcverify.telemetry.nvml import survey  # noqa: PLC0415 - 30 ms that only a probe needs

    return survey.survey_gpus(addresses, root)


def name_vendor(*inventories: Inventory | None) -> str:
    """Name the vendor of the GPUs in the first of *inventories* that has any."""
    for inventory in filter(None, inventories):
        for gpu in inventory.of_kind("gpu"):
            # Not written for NVIDIA's.
            return gpu.facts.get(VENDOR_FACT, NVIDIA)
    return NVIDIA


def find_source(vendor: str) -> GpuSource | None:
    """Find what answers for the GPUs of *vendor* in this process: a `SourceFinder`."""
    if vendor != NVIDIA:
        return None
    from hpcverify.telemetry import nvml  # noqa: PLC0415 - for nothing without such a GPU

    return nvml.get_source()


def write_torch_ids(properties: Any, vendor: str) -> str:
    """Write the ids of the part that torch describes; for AMD the unique id and PCI address."""
    if vendor != AMD:
        return str(properties.uuid)
    text = bytes.fromhex(str(properties.uuid).replace("-", "")).decode(errors="replace")
    place = (properties.pci_domain_id, properties.pci_bus_id, properties.pci_device_id)
    return "{} gpu-{:04x}:{:02x}:{:02x}.0".format(text, *place)


def matches_torch_ids(part: str, ids: str) -> bool:
    """Whether *part* is what *ids* are of; torch prints a UUID without NVML's prefix."""
    wanted = part.removeprefix("GPU-").lower()
    return wanted in ids.removeprefix("GPU-").lower().split()
