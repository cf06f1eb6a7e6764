"""
What a disk says of its own health, read with smartctl.

Most nodes let only root ask, and a virtual disk has nothing to say: then it is
not observable, which is no error. The counters span the life of the disk, so that
a check which wants to know what its own load did compares two readings.
"""

from __future__ import annotations

import ctypes
import os
import re
import struct
from collections.abc import Iterable, Iterator, Mapping
from fcntl import ioctl
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import Struct

from hpcverify.check import Metric, Remedy, Unable
from hpcverify.model import Cause
from hpcverify.processes import ToolRunner, run_tool

TIMEOUT_SECONDS = 30.0

FAILING, TEMPERATURE, WORN = "drive_failing", "drive_temperature", "drive_worn"
WARNING, UNDEFINED = "drive_warning", "drive_warning_undefined"
"""The codes of what a drive reports by itself."""
NVME_WARNINGS = {
    0x01: "the spare capacity is below its threshold",
    0x02: "the temperature is over or under a threshold",
    0x04: "reliability is degraded by media errors or internal errors",
    0x08: "the media is read-only",
    0x10: "the backup of the volatile memory failed",
    0x20: "the persistent memory region is read-only or unreliable",
}
"""The bits of the critical warning (NVM Express Base Specification, log page 02h, byte 0)."""
TEMPERATURE_BIT, RELIABILITY_BIT = 0x02, 0x04
MAX_PERCENT = 100
RATED_ENDURANCE = 100
"""Percentage used at which the rated endurance is consumed, which is no failure by itself."""
SCSI_FAILURE_ASC = 0x5D
SCSI_CODES = {
    **dict.fromkeys(((0x0B, 0x01), *((0x0B, q) for q in range(0x0A, 0x0E))), TEMPERATURE),
    (0x5D, 0x73): WORN,
    (0x5D, 0xFF): UNDEFINED,
}
"""
Additional sense codes (asc-num.txt of T10) that are not what their first byte stands for.

0B/01 and 0B/0A to 0B/0D are temperatures, 5D/73 is "endurance limit met", and 5D/FF is sent on
request, to test the reporting.
"""
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
    # A disk may work past 100 %: NVMe says that this does not mean failure.
    "percentage_used": Metric("%", "high", "rated endurance that is used up").warn(
        high=80, source="gcm check_blockdev"
    ),
    "available_spare": Metric("%", "low", "spare blocks left"),
    "spare_margin": Metric("%", "low", "spare left above the disk's threshold").fail(
        low=0, remedy=Remedy.REPLACE, source="the disk's own threshold of spare blocks"
    ),
    "media_errors": Metric("", "high", "data integrity errors, whole life").warn(high=0),
    "hard_errors": Metric("", "high", "SCSI reads and writes that no retry completed, whole life"),
    "unsafe_shutdowns": Metric("", "high", "power losses, whole life"),
    "reallocated": Metric("", "high", "sectors or defects remapped, whole life"),
    "pending": Metric("", "high", "sectors that could not be read, at present").warn(high=0),
    "uncorrectable": Metric("", "high", "sectors or errors beyond repair").warn(high=0),
    "temperature": Metric("°C", "high", "temperature of the disk"),
}

ERROR_COUNTERS = ("media_errors", "hard_errors", "reallocated", "pending", "uncorrectable")
"""What must not grow while a disk is read and written."""


class Health(Struct, frozen=True):
    """What could be read: values by the names in `METRICS`, and what the drive reports itself."""

    values: Mapping[str, float] = {}
    warnings: Mapping[str, str] = {}
    unread_reason: str = ""

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
    """Query *disk*, unless it has spun down and not *wake*; Unable if smartctl does not end."""
    if disk is None:
        return Health(unread_reason="the scratch directory is not on one disk of this node")
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
        return Health(
            unread_reason="smartctl did not print JSON. Fix: install smartmontools 7.0 or later"
        )
    values = {name: float(value) for name, value in _read_values(document)}
    warnings = _join_warnings(_read_warnings(document, values))
    if values or "passed" in document.get("smart_status", {}):
        return Health(values, warnings)
    messages = document.get("smartctl", {}).get("messages", [])
    text = "; ".join(message["string"] for message in messages)
    return Health(unread_reason=text or "the disk does not support SMART")


NVME_LOG_BYTES = 512
NVME_ADMIN_IOCTL = 0xC0484E41
NVME_ADMIN_COMMAND = struct.Struct("<BBHIIIQQII6III")
GET_LOG_PAGE, HEALTH_LOG = 0x02, 0x02
ALL_NAMESPACES = 0xFFFFFFFF
KELVIN_OFFSET = 273


def read_nvme_log(controller: Path) -> bytes:
    """Read the health log of the NVMe *controller*, such as /dev/nvme0, without a program."""
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
        "available_spare": spare,
        "available_spare_threshold": threshold,
        "percentage_used": used,
        "unsafe_shutdowns": int.from_bytes(log[144:160], "little"),
        "media_errors": int.from_bytes(log[160:176], "little"),
    }
    values = {name: float(value) for name, value in _read_nvme(document)}
    if kelvin:  # 0: not measured
        values["temperature"] = float(kelvin - KELVIN_OFFSET)
    return Health(values, _join_warnings(_read_nvme_warnings(warning, values)))


def _read_values(document: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    if "current" in (temperature := document.get("temperature", {})):
        yield "temperature", temperature["current"]
    yield from _read_nvme(document.get("nvme_smart_health_information_log", {}))
    for row in document.get("ata_smart_attributes", {}).get("table", []):
        name, words = ATA_ATTRIBUTES.get(row["id"], ("", ()))
        shown = row.get("name", "").lower()
        is_meant = any(word in shown for word in words) and not shown.startswith("bogus")
        if name and (is_meant or not shown):
            # The 48 bits of a raw value may hold several counts; the string has the first.
            count = re.match(r"0x[0-9a-fA-F]+|\d+", row["raw"].get("string", ""))
            yield (
                name,
                int(count[0], 16 if "x" in count[0] else 10) if count else row["raw"]["value"],
            )
    if "scsi_grown_defect_list" in document:
        yield "reallocated", document["scsi_grown_defect_list"]
    log = document.get("scsi_error_counter_log", {})
    counts = [log[way]["total_uncorrected_errors"] for way in ("read", "write") if way in log]
    if counts:
        yield "hard_errors", sum(counts)
    if "scsi_percentage_used_endurance_indicator" in document:
        yield "percentage_used", document["scsi_percentage_used_endurance_indicator"]


def _join_warnings(warnings: Iterable[tuple[str, str]]) -> dict[str, str]:
    joined: dict[str, str] = {}
    for code, text in warnings:
        joined[code] = f"{joined[code]}; {text}" if code in joined else text
    return joined


def _read_warnings(
    document: Mapping[str, Any], values: Mapping[str, float]
) -> Iterator[tuple[str, str]]:
    """Read the drive's own warnings, by code; ``passed`` counts only without any."""
    status = document.get("smart_status", {})
    log = document.get("nvme_smart_health_information_log", {})
    bits = log.get("critical_warning", status.get("nvme", {}).get("value"))
    failed = status.get("passed") is False
    if bits is not None:
        yield from _read_nvme_warnings(bits, values)
    elif "asc" in (exception := status.get("scsi", {})):
        asc, ascq = exception["asc"], exception["ascq"]
        default = FAILING if asc == SCSI_FAILURE_ASC else WARNING
        shown = f"SCSI sense code {asc:02X}/{ascq:02X}: {exception.get('ie_string', 'no text')}"
        yield SCSI_CODES.get((asc, ascq), default), shown
    elif reached := [*_list_reached_thresholds(document)]:
        for is_temperature, text in reached:
            yield TEMPERATURE if is_temperature else FAILING if failed else WARNING, text
    elif failed:
        yield FAILING, "the SMART status predicts a failure"


def _read_nvme_warnings(bits: int, values: Mapping[str, float]) -> Iterator[tuple[str, str]]:
    is_only_worn = (
        values.get("percentage_used", 0) >= RATED_ENDURANCE
        and values.get("spare_margin", 0) > 0
        and values.get("media_errors") == 0
    )
    for bit in (1 << place for place in range(bits.bit_length())):
        if not bits & bit:
            continue
        code, text = FAILING, NVME_WARNINGS.get(bit, "no meaning is defined for this bit")
        if bit not in NVME_WARNINGS:
            code = UNDEFINED
        elif bit == TEMPERATURE_BIT:
            code = TEMPERATURE
        elif bit == RELIABILITY_BIT and is_only_worn:
            code, text = WORN, "the rated endurance is used up, with spare left and no media error"
        yield code, f"NVMe critical warning {bit:#04x}: {text}"


def _list_reached_thresholds(document: Mapping[str, Any]) -> Iterator[tuple[bool, str]]:
    """List the ATA attributes at or below their thresholds: whether of temperature, and text."""
    for row in document.get("ata_smart_attributes", {}).get("table", []):
        if row.get("when_failed") == "now":
            name = row.get("name", "")
            text = f"attribute {row['id']} {name} is {row['value']}, threshold {row['thresh']}"
            is_temperature = "temperature" in name.lower() if name else row["id"] in (190, 194)
            yield is_temperature, text


def _read_nvme(log: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for name in ("percentage_used", "available_spare", "media_errors", "unsafe_shutdowns"):
        if name in log:
            yield name, log[name]
    spare, threshold = log.get("available_spare"), log.get("available_spare_threshold")
    # Above 100 is reserved: a drive that gives 255 there has no threshold.
    if spare is not None and threshold is not None and threshold <= MAX_PERCENT:
        yield "spare_margin", spare - threshold
