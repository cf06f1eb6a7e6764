"""Disks: what each says of its own health, and what grew since the last run."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hpcverify.check import Unable, Verdict
from hpcverify.model import Cause, Coverage, Inventory, Part, Remedy
from hpcverify.processes import CompletedTool
from hpcverify.telemetry import smart
from hpcverify.testing import find_value, judge_items, list_findings, make_context
from hpcverify_checks.host import CHECK
from hpcverify_checks.host.disks import measure_disks
from tests.checks.host.nodes import a_node, look

NVME = Part("disk", "S1", "nvme0n1")
SATA = Part("disk", "S2", "sda")


def log(**values: int) -> bytes:
    """Make a SMART / Health log, as the NVMe base specification lays it out."""
    given = {"warning": 0, "spare": 100, "threshold": 10, "used": 3, "media": 0} | values
    raw = bytearray(512)
    raw[0] = given["warning"]
    raw[1:3] = (273 + 41).to_bytes(2, "little")
    raw[3], raw[4], raw[5] = given["spare"], given["threshold"], given["used"]
    raw[144:160] = (12).to_bytes(16, "little")
    raw[160:176] = given["media"].to_bytes(16, "little")
    return bytes(raw)


@pytest.mark.parametrize(
    ("values", "name", "value"),
    [
        ({}, "temperature", 41),
        ({}, "unsafe_shutdowns", 12),
        ({"spare": 8}, "spare_margin", -2),
        ({"used": 120}, "percentage_used", 120),
        ({"media": 2**70}, "media_errors", 2**70),
    ],
)
def test_the_log_of_an_nvme_is_read_as_smartctl_reads_it(
    values: dict[str, int], name: str, value: float
) -> None:
    assert smart.parse_nvme_log(log(**values)).values[name] == value


def test_what_is_no_nvme_refuses_its_command(tmp_path: Path) -> None:
    path = tmp_path / "nvme0"
    path.write_bytes(b"")

    with pytest.raises(OSError, match="ioctl"):
        smart.read_nvme_log(path)


def smartctl(**attributes: Any) -> Any:
    """Answer as smartctl --json does for a SATA disk."""
    status = {"smart_status": {"passed": attributes.pop("passed", True)}}
    table = [{"id": int(k[1:]), "raw": {"value": v}} for k, v in attributes.items()]
    document = status | {"ata_smart_attributes": {"table": table}}

    def tool(command: list[str], **_: Any) -> CompletedTool:
        assert command[-1] == "/dev/sda"
        return CompletedTool(0, json.dumps(document).encode(), b"")

    return tool


def run(tmp_path: Path, tool: Any, before: Any = None) -> list[Any]:
    inventory = Inventory(parts=(SATA,))
    return look(tmp_path, a_node(tmp_path / "r", tool=tool), inventory=inventory, before=before)


def test_a_disk_that_predicts_its_failure_fails_and_is_named(tmp_path: Path) -> None:
    inventory = Inventory(parts=(SATA,))
    well = judge_items(CHECK, run(tmp_path, smartctl()), inventory)
    sick = judge_items(CHECK, run(tmp_path, smartctl(passed=False)), inventory)

    assert well.verdict is Verdict.PASS
    assert (sick.verdict, sick.remedy) == (Verdict.FAIL, Remedy.REPLACE)
    assert sick.reason == "sda: the SMART status predicts a failure: replace the drive"


@pytest.mark.parametrize(
    ("bits", "used", "verdict", "reason"),
    [
        (0x00, 3, Verdict.PASS, ""),
        (0x02, 3, Verdict.WARN, "a threshold (84 °C): cool it"),
        (0x04, 100, Verdict.WARN, "plan its replacement"),
        (0x06, 255, Verdict.WARN, "plan its replacement"),
        (0x04, 3, Verdict.FAIL, "replace the drive"),
        (0x10, 3, Verdict.FAIL, "replace the drive"),
        (0x40, 3, Verdict.PASS, ""),
    ],
)
def test_a_hot_or_worn_drive_stays_in_service_and_a_failing_one_does_not(
    tmp_path: Path, bits: int, used: int, verdict: Verdict, reason: str
) -> None:
    """Bit 0x40 is reserved in the NVM Express Base Specification 2.0."""
    document = {
        "smart_status": {"passed": not bits, "nvme": {"value": bits}},
        "temperature": {"current": 84},
        "nvme_smart_health_information_log": {
            "critical_warning": bits,
            "available_spare": 100,
            "available_spare_threshold": 10,
            "percentage_used": used,
            "media_errors": 0,
        },
    }
    judged = judge_items(CHECK, run(tmp_path, answer(document)), Inventory(parts=(SATA,)))

    assert judged.verdict is verdict
    assert reason in judged.reason


def test_errors_that_are_new_since_the_last_run_fail_and_old_ones_do_not(tmp_path: Path) -> None:
    first = run(tmp_path, smartctl(a198=0))
    same = run(tmp_path, smartctl(a198=0), first)
    grown = run(tmp_path, smartctl(a198=2), first)

    assert judge_items(CHECK, first).verdict is judge_items(CHECK, same).verdict is Verdict.PASS
    assert find_value(grown, "smart.uncorrectable.delta", "S2") == 2
    assert judge_items(CHECK, grown).verdict is Verdict.FAIL


@pytest.mark.parametrize(
    ("name", "verdict"),
    [
        ("Current_Pending_Sector", Verdict.FAIL),
        ("Bogus_Current_Pend_Sect", Verdict.PASS),  # of the Crucial MX500, up and down in health
        ("Not_In_Use", Verdict.PASS),
    ],
)
def test_an_attribute_counts_only_where_the_disk_means_it(
    tmp_path: Path, name: str, verdict: Verdict
) -> None:
    first = run(tmp_path, answer_table(name, 0))
    grown = run(tmp_path, answer_table(name, 1), first)

    assert judge_items(CHECK, grown).verdict is verdict


def answer(document: dict[str, Any]) -> Any:
    """Answer as smartctl does, with *document*."""

    def tool(*_: Any, **__: Any) -> CompletedTool:
        return CompletedTool(0, json.dumps(document).encode(), b"")

    return tool


def answer_table(name: str, value: int) -> Any:
    """Answer as smartctl does for a disk with one attribute, number 197."""
    table = [{"id": 197, "name": name, "raw": {"value": value, "string": str(value)}}]
    document = {"smart_status": {"passed": True}, "ata_smart_attributes": {"table": table}}
    return answer(document)


def test_an_error_of_years_ago_is_no_news(tmp_path: Path) -> None:
    """SCSI counts uncorrected errors for the whole life of a disk."""
    document = {
        "smart_status": {"passed": True},
        "scsi_error_counter_log": {"read": {"total_uncorrected_errors": 536}},
    }
    found = run(tmp_path, answer(document))

    assert judge_items(CHECK, found).verdict is Verdict.PASS


def test_a_disk_that_hangs_smartctl_is_named_and_the_others_cost_no_more_waits(
    tmp_path: Path,
) -> None:
    asked: list[str] = []

    def hang(command: list[str], **_: object) -> CompletedTool:
        asked.append(command[-1])
        raise Unable("smartctl did not end in 10 s", Cause.HUNG)

    ctx = make_context(tmp_path, inventory=Inventory(parts=(SATA, Part("disk", "S3", "sdb"))))
    found = list(measure_disks(ctx, tmp_path / "dev", hang, seconds=1, smartctl=True))

    assert asked == ["/dev/sda"]
    assert [(f.code, f.part_id) for f in list_findings(found)] == [("disk_hung", "S2")]
    assert "did not end with sda" in str(found)


def test_in_the_prolog_no_program_is_started_for_disks(tmp_path: Path) -> None:
    def fail(*_: object, **__: object) -> CompletedTool:
        raise AssertionError

    ctx = make_context(tmp_path, inventory=Inventory(parts=(SATA, NVME)))
    found = list(measure_disks(ctx, tmp_path / "dev", fail, seconds=1, smartctl=False))

    assert list_findings(found) == []
    assert "cannot be read: No such file" in str(found)


def test_an_nvme_that_does_not_answer_is_named_and_keeps_nobody(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    os.mkfifo(tmp_path / "dev/nvme0n1")  # who opens it waits for a writer that never comes
    inventory = Inventory(parts=(NVME,))
    ctx = make_context(tmp_path, inventory=inventory)

    found = list(measure_disks(ctx, tmp_path / "dev", smartctl(), seconds=0.3, smartctl=True))
    judged = judge_items(CHECK, found, inventory)

    assert (judged.verdict, judged.cause) == (Verdict.ERROR, Cause.HUNG)
    assert judged.reason.startswith("nvme0n1: NVMe nvme0n1 does not answer")


def test_a_disk_of_another_machine_is_not_asked_for_its_health(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    os.mkfifo(tmp_path / "dev/nvme0n1")
    parts = tuple(msgspec.structs.replace(p, facts={"network": "tcp"}) for p in (NVME, SATA))
    ctx = make_context(tmp_path, inventory=Inventory(parts=parts))
    sick = smartctl(passed=False)

    found = list(measure_disks(ctx, tmp_path / "dev", sick, seconds=0.3, smartctl=True))

    assert judge_items(CHECK, found).verdict is Verdict.PASS
    assert [item.part_id for item in found if isinstance(item, Coverage)] == [NVME.id, SATA.id]
