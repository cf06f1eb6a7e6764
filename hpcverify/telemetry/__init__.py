"""
Readers of the hardware: what the machine says of itself.

Series are named alike for all parts, so that one check judges CPUs and GPUs:
``temperature``, ``temperature.headroom``, ``clock``, ``power``, ``utilization``,
``throttled.CAUSE`` (seconds, counted up), ``event.CAUSE`` (1 while it lasts),
``ecc.corrected``, ``ecc.uncorrected``, ``remap.*``, ``retired.*``.
"""

from __future__ import annotations

from pathlib import Path

from hpcverify.model import Inventory
from hpcverify.telemetry.cpu import CpuReader
from hpcverify.telemetry.edac import EdacReader
from hpcverify.telemetry.hwmon import HwmonReader
from hpcverify.telemetry.reading import Reader, Reading

__all__ = ["Reader", "Reading", "readers", "sensor"]


def readers(inventory: Inventory, root: Path = Path("/")) -> tuple[Reader, ...]:
    """Make the readers for what *inventory* lists; the caller closes them."""
    host: tuple[Reader, ...] = (
        CpuReader(root),
        HwmonReader(root, inventory.of_kind("disk")),
        EdacReader(root),
    )
    has_driver = any("driver" in gpu.facts for gpu in inventory.of_kind("gpu"))
    if not has_driver:
        return host
    from hpcverify.telemetry.nvml import NvmlReader  # noqa: PLC0415 - 30 ms, for nothing without a GPU

    return (*host, NvmlReader())


def sensor(where: str, name: str) -> str:
    """Name the series *name* of the part *where* as `Inventory.sensors` does."""
    return f"{where}/{name}"
