"""
Readers of the hardware: what the machine says of itself.

Series are named alike for all parts, so that one check judges CPUs and GPUs:
``temperature``, ``temperature.headroom``, ``clock``, ``power``, ``utilization``,
``energy`` (counted up), ``throttled.CAUSE`` (seconds, counted up), ``event.CAUSE``
(1 while it lasts), ``ecc.*``, ``remap.*``, ``retired.*``, ``pcie.generation``,
``pcie.width``, ``pcie.replays``, ``pcie.recoveries``, ``nvlink.errors`` (counted up),
``xid`` (its number, once), and a code of `problems` (1) for a GPU in trouble.
"""

from __future__ import annotations

from pathlib import Path

from hpcverify.model import Inventory
from hpcverify.telemetry.reading import Reader, Reading

__all__ = ["Reader", "Reading", "make_host_readers", "make_readers", "name_sensor"]


def make_readers(inventory: Inventory, root: Path = Path("/")) -> tuple[Reader, ...]:
    """Make the readers for what *inventory* lists; the caller closes them."""
    host = make_host_readers(inventory, root)
    has_driver = any("driver" in gpu.facts for gpu in inventory.of_kind("gpu"))
    if not has_driver:
        return host
    from hpcverify.telemetry import vendors  # noqa: PLC0415 - for nothing without a GPU

    source = vendors.find_source(vendors.name_vendor(inventory))
    return host if source is None else (*host, source.make_reader())


def make_host_readers(inventory: Inventory, root: Path = Path("/")) -> tuple[Reader, ...]:
    """Make the readers for what is there without a GPU."""
    # What only judges, as the engine does, has no use for them.
    from hpcverify.telemetry.cpu import CpuReader  # noqa: PLC0415
    from hpcverify.telemetry.edac import EdacReader  # noqa: PLC0415
    from hpcverify.telemetry.hwmon import HwmonReader  # noqa: PLC0415

    return (CpuReader(root), HwmonReader(root, inventory.of_kind("disk")), EdacReader(root))


def name_sensor(part_id: str, name: str) -> str:
    """Name the series *name* of the part *part_id* as `Inventory.sensors` does."""
    return f"{part_id}/{name}"
