"""
What a disk says of its own health, read with smartctl.

Most nodes let only root ask, and a virtual disk has nothing to say: then it is
not observable, which is no error. The counters span the life of the disk, so that
a check which wants to know what its own load did compares two readings.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterator, Mapping
from fcntl import ioctl
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import Struct

from hpcverify.check import Metric, Unable
from hpcverify.model import Cause
from hpcverify.processes import ToolRunner, run_tool

TIMEOUT_SECONDS = 30.0

TEMPERATURE_BIT = 0x02
"""In the NVMe critical warnings: too hot or too cold now; all others are damage."""

ATA_ATTRIBUTES = {
    5: ("reallocated", ("realloc", "retired", "remap")),
    197: ("pending", ("current_pend", "pending_sector")),
    198: ("uncorrectable", ("uncorrect",)),
}
"""
ATA attributes that nearly all vendors number alike and count in sectors, and what the names
of those hold in smartmontools' drivedb.h. It knows disks that count something else there
(Not_In_Use), or that count up and down in health (Bogus_Current_Pend_Sect).
"""

METRICS = {
    "failing": Metric(unit="", worse="high", meaning="1 if the disk predicts its own failure"),
    "percentage_used": Metric(unit="%", worse="high", meaning="rated endurance that is used up"),
    "available_spare": Metric(unit="%", worse="low", meaning="spare blocks left"),
    "spare_margin": Metric(unit="%", worse="low", meaning="spare left above the disk's threshold"),
    "critical_warning": Metric(
        unit="", worse="high", meaning="NVMe warnings but temperature, bits"
    ),
    "temperature_warning": Metric(unit="", worse="high", meaning="1 if NVMe warns of temperature"),
    "media_errors": Metric(unit="", worse="high", meaning="data integrity errors, whole life"),
    "unsafe_shutdowns": Metric(unit="", worse="high", meaning="power losses, whole life"),
    "reallocated": Metric(unit="", worse="high", meaning="sectors or defects remapped, whole life"),
    "pending": Metric(unit="", worse="high", meaning="sectors that could not be read, at present"),
    "uncorrectable": Metric(unit="", worse="high", meaning="sectors or errors beyond repair"),
    "temperature": Metric(unit="°C", worse="high", meaning="temperature of the disk"),
}

ERROR_COUNTERS = ("media_errors", "reallocated", "pending", "uncorrectable")
"""What must not grow while a disk is read and written."""


class Health(Struct, frozen=True):
    """The values that could be read, by the names in `METRICS`."""

    values: Mapping[str, float] = {}
    unread_reason: str = ""
    """Why there are none."""

    def compute_growth(self, before: Health) -> dict[str, float]:
        """Say by how much each count of errors differs from *before*."""
        return {
            name: self.values[name] - before.values[name]
            for name in ERROR_COUNTERS
            if name in self.values and name in before.values
        }


run_smartctl = partial(run_tool, package="smartmontools")


def read(
    disk: str | None,
    tool: ToolRunner = run_smartctl,
    *,
    timeout: float = TIMEOUT_SECONDS,
    wake: bool = True,
) -> Health:
    """
    Ask the disk that the kernel calls *disk*; None is no disk that could be asked.

    Without *wake*, a disk that has spun down is not asked.

    Raises:
        Unable: smartctl did not end, which no healthy disk makes it do.

    """
    if disk is None:
        return Health(unread_reason="no single disk of this node lies behind the scratch directory")
    command = ["smartctl", "--json", "-a", *(["--nocheck=standby"] * (not wake)), f"/dev/{disk}"]
    try:
        done = tool(command, timeout=timeout)
    except Unable as exc:
        if exc.cause is not Cause.MISSING:
            raise
        return Health(unread_reason=str(exc))
    return parse(done.stdout)


def parse(output: bytes) -> Health:
    """Take the values out of what ``smartctl --json -a`` printed."""
    import json  # noqa: PLC0415 - the prolog reads no such output

    try:
        document = json.loads(output)
    except ValueError:
        return Health(unread_reason="smartctl printed no JSON: version 7.0 or later is needed")
    values = {name: float(value) for name, value in _read_values(document)}
    return Health(values) if values else Health(unread_reason=_explain_no_values(document))


def _explain_no_values(document: Mapping[str, Any]) -> str:
    messages = document.get("smartctl", {}).get("messages", [])
    text = "; ".join(message["string"] for message in messages)
    return text or "the disk has no SMART"


NVME_LOG_BYTES = 512
NVME_ADMIN_IOCTL = 0xC0484E41
"""NVME_IOCTL_ADMIN_CMD of linux/nvme_ioctl.h."""
NVME_ADMIN_COMMAND = struct.Struct("<BBHIIIQQII6III")
"""struct nvme_passthru_cmd, in the same place."""
GET_LOG_PAGE, HEALTH_LOG = 0x02, 0x02
ALL_NAMESPACES = 0xFFFFFFFF
KELVIN_OFFSET = 273


def read_nvme_log(controller: Path) -> bytes:
    """
    Read the health log of the NVMe *controller*, such as /dev/nvme0, without a program.

    Raises:
        OSError: it cannot be opened, as by a user, or does not answer.

    """
    log = ctypes.create_string_buffer(NVME_LOG_BYTES)
    wanted = HEALTH_LOG | (NVME_LOG_BYTES // 4 - 1) << 16
    command = NVME_ADMIN_COMMAND.pack(
        *(GET_LOG_PAGE, 0, 0, ALL_NAMESPACES, 0, 0, 0, ctypes.addressof(log), 0, NVME_LOG_BYTES),
        *(wanted, 0, 0, 0, 0, 0, 0, 0),
    )
    device = os.open(controller, os.O_RDONLY | os.O_CLOEXEC)
    try:
        ioctl(device, NVME_ADMIN_IOCTL, command)
    finally:
        os.close(device)
    return log.raw


def parse_nvme_log(log: bytes) -> Health:
    """Take the values out of the SMART / Health log (NVMe base specification, log page 02h)."""
    warning, kelvin, spare, threshold, used = struct.unpack_from("<BHBBB", log)
    document = {
        "critical_warning": warning,
        "available_spare": spare,
        "available_spare_threshold": threshold,
        "percentage_used": used,
        "unsafe_shutdowns": int.from_bytes(log[144:160], "little"),
        "media_errors": int.from_bytes(log[160:176], "little"),
    }
    values = {name: float(value) for name, value in _read_nvme(document)}
    return Health(values | {"temperature": float(kelvin - KELVIN_OFFSET)})


def _read_values(document: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    if "passed" in (status := document.get("smart_status", {})):
        yield "failing", not status["passed"]
    if "current" in (temperature := document.get("temperature", {})):
        yield "temperature", temperature["current"]
    yield from _read_nvme(document.get("nvme_smart_health_information_log", {}))
    yield from _read_ata(document.get("ata_smart_attributes", {}))
    yield from _read_scsi(document)


def _read_nvme(log: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for name in ("percentage_used", "available_spare", "media_errors", "unsafe_shutdowns"):
        if name in log:
            yield name, log[name]
    if "critical_warning" in log:
        warning = log["critical_warning"]
        yield "critical_warning", warning & ~TEMPERATURE_BIT
        yield "temperature_warning", bool(warning & TEMPERATURE_BIT)
    if "available_spare" in log and "available_spare_threshold" in log:
        yield "spare_margin", log["available_spare"] - log["available_spare_threshold"]


def _read_ata(attributes: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for row in attributes.get("table", []):
        name, words = ATA_ATTRIBUTES.get(row["id"], ("", ()))
        shown = row.get("name", "").lower()
        is_meant = any(word in shown for word in words) and not shown.startswith("bogus")
        if name and (is_meant or not shown):
            yield name, row["raw"]["value"]


def _read_scsi(document: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    if "scsi_grown_defect_list" in document:
        yield "reallocated", document["scsi_grown_defect_list"]
    log = document.get("scsi_error_counter_log", {})
    counts = [log[way]["total_uncorrected_errors"] for way in ("read", "write") if way in log]
    if counts:
        yield "media_errors", sum(counts)  # of its whole life
    if "scsi_percentage_used_endurance_indicator" in document:
        yield "percentage_used", document["scsi_percentage_used_endurance_indicator"]
