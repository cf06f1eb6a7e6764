"""
Memory errors of the host, as the kernel's EDAC drivers count them.

Counters run from the loading of the driver (admin-guide/ras). A controller lists
its DIMMs as ``dimmN`` and, in older drivers, its rows as ``csrowN``; what it could
not assign to any is in ``ce_noinfo_count`` and ``ue_noinfo_count``. The total of
the controller is the sum of these and not counted again.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from hpcverify.model import Part
from hpcverify.telemetry import sysfs
from hpcverify.telemetry.reading import Reading

CONTROLLER_FOLDER = "sys/devices/system/edac/mc"


def list_parts(root: Path = Path("/")) -> Iterator[Part]:
    """Describe what has counters of its own, by the label that the board gives it."""
    for controller in _list_controllers(root):
        for slot in _list_slots(controller):
            part_id = f"{controller.name}/{slot.name}"
            facts = sysfs.drop_unknown(
                size_mib=sysfs.read_text(slot / "size") or sysfs.read_text(slot / "size_mb"),
                type=sysfs.read_text(slot / "dimm_mem_type") or sysfs.read_text(slot / "mem_type"),
            )
            if facts.get("size_mib") == "0":  # an empty row of an old driver
                continue
            label = sysfs.read_text(slot / "dimm_label") or sysfs.read_text(slot / "ch0_dimm_label")
            yield Part("edac", part_id, label or f"memory {part_id}", facts)


class EdacReader:
    """Reads the corrected and uncorrected errors of each DIMM."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._counters = list(_list_counters(root))

    def read(self) -> Iterator[Reading]:
        """Yield both counters of every DIMM, and of what is assigned to none."""
        for name, part_id, path in self._counters:
            value = sysfs.read_number(path)
            if value is not None:
                yield Reading(name, value, "", part_id)

    def close(self) -> None:
        """Hold nothing."""


def _list_controllers(root: Path) -> list[Path]:
    return sysfs.list_entries(root / CONTROLLER_FOLDER, "mc[0-9]*")


def _list_slots(controller: Path) -> list[Path]:
    dimms = sysfs.list_entries(controller, "dimm[0-9]*")
    return dimms or sysfs.list_entries(controller, "csrow[0-9]*")


def _list_counters(root: Path) -> Iterator[tuple[str, str, Path]]:
    for controller in _list_controllers(root):
        slots = _list_slots(controller)
        for slot in slots:
            prefix = "dimm_" if slot.name.startswith("dimm") else ""
            part_id = f"{controller.name}/{slot.name}"
            yield "ecc.corrected", part_id, slot / f"{prefix}ce_count"
            yield "ecc.uncorrected", part_id, slot / f"{prefix}ue_count"
        rest = "noinfo_" if slots else ""
        yield "ecc.corrected", controller.name, controller / f"ce_{rest}count"
        yield "ecc.uncorrected", controller.name, controller / f"ue_{rest}count"
