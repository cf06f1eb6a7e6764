"""
What a disk says of its health is taken as it is; what it cannot say is no error.

The documents are cut down from what smartctl 7.3 prints, in its own schema.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hpcverify.check import Unable
from hpcverify.model import Cause
from hpcverify.processes import CompletedTool
from hpcverify.telemetry import smart
from hpcverify.units import UNIT_FACTORS


def printed(**document: Any) -> bytes:
    common = {
        "json_format_version": [1, 0],
        "smartctl": {"version": [7, 3], "svn_revision": "5338", "exit_status": 0},
    }
    return json.dumps(common | document, indent=2).encode()


def nvme(**log: int) -> bytes:
    healthy = {
        "critical_warning": 0,
        "temperature": 29,
        "available_spare": 100,
        "available_spare_threshold": 10,
        "percentage_used": 3,
        "data_units_read": 20145988,
        "data_units_written": 103902180,
        "power_cycles": 22,
        "power_on_hours": 12164,
        "unsafe_shutdowns": 8,
        "media_errors": 0,
        "num_err_log_entries": 0,
    }
    return printed(
        device={"name": "/dev/nvme0n1", "type": "nvme", "protocol": "NVMe"},
        smart_status={"passed": True, "nvme": {"value": 0}},
        nvme_smart_health_information_log=healthy | log,
        temperature={"current": 29},
    )


def attribute(number: int, name: str, raw: int) -> dict[str, Any]:
    return {
        "id": number,
        "name": name,
        "value": 200,
        "worst": 200,
        "thresh": 140,
        "when_failed": "",
        "raw": {"value": raw, "string": str(raw)},
    }


ATA = printed(
    device={"name": "/dev/sdb", "type": "sat", "protocol": "ATA"},
    smart_status={"passed": False},
    ata_smart_attributes={
        "revision": 16,
        "table": [
            attribute(1, "Raw_Read_Error_Rate", 114),
            attribute(5, "Reallocated_Sector_Ct", 7),
            attribute(197, "Current_Pending_Sector", 2),
            attribute(198, "Offline_Uncorrectable", 1),
        ],
    },
    temperature={"current": 34},
)

SAS = printed(
    device={"name": "/dev/sda", "type": "scsi", "protocol": "SCSI"},
    smart_status={"passed": True},
    temperature={"current": 27, "drive_trip": 85},
    scsi_grown_defect_list=4,
    scsi_percentage_used_endurance_indicator=11,
    scsi_error_counter_log={
        "read": {"total_errors_corrected": 90, "total_uncorrected_errors": 2},
        "write": {"total_errors_corrected": 0, "total_uncorrected_errors": 1},
        "verify": {"total_errors_corrected": 0, "total_uncorrected_errors": 5},
    },
)

VIRTUAL = printed(
    smartctl={
        "messages": [{"string": "/dev/vda: Unable to detect device type", "severity": "error"}],
        "exit_status": 1,
    }
)


def test_an_nvme_disk_tells_its_wear_its_spare_and_its_errors() -> None:
    health = smart.parse(nvme(media_errors=2, available_spare=8, percentage_used=104))

    assert health.values == {
        "temperature": 29,
        "percentage_used": 104,
        "available_spare": 8,
        "spare_margin": -2,
        "media_errors": 2,
        "unsafe_shutdowns": 8,
    }


def test_a_reserved_threshold_of_spare_is_none() -> None:
    """A 980 PRO gave 255 as its threshold: hiyohiyo/CrystalDiskInfo issue 186."""
    read = smart.parse(nvme(available_spare=64, available_spare_threshold=255))

    assert read.values["available_spare"] == 64
    assert "spare_margin" not in read.values


def log_page(**values: int) -> bytes:
    """Make the log of `nvme` as the NVM Express Base Specification lays it out."""
    given = {"critical_warning": 0, "available_spare": 100, "percentage_used": 3} | values
    raw = bytearray(512)
    raw[0] = given["critical_warning"]
    raw[1:3] = (273 + 29).to_bytes(2, "little")
    raw[3], raw[4], raw[5] = given["available_spare"], 10, given["percentage_used"]
    raw[160:176] = given.get("media_errors", 0).to_bytes(16, "little")
    return bytes(raw)


@pytest.mark.parametrize(
    ("log", "codes"),
    [
        ({}, set()),
        ({"critical_warning": 0x01, "available_spare": 5}, {smart.FAILING}),
        ({"critical_warning": 0x02}, {smart.TEMPERATURE}),
        ({"critical_warning": 0x04}, {smart.FAILING}),
        ({"critical_warning": 0x04, "percentage_used": 100}, {smart.WORN}),
        ({"critical_warning": 0x06, "percentage_used": 130}, {smart.WORN, smart.TEMPERATURE}),
        ({"critical_warning": 0x04, "percentage_used": 99}, {smart.FAILING}),
        ({"critical_warning": 0x04, "percentage_used": 100, "media_errors": 2}, {smart.FAILING}),
        (
            {"critical_warning": 0x04, "percentage_used": 100, "available_spare": 10},
            {smart.FAILING},
        ),
        ({"critical_warning": 0x0C, "percentage_used": 100}, {smart.WORN, smart.FAILING}),
        ({"critical_warning": 0x08}, {smart.FAILING}),
        ({"critical_warning": 0x10}, {smart.FAILING}),
        ({"critical_warning": 0x20}, {smart.FAILING}),
        ({"critical_warning": 0x80}, {smart.UNDEFINED}),
        ({"critical_warning": 0x42}, {smart.UNDEFINED, smart.TEMPERATURE}),
    ],
)
def test_each_bit_of_the_critical_warning_has_the_meaning_of_the_standard(
    log: dict[str, int], codes: set[str]
) -> None:
    """
    NVM Express Base Specification, log page 02h, byte 0.

    smartctl (nvmeprint.cpp) prints ``passed: false`` for any bit.
    """
    document = json.loads(nvme(**log))
    document["smart_status"] = {"passed": False, "nvme": {"value": log.get("critical_warning", 0)}}

    assert smart.parse(json.dumps(document).encode()).warnings.keys() == codes
    assert smart.parse_nvme_log(log_page(**log)).warnings.keys() == codes


@pytest.mark.parametrize(
    ("asc", "ascq", "code"),
    [
        (0x0B, 0x01, smart.TEMPERATURE),  # specified temperature exceeded
        (0x0B, 0x0A, smart.TEMPERATURE),  # high critical temperature limit exceeded
        (0x0B, 0x0D, smart.TEMPERATURE),  # low operating temperature limit exceeded
        (0x0B, 0x02, smart.WARNING),  # enclosure degraded
        (0x0B, 0x05, smart.WARNING),  # background medium scan detected medium error
        (0x0B, 0x0E, smart.WARNING),  # high critical humidity limit exceeded
        (0x5D, 0x00, smart.FAILING),  # failure prediction threshold exceeded
        (0x5D, 0x32, smart.FAILING),  # data channel impending failure data error rate too high
        (0x5D, 0x73, smart.WORN),  # media impending failure endurance limit met
        (0x5D, 0xFF, smart.UNDEFINED),  # failure prediction threshold exceeded (false)
    ],
)
def test_a_sense_code_of_scsi_has_the_meaning_of_the_standard(
    asc: int, ascq: int, code: str
) -> None:
    """T10's list of additional sense codes; the form is that of smartctl's scsiprint.cpp."""
    exception = {"asc": asc, "ascq": ascq, "ie_string": "THE TEXT OF SMARTCTL"}
    document = json.loads(SAS)
    document["smart_status"] = {"passed": False, "scsi": exception}

    ((found, text),) = smart.parse(json.dumps(document).encode()).warnings.items()
    assert found == code
    assert text == f"SCSI sense code {asc:02X}/{ascq:02X}: THE TEXT OF SMARTCTL"


@pytest.mark.parametrize(
    ("passed", "names", "codes"),
    [
        (True, [], set()),
        (False, [], {smart.FAILING}),
        (False, ["Reallocated_Sector_Ct"], {smart.FAILING}),
        (False, ["Airflow_Temperature_Cel"], {smart.TEMPERATURE}),
        (False, ["Temperature_Celsius", "Spin_Retry_Count"], {smart.TEMPERATURE, smart.FAILING}),
        (True, ["Airflow_Temperature_Cel"], {smart.TEMPERATURE}),
        (True, ["Power_On_Hours"], {smart.WARNING}),
    ],
)
def test_a_failed_ata_status_is_a_failure_unless_only_the_temperature_is_beyond_its_threshold(
    *, passed: bool, names: list[str], codes: set[str]
) -> None:
    """ACS-3: SMART RETURN STATUS; smartctl marks attributes at their threshold with ``now``."""
    rows = [attribute(190 + i, name, 61) | {"when_failed": "now"} for i, name in enumerate(names)]
    past = attribute(10, "Spin_Retry_Count", 3) | {"when_failed": "past"}
    document = {
        "smart_status": {"passed": passed},
        "ata_smart_attributes": {"table": [past, *rows]},
    }

    warnings = smart.parse(printed(**document)).warnings
    assert warnings.keys() == codes
    assert all(name in str(warnings) for name in names)


@pytest.mark.parametrize(
    ("value", "string", "count"),
    [
        (2099 << 16, "0 (2099 0)", 0),  # raw16(raw16), the default of smartctl for 5 and 196
        (3 + (2099 << 16), "3 (2099 0)", 3),
        (7, "7", 7),
        (10, "0x00000000000a", 10),
        (4, "-", 4),
    ],
)
def test_a_packed_raw_value_is_read_by_the_number_that_smartctl_prints_first(
    value: int, string: str, count: int
) -> None:
    row = attribute(5, "Reallocated_Sector_Ct", 0) | {"raw": {"value": value, "string": string}}
    document = {"smart_status": {"passed": True}, "ata_smart_attributes": {"table": [row]}}

    assert smart.parse(printed(**document)).values["reallocated"] == count


def test_an_ata_disk_tells_its_bad_sectors_by_their_raw_values() -> None:
    assert smart.parse(ATA).values == {
        "temperature": 34,
        "reallocated": 7,
        "pending": 2,
        "uncorrectable": 1,
    }


def test_a_sas_disk_tells_its_defects_and_what_no_retry_could_read_or_write() -> None:
    assert smart.parse(SAS).values == {
        "temperature": 27,
        "reallocated": 4,
        "percentage_used": 11,
        "hard_errors": 3,
    }


@pytest.mark.parametrize(
    ("output", "why"),
    [
        (VIRTUAL, "/dev/vda: Unable to detect device type"),
        (printed(), "does not support SMART"),
        (b"smartctl 6.5: unrecognized option '--json'", "7.0 or later"),
        (b"", "7.0 or later"),
    ],
)
def test_a_disk_that_says_nothing_gives_no_values_and_the_reason(output: bytes, why: str) -> None:
    health = smart.parse(output)

    assert not health.values
    assert why in health.unread_reason


def test_only_counts_of_errors_are_compared_and_only_those_read_twice() -> None:
    before = smart.parse(nvme(media_errors=2, unsafe_shutdowns=8))
    after = smart.parse(nvme(media_errors=5, unsafe_shutdowns=9))

    assert after.compute_growth(before) == {"media_errors": 3}
    assert after.compute_growth(smart.Health(unread_reason="denied")) == {}


def test_the_disk_is_asked_by_the_name_that_the_kernel_gives_it() -> None:
    asked: list[str] = []

    def tool(command: list[str], *, timeout: float) -> CompletedTool:
        asked.append(f"{' '.join(command)} within {timeout:g} s")
        return CompletedTool(0, nvme(), b"")

    assert smart.read("nvme0n1", tool).values["available_spare"] == 100
    assert asked == ["smartctl --json -a /dev/nvme0n1 within 30 s"]


def test_where_there_is_no_one_disk_none_is_asked() -> None:
    assert "is not on one disk" in smart.read(None, pytest.fail).unread_reason


def test_without_smartctl_health_is_not_observable(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    assert "apt-get install smartmontools" in smart.read("sda").unread_reason


def test_a_disk_that_makes_smartctl_hang_is_not_passed_over() -> None:
    def tool(_: list[str], *, timeout: float) -> CompletedTool:
        raise Unable(f"smartctl did not end within {timeout:g} s", Cause.TIMEOUT)

    with pytest.raises(Unable, match="did not end"):
        smart.read("sda", tool)


def test_every_value_has_a_metric_and_every_metric_a_unit_that_exists() -> None:
    values = {v for text in (nvme(), ATA, SAS) for v in smart.parse(text).values}

    assert values == smart.METRICS.keys()
    assert {metric.unit for metric in smart.METRICS.values()} <= UNIT_FACTORS.keys()
