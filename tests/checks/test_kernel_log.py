"""What the kernel says: each row of the table by real lines, and lines that are no fault."""

from __future__ import annotations

import importlib
import os
import random
import re
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from hpcverify.check import Context, Skip, Unable
from hpcverify.model import (
    CarryOver,
    Cause,
    CheckItem,
    Coverage,
    Finding,
    Inventory,
    Measurement,
    Part,
    Remedy,
    Verdict,
)
from hpcverify.telemetry.fault_table import OFTEN_SUFFIX, OVER_SUFFIX
from hpcverify.telemetry.kernel_log import KernelMessage, format_moment
from hpcverify.testing import judge_items, make_context
from hpcverify_checks import kernel_log, xid
from hpcverify_checks.kernel_log import CHECK, lines, pstore
from hpcverify_checks.kernel_log.lines import JOB_KIND, ROWS, read_events
from tests.checks.kernel_lines import FAULTY, ORDINARY, compose_ordinary_log
from tests.telemetry import test_kernel_log as logs
from tests.telemetry import trees
from tests.telemetry.test_kernel_log import record

re_parser = importlib.import_module("re._parser")
BOOTED = int(time.time()) - 7200
BOARD = Inventory(
    parts=(
        Part("gpu", "GPU-1", "GPU 1", {"pci_address": "0000:b3:00.0"}),
        Part("nic", "mac-1", "ens1f0np0", {"pci_address": "0000:5c:00.0"}),
        Part("disk", "wwn-1", "nvme0n1", {"pci_address": "0000:01:00.0"}),
        Part("disk", "wwn-2", "sda"),
        Part("disk", "wwn-3", "nvme3n1", {"pci_address": "10000:01:00.0"}),
        Part("disk", "wwn-10", "nvme10n1"),
        Part("edac", "mc0/dimm2", "CPU_SrcID#0_MC#0_Chan#1_DIMM#0"),
        Part("dimm", "80CE01", "DIMM_B2", {"handle": "0x1101"}),
        Part("dimm", "80CE02", "DIMM 30", {"handle": "0x1102", "bank": "CPU 1"}),
        Part("dimm", "80CE03", "DIMM 30", {"handle": "0x1103", "bank": "CPU 2"}),
    )
)


def ring(root: Path, *records: str) -> Path:
    return trees.grow(logs.ring(root, *records), {"proc/stat": f"btime {BOOTED}"})


def measured(tmp_path: Path, *texts: str, **changes: object) -> list[CheckItem]:
    """Run the check over a log of *texts*, a second apart."""
    records = (record(i, text) for i, text in enumerate(texts))
    ctx = make_context(tmp_path, **{"inventory": BOARD, **changes})
    return list(kernel_log.read_log(ctx, ring(tmp_path, *records)))


def findings(found: Iterable[CheckItem]) -> list[tuple[str, str]]:
    return [(f.code, f.part_id) for f in found if isinstance(f, Finding)]


def marks(found: Iterable[CheckItem]) -> tuple[CarryOver, ...]:
    return tuple(item for item in found if isinstance(item, CarryOver))


def read_code(text: str) -> str | None:
    """Say which row speaks for *text*."""
    events = list(read_events([KernelMessage(text, 0.0, "0")]))
    return events[0].row.code if events else None


@pytest.mark.parametrize(("code", "text"), [(c, t) for c, ts in FAULTY.items() for t in ts])
def test_a_line_of_a_fault_is_told_as_its_row_says(tmp_path: Path, code: str, text: str) -> None:
    assert read_code(text) == code
    row = ROWS[code]
    found = measured(tmp_path, *ORDINARY, text)
    told = [f for f in found if isinstance(f, Finding)]
    assert [f.code for f in told] == ([] if row.ends else [code])
    judgement = judge_items(CHECK, found)
    assert judgement.verdict is row.verdict
    if row.verdict is not Verdict.PASS:
        assert judgement.remedy is row.remedy
        assert row.meaning in judgement.reason
        assert judgement.reason.endswith(row.fix)


def test_every_row_has_a_line_of_its_own() -> None:
    assert FAULTY.keys() == ROWS.keys()


@pytest.mark.parametrize("text", ORDINARY)
def test_a_line_that_looks_like_a_fault_and_is_none_is_silent(tmp_path: Path, text: str) -> None:
    found = measured(tmp_path, text)
    assert findings(found) == []
    assert judge_items(CHECK, found).faults == ()


def test_ordinary_logs_of_many_machines_give_no_finding(tmp_path: Path) -> None:
    texts = compose_ordinary_log(random.Random(1), 12_000)  # noqa: S311 - no secret
    found = measured(tmp_path, *texts)
    assert findings(found) == []
    (read,) = (c.text for c in found if isinstance(c, Coverage))
    assert read.startswith("read 12000 kernel messages")


def sample(parsed: Iterable[tuple[object, Any]]) -> list[str]:
    """Give a text for each way through a pattern."""
    texts = [""]
    for kind, value in parsed:
        match str(kind):
            case "LITERAL":
                ways = [chr(value)]
            case "IN":
                ways = [pick(*value[0])]
            case "BRANCH":
                ways = [way for branch in value[1] for way in sample(branch)]
            case "SUBPATTERN":
                ways = sample(value[3])
            case "MAX_REPEAT" | "MIN_REPEAT":
                least, _, part = value
                ways = [way * max(least, 1) for way in sample(part)] + [""] * (not least)
            case "ANY":
                ways = ["x"]
            case "GROUPREF":
                ways = ["1"]
            case _:  # a place or a look ahead has no text
                ways = [""]
        texts = [text + way for text in texts for way in ways]
    return texts


def pick(kind: object, value: Any) -> str:
    """Give a character of a class."""
    match str(kind), str(value):
        case "LITERAL", _:
            return chr(value)
        case "RANGE", _:
            return chr(value[0])
        case _, "CATEGORY_DIGIT":
            return "1"
        case _, "CATEGORY_SPACE":
            return " "
        case _:
            return "x"


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_each_way_through_a_pattern_has_a_marker_of_its_row(row: lines.LineRow) -> None:
    lacking = [
        text
        for text in sample(re_parser.parse(row.pattern))
        if not any(marker in text for marker in row.markers)
    ]
    assert lacking[:3] == []


def test_the_table_is_sound() -> None:
    for row in ROWS.values():
        re.compile(row.pattern)
        assert row.kind in {
            *("cpu", "memory", "pcie", "nic", "gpu", "disk", "file system", "kernel"),
            *(JOB_KIND, "site"),
        }
        assert row.meaning
        assert row.source
        assert row.fix or row.verdict is Verdict.PASS
        assert row.verdict in (Verdict.PASS, Verdict.WARN, Verdict.FAIL)
        assert not row.conclusive or row.verdict is Verdict.FAIL
        assert row.lasting is (row.code in {other.ends for other in ROWS.values()})
        assert row.ends in ("", *ROWS)
        assert row.often is None or row.verdict is Verdict.PASS
        assert all(marker.isascii() and '"' not in marker for marker in row.markers)
        assert set(CHECK.finding_rules) > {row.code}


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_what_a_job_or_the_site_provokes_never_fails_a_node(row: lines.LineRow) -> None:
    if row.kind == JOB_KIND:
        assert (row.verdict, row.often) == (Verdict.PASS, None)
    if row.kind in ("site", "kernel"):
        assert row.verdict is not Verdict.FAIL


FOUND_AGAIN = {
    "mlx5_command_timeout": {"nic", "inventory"},
    "nic_firmware": {"nic", "inventory"},
    "nvme_no_path": {"storage", "host"},
    "disk_hardware_error": {"storage"},
    "disk_write_lost": {"storage"},
    "hba_fault": {"storage", "inventory"},
    "fs_journal_aborted": {"host"},
    "ext4_superblock": {"host"},
}
"""What a rerun can take back, and the checks that meet it again if it is still there."""


def test_what_no_check_would_meet_again_is_conclusive() -> None:
    """A rerun reads the log from where it ended: its silence is no acquittal."""
    soft = [row.code for row in ROWS.values() if row.verdict is Verdict.FAIL and not row.conclusive]
    assert soft == [code for code in ROWS if code in FOUND_AGAIN]


@pytest.mark.parametrize(
    ("text", "part_id"),
    [
        ("nvidia 0000:b3:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=x", "GPU-1"),
        ("mlx5_core 0000:5c:00.0: poll_health:1:(pid 0): Fatal error 3 detected", "mac-1"),
        ("mlx5_core 0000:5d:00.0: poll_health:1:(pid 0): Fatal error 3 detected", "0000:5d:00.0"),
        ("NETDEV WATCHDOG: ens1f0np0 (mlx5_core): transmit queue 3 timed out", "mac-1"),
        ("nvme nvme0: Disabling device after reset failure: -19", "wwn-1"),
        ("nvme nvme10: Disabling device after reset failure: -19", "wwn-10"),
        ("nvme nvme1: Disabling device after reset failure: -19", "nvme1"),
        ("nvme 10000:01:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=x", "wwn-3"),
        ("DMAR: [DMA Read NO_PASID] Request device [10000:01:00.0] fault addr 0x0 [fault", "wwn-3"),
        ("EXT4-fs (nvme0n1p2): Remounting filesystem read-only", "wwn-1"),
        ("EXT4-fs (sda1): Remounting filesystem read-only", "wwn-2"),
        ("Aborting journal on device nvme0n1p2-8.", "wwn-1"),
        ("JBD2: Detected IO errors while flushing file data on sda1-8", "wwn-2"),
        ("Aborting journal on device dm-0-8.", "dm-0"),
        ("EXT4-fs (sdaa1): Remounting filesystem read-only", "sdaa1"),
        (
            "EDAC MC0: 1 UE memory read error on CPU_SrcID#0_MC#0_Chan#1_DIMM#0 (channel:1)",
            "mc0/dimm2",
        ),
        ("EDAC MC0: 1 UE memory read error on CPU_SrcID#1_MC#0_Chan#1_DIMM#0 (channel:1)", "node"),
        ("EDAC MC0: 1 UE memory read error on CPU 2 DIMM 30 (page:0x1 offset:0x0)", "80CE03"),
        ("DMAR: [DMA Read NO_PASID] Request device [b3:00.0] fault addr 0x0 [fault", "GPU-1"),
        ("watchdog: BUG: soft lockup - CPU#4 stuck for 23s! [python3:77]", "node"),
    ],
)
def test_the_part_that_the_line_names_is_the_one_of_the_inventory(
    tmp_path: Path, text: str, part_id: str
) -> None:
    ((_, told),) = findings(measured(tmp_path, text))
    assert told == part_id


def record_of_firmware(number: int, severity: str, *lines: str) -> list[str]:
    head = (
        "Hardware error from APEI Generic Hardware Error Source: 4",
        f"event severity: {severity}",
        f" Error 0, type: {severity}",
    )
    return [f"{{{number}}}[Hardware Error]: {line}" for line in (*head, *lines)]


@pytest.mark.parametrize(
    ("lines_of_part", "part_id", "section"),
    [
        (("  section_type: PCIe error", "  device_id: 0000:b3:00.0"), "GPU-1", "PCIe error"),
        (("  section_type: PCIe error", "  device_id: 0000:77:00.0"), "0000:77:00.0", "PCIe error"),
        (
            ("  section_type: memory error", "  DIMM location: CPU_SrcID#0_MC#0_Chan#1_DIMM#0"),
            "mc0/dimm2",
            "memory error",
        ),
        (("  section_type: memory error", "  DIMM location: CPU 1 DIMM 5"), "node", "memory error"),
        (
            ("  section_type: memory error", "  DIMM location: not present. DMI handle: 0x0"),
            "node",
            "memory error",
        ),
    ],
)
def test_the_part_of_a_record_of_the_firmware_is_the_one_that_its_later_lines_name(
    tmp_path: Path, lines_of_part: Sequence[str], part_id: str, section: str
) -> None:
    """Where the firmware handles errors first, this is all that the kernel hears of one."""
    other = record_of_firmware(1, "corrected", "  section_type: general processor error")
    found = measured(tmp_path, *other, *record_of_firmware(2, "recoverable", *lines_of_part))
    told = [f for f in found if isinstance(f, Finding)]
    assert [(f.code, f.part_id) for f in told] == [
        ("ghes_corrected", "node"),
        ("ghes_recoverable", part_id),
    ]
    assert [f.evidence["section"] for f in told] == ["general processor error", section]
    assert all(line.strip().rstrip(".") in told[1].text for line in lines_of_part)


MULTI_BIT = "  error_type: 3, multi-bit ECC"
PORT = ("  section_type: PCIe error", "  port_type: 4, root port", "  device_id: 0000:b2:01.0")
END_POINT = (
    " Error 1, type: {severity}",
    "  section_type: PCIe error",
    "  port_type: 0, PCIe end point",
    "  device_id: 0000:b3:00.0",
)


@pytest.mark.parametrize(
    ("severity", "body", "code", "part_id"),
    [
        (
            "recoverable",
            (" fru_text: B2", "  section_type: memory error", MULTI_BIT),
            "ghes_memory_uncorrected",
            "80CE01",
        ),
        (
            "fatal",
            (
                "  section_type: memory error",
                "  error_type: 5, multi-symbol chipkill ECC",
                "  DIMM location: CPU 2 DIMM 30 ",
            ),
            "ghes_memory_uncorrected",
            "80CE03",
        ),
        (
            "recoverable",
            (
                "  section_type: memory error",
                "  error_type: 14, scrub uncorrected error",
                "  DIMM location: not present. DMI handle: 0x1102 ",
            ),
            "ghes_memory_uncorrected",
            "80CE02",
        ),
        (
            "recoverable",
            (" fru_text: Z9", "  section_type: memory error", MULTI_BIT),
            "ghes_memory_uncorrected",
            "node",
        ),
        (
            "recoverable",
            (" fru_text: B2", "  section_type: memory error", "  error_type: 2, single-bit ECC"),
            "ghes_recoverable",
            "80CE01",
        ),
        (
            "corrected",
            (" fru_text: B2", "  section_type: memory error", MULTI_BIT),
            "ghes_corrected",
            "80CE01",
        ),
        ("fatal", (*PORT, *END_POINT), "ghes_fatal", "GPU-1"),
        ("fatal", PORT, "ghes_fatal", "0000:b2:01.0"),
        (
            "fatal",
            (*(" Error 9, type: {severity}", *END_POINT[1:]), *(END_POINT[0], *PORT)),
            "ghes_fatal",
            "GPU-1",
        ),
        (
            "recoverable",
            ("  section_type: CXL Protocol Error", "  agent_address: 0000:b3:00.0"),
            "ghes_recoverable",
            "GPU-1",
        ),
    ],
)
def test_a_record_of_the_firmware_is_judged_by_its_section_and_names_the_part(
    tmp_path: Path, severity: str, body: Sequence[str], code: str, part_id: str
) -> None:
    """
    The forms are those of cper_print_mem, cper_print_pcie and cxl_cper_print_prot_err.

    The first record is that of matrixorigin/matrixone issue 20374, on a server of Dell.
    """
    lines_of_record = [line.format(severity=severity) for line in body]
    found = measured(tmp_path, *record_of_firmware(3, severity, *lines_of_record))
    ((told, part),) = findings(found)
    assert (told, part) == (code, part_id)


def test_each_dimm_of_a_record_is_named(tmp_path: Path) -> None:
    second = (" Error 1, type: corrected", " fru_text: Z9", "  section_type: memory error")
    body = (" fru_text: B2", "  section_type: memory error", MULTI_BIT, *second)
    found = measured(tmp_path, *record_of_firmware(3, "recoverable", *body))
    assert findings(found) == [("ghes_memory_uncorrected", "80CE01"), ("ghes_corrected", "node")]


INJECTIONS = (
    (
        "Injecting memory failure for pfn 0x3c0000 at process virtual address 0x7fe300000000",
        "Memory failure: 0x3c0000: recovery action for huge page: Recovered",
    ),
    (
        "Injecting memory failure for page 0x19d0 at 0xb7786000",
        "MCE 0x19d0: non LRU page recovery: Ignored",
    ),
    (
        "pcieport 0000:b2:01.0: aer_inject: Injecting errors 00000000/4 into device 0000:b3:00.0",
        "nvidia 0000:b3:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=x",
    ),
    (
        "mce: Triggering MCE exception on CPU 3",
        "mce: [Hardware Error]: CPU 3: Machine Check Exception: 5 Bank 4: be00000000800400",
    ),
)


@pytest.mark.parametrize(("announced", "effect"), INJECTIONS)
def test_an_error_that_a_tester_injected_accuses_no_part(
    tmp_path: Path, announced: str, effect: str
) -> None:
    """mm/hwpoison-inject.c, mm/madvise.c; pci/pcie/aer_inject.c; x86/kernel/cpu/mce/inject.c."""
    assert findings(measured(tmp_path, announced, effect)) == []
    assert len(findings(measured(tmp_path, effect))) == 1
    late = [announced, *["an ordinary line"] * 30, effect]
    assert len(findings(measured(tmp_path, *late))) == 1


def test_what_was_told_once_is_not_told_again_and_does_not_fail_again(tmp_path: Path) -> None:
    text = "nvme nvme0: Disabling device after reset failure: -19"
    first = measured(tmp_path, text)
    assert judge_items(CHECK, first).verdict is Verdict.FAIL

    again = measured(tmp_path, text, carry_overs=marks(first))
    assert findings(again) == [("kernel_standing", "wwn-1")]
    assert judge_items(CHECK, again).verdict is Verdict.WARN

    reset = tuple(mark for mark in marks(first) if mark.name != "standing")
    assert findings(measured(tmp_path, text, carry_overs=reset)) == []


def test_a_log_that_cannot_be_read_forgets_no_mark(tmp_path: Path) -> None:
    dumped(tmp_path)
    first = marks(measured(tmp_path, "nvme nvme0: Disabling device after reset failure: -19"))
    assert {mark.name for mark in first} == {"cursor", "pstore", "standing"}

    kept: list[CheckItem] = []
    ctx = make_context(tmp_path, inventory=BOARD, carry_overs=first)
    with pytest.raises(Unable):
        kept.extend(kernel_log.read_log(ctx, tmp_path / "elsewhere"))
    assert tuple(kept) == first


def test_what_was_conclusive_stays_so_while_it_stands(tmp_path: Path) -> None:
    for text, code in (
        ("nvme nvme0: Disabling device after reset failure: -19", "kernel_standing"),
        ("Aborting journal on device nvme0n1p2-8.", "kernel_event_standing"),
    ):
        again = measured(tmp_path, text, carry_overs=marks(measured(tmp_path, text)))
        assert findings(again) == [(code, "wwn-1")]
        assert CHECK.finding_rules[code].conclusive is (code == "kernel_standing")


def test_the_full_stop_of_the_kernel_does_not_stand_before_our_fix(tmp_path: Path) -> None:
    found = measured(tmp_path, "INFO: task pytest:23 blocked for more than 120 seconds.")
    (finding,) = (f for f in found if isinstance(f, Finding))
    assert "for more than 120 seconds: look at" in finding.text
    assert finding.evidence["line"].endswith("seconds.")


def test_many_like_lines_are_one_finding_with_count_and_span(tmp_path: Path) -> None:
    text = "nvme nvme0: I/O {} QID 3 timeout, aborting"
    found = measured(tmp_path, *(text.format(i) for i in range(4000)))
    (finding,) = (f for f in found if isinstance(f, Finding))
    assert finding.evidence["count"] == "4000"
    assert finding.evidence["first"] == format_moment(BOOTED)
    assert finding.evidence["last"] == format_moment(BOOTED + 3999)
    assert "4000 lines" in finding.text
    assert [m.value for m in found if isinstance(m, Measurement)] == [4000.0]


@pytest.mark.parametrize(("count", "verdict"), [(9, Verdict.PASS), (10, Verdict.WARN)])
def test_corrected_errors_are_listed_until_they_are_many(
    tmp_path: Path, count: int, verdict: Verdict
) -> None:
    text = "EDAC MC0: 1 CE memory read error on DIMM_A1 (channel:0 slot:0 page:0x1 offset:0x0)"
    found = measured(tmp_path, *[text] * count)
    assert judge_items(CHECK, found).verdict is verdict
    suffix = OFTEN_SUFFIX if verdict is Verdict.WARN else ""
    assert findings(found) == [(f"edac_corrected{suffix}", "node")]


@pytest.mark.parametrize(
    ("text", "code", "part_id"),
    [
        ("EDAC MC0: 128 CE memory read error on DIMM_B2 (channel:0)", "edac_corrected", "80CE01"),
        (
            "amdgpu 0000:b3:00.0: amdgpu: 5000 correctable hardware errors detected in umc block",
            "amdgpu_corrected",
            "GPU-1",
        ),
        ("mce_notify_irq: 41 callbacks suppressed", "mce_logged", "node"),
        ("EDAC DEVICE0: CE: cpu instance: cpu3 block: L2 count: 30 'x'", "mce_corrected", "node"),
        (
            "mce: 30 correctable hardware errors detected in total in mc0 block on CPU1",
            "mce_corrected",
            "node",
        ),
    ],
)
def test_the_errors_that_one_line_counts_are_counted(
    tmp_path: Path, text: str, code: str, part_id: str
) -> None:
    found = measured(tmp_path, text, text)
    number = next(int(n) for n in re.findall(r"\d+", text.partition(": ")[2]) if int(n) > 10)
    (finding,) = (f for f in found if isinstance(f, Finding))
    assert (finding.code, finding.part_id) == (f"{code}{OFTEN_SUFFIX}", part_id)
    assert finding.evidence["count"] == str(2 * number)
    assert f"{2 * number} errors in 2 lines" in finding.text
    assert judge_items(CHECK, found).verdict is Verdict.WARN


PACKET = "IN= OUT=lo SRC=10.0.0.1 DST=10.0.0.2 LEN=84"


def test_a_user_can_neither_name_the_part_of_a_record_nor_hide_an_error(tmp_path: Path) -> None:
    """With net.netfilter.nf_log_all_netns, users write the prefix of packets that are logged."""
    body = ("  section_type: memory error", MULTI_BIT)
    record = record_of_firmware(3, "recoverable", *body)
    forged = f"{{3}}[Hardware Error]: DIMM location: CPU 2 DIMM 30 {PACKET}"
    assert findings(measured(tmp_path, *record, forged)) == [("ghes_memory_uncorrected", "node")]

    (_, effect), *_ = INJECTIONS
    announced = f"Injecting memory failure for pfn 0x3c0000 {PACKET}"
    assert findings(measured(tmp_path, announced, effect)) == [("memory_failure", "node")]


LOST = "nfs: server home not responding, still trying"
BACK = "nfs: server home OK"


@pytest.mark.parametrize(
    ("texts", "verdict"),
    [
        ((LOST, BACK), Verdict.PASS),
        ((LOST, BACK, LOST), Verdict.WARN),
        ((LOST, "nfs: server scratch OK"), Verdict.WARN),
        ((LOST, LOST.replace("home", "scratch"), BACK), Verdict.WARN),
        ((BACK,), Verdict.PASS),
    ],
)
def test_a_server_that_answers_again_is_only_listed(
    tmp_path: Path, texts: Sequence[str], verdict: Verdict
) -> None:
    found = measured(tmp_path, *texts)
    assert judge_items(CHECK, found).verdict is verdict
    codes = {LOST: "nfs_not_responding", BACK: ""}
    if verdict is Verdict.PASS and len(texts) > 1:
        assert findings(found) == [(codes[LOST] + OVER_SUFFIX, "node")]


def test_each_check_has_a_mark_of_its_own_in_the_one_reading(tmp_path: Path) -> None:
    fault = "nvme nvme0: Disabling device after reset failure: -19"
    root = ring(tmp_path, record(0, fault), record(1, logs.xid(79)))
    ctx = make_context(tmp_path, inventory=BOARD)
    mine, theirs = list(kernel_log.read_log(ctx, root)), list(xid.read_log(ctx, root))
    assert findings(mine) == [("nvme_dead", "wwn-1")]
    assert findings(theirs) == [("xid_79", "GPU-1")]

    later = make_context(tmp_path, inventory=BOARD, carry_overs=marks(mine)[-2:])
    behind = record(2, fault.replace("nvme0", "nvme10"))
    ring(tmp_path, record(0, fault), record(1, logs.xid(79)), behind)
    assert findings(kernel_log.read_log(later, root)) == [("nvme_dead", "wwn-10")]


def test_what_others_wrote_to_the_log_is_no_word_of_the_kernel(tmp_path: Path) -> None:
    text = "nvme nvme0: Disabling device after reset failure: -19"
    root = ring(tmp_path, record(0, "Linux version 6.8"), record(1, text, priority=8 + 3))
    ctx = make_context(tmp_path, inventory=BOARD)
    assert findings(kernel_log.read_log(ctx, root)) == []


def test_what_was_logged_long_before_the_first_run_is_listed(tmp_path: Path) -> None:
    root = ring(tmp_path, record(0, "nvme nvme0: Disabling device after reset failure: -19"))
    trees.grow(root, {"proc/stat": f"btime {int(time.time()) - 2 * 86400}"})
    found = list(kernel_log.read_log(make_context(tmp_path, inventory=BOARD), root))
    assert findings(found) == [("before_first_run", "node")]
    assert judge_items(CHECK, found).faults == ()


def test_a_gap_in_the_log_warns(tmp_path: Path) -> None:
    seen = marks(measured(tmp_path, "x"))
    ctx = make_context(tmp_path, inventory=BOARD, carry_overs=seen)
    found = list(kernel_log.read_log(ctx, ring(tmp_path, record(900, "x"))))
    assert findings(found) == [("log_gap", "node")]
    assert judge_items(CHECK, found).verdict is Verdict.WARN


def test_a_log_that_nobody_may_read_is_skipped_and_says_how_to(tmp_path: Path) -> None:
    with pytest.raises(Skip, match="run as root") as skip:
        list(kernel_log.read_log(make_context(tmp_path), tmp_path))
    assert skip.value.cause is Cause.NOT_OBSERVABLE


def test_a_log_that_could_be_read_before_is_an_error_and_keeps_its_place(tmp_path: Path) -> None:
    seen = [mark for mark in marks(measured(tmp_path, "x")) if mark.name == "cursor"]
    reading = kernel_log.read_log(
        make_context(tmp_path, carry_overs=tuple(seen)), tmp_path / "elsewhere"
    )
    assert next(reading) == seen[0]
    with pytest.raises(Unable, match="run as root") as unable:
        next(reading)
    assert unable.value.cause is Cause.DENIED


DUMP = """\
Panic#1 Part1
<6>[   13.826897] RAPL PMU: API unit is 2^-32 Joules, 1 fixed counters, 163840 ms ovfl timer
<6>[   13.832973] nvme nvme0: Disabling device after reset failure: -19
<0>[  201.654822] mce: [Hardware Error]: CPU 2: Machine Check Exception: 5 Bank 0: b200000000070005
<0>[  201.670809][ T1234] Kernel panic - not syncing: Fatal machine check
"""


def dumped(root: Path, text: str = DUMP, age_s: float = 60, folder: str = "sys/fs/pstore") -> None:
    trees.grow(root, {f"{folder}/dmesg-erst-7530486857247752193": text})
    when = time.time() - age_s
    os.utime(root / folder / "dmesg-erst-7530486857247752193", (when, when))


@pytest.mark.parametrize("folder", ["sys/fs/pstore", "var/lib/systemd/pstore/1753325017"])
def test_the_last_words_of_a_kernel_that_panicked_are_read_once(
    tmp_path: Path, folder: str
) -> None:
    dumped(tmp_path, folder=folder)
    found = measured(tmp_path, "Linux version 6.8")
    assert findings(found) == [("mce_uncorrected", "node"), ("panic_hardware", "node")]
    judgement = judge_items(CHECK, found)
    assert (judgement.verdict, judgement.remedy) == (Verdict.FAIL, Remedy.CONTACT_VENDOR)

    seen = tuple(mark for mark in marks(found) if mark.name != "standing")
    assert findings(measured(tmp_path, "Linux version 6.8", carry_overs=seen)) == []


def test_a_panic_that_no_hardware_caused_warns(tmp_path: Path) -> None:
    dumped(tmp_path, "Panic#1 Part1\n<0>[ 1.0] Kernel panic - not syncing: sysrq triggered crash\n")
    found = measured(tmp_path, "Linux version 6.8")
    assert findings(found) == [("panic", "node")]
    assert judge_items(CHECK, found).verdict is Verdict.WARN


def test_a_panic_of_long_before_the_first_run_is_not_told(tmp_path: Path) -> None:
    dumped(tmp_path, age_s=2 * 86400)
    assert findings(measured(tmp_path, "Linux version 6.8")) == []


def test_a_machine_without_pstore_has_no_dumps(tmp_path: Path) -> None:
    assert pstore.read_dumps(tmp_path, None, 7.0) == ([], "")


@pytest.mark.parametrize("age_s", [-1e9, 60, 1e9])
def test_a_dump_is_read_once_whatever_the_clock_said_as_the_machine_died(
    tmp_path: Path, age_s: float
) -> None:
    """A mark with the latest time would hide all dumps behind one from the future."""
    seen = marks(measured(tmp_path, "Linux version 6.8"))
    dumped(tmp_path, age_s=age_s)
    found = measured(tmp_path, "Linux version 6.8", carry_overs=seen)
    assert findings(found) == [("mce_uncorrected", "node"), ("panic_hardware", "node")]

    seen = tuple(mark for mark in marks(found) if mark.name != "standing")
    assert findings(measured(tmp_path, "Linux version 6.8", carry_overs=seen)) == []

    dumped(tmp_path, age_s=30, folder="var/lib/systemd/pstore/1753325018")
    found = measured(tmp_path, "Linux version 6.8", carry_overs=seen)
    assert findings(found) == [("mce_uncorrected", "node"), ("panic_hardware", "node")]


def test_what_was_told_before_the_crash_is_not_told_of_the_dump_again(tmp_path: Path) -> None:
    lockup = "watchdog: BUG: soft lockup - CPU#4 stuck for 23s! [python3:77]"
    lines = (f"<0>[  100.0] {lockup}", "<0>[  900.0] Kernel panic - not syncing: x")
    dumped(tmp_path, "\n".join(("Panic#1 Part1", *lines)), age_s=60)
    seen = (CarryOver("cursor", f"other {time.time() - 300} ring "), CarryOver("pstore", ""))
    found = measured(tmp_path, "Linux version 6.8", carry_overs=seen)
    assert findings(found) == [("panic", "node")]

    seen = (CarryOver("cursor", f"other {time.time() - 3000} ring "), CarryOver("pstore", ""))
    found = measured(tmp_path, "Linux version 6.8", carry_overs=seen)
    assert findings(found) == [("soft_lockup", "node"), ("panic", "node")]


def test_a_panic_that_both_the_log_and_a_dump_have_counts_once(tmp_path: Path) -> None:
    dumped(tmp_path)
    found = measured(tmp_path, "Kernel panic - not syncing: Fatal machine check")
    counts = {f.code: f.evidence["count"] for f in found if isinstance(f, Finding)}
    assert counts == {"mce_uncorrected": "1", "panic_hardware": "1"}


def on_this_machine(ctx: Context) -> list[CheckItem] | Cause:
    """Run the whole check on the machine that runs the tests."""
    try:
        return list(CHECK.measure(ctx, CHECK.params()))
    except Skip as skip:
        return skip.cause


def test_this_machine_has_a_log_or_the_check_is_skipped(tmp_path: Path) -> None:
    match on_this_machine(make_context(tmp_path)):
        case Cause() as cause:
            assert cause is Cause.NOT_OBSERVABLE
        case found:
            again = on_this_machine(make_context(tmp_path, carry_overs=marks(found)))
            assert not isinstance(again, Cause)
            assert {"cursor", "pstore"} <= {mark.name for mark in marks(again)}


@pytest.mark.parametrize(
    "value", ["", "b1", "b1 nan x", "b1 1e999 x", "b1 -inf x", "b1 1e15 x", "b1 x x", "b1 1 2 3 4"]
)
def test_a_mark_that_is_none_of_ours_stands_for_nothing(tmp_path: Path, value: str) -> None:
    spoilt = (CarryOver("standing", value, "wwn-1"), CarryOver("cursor", value))
    for check in (kernel_log, xid):
        ctx = make_context(tmp_path, inventory=BOARD, carry_overs=spoilt)
        found = list(check.read_log(ctx, ring(tmp_path, record(0, "x"))))
        assert [f for f in findings(found) if "standing" in f[0]] == []


LOST_DISKS = (
    ("sd 3:0:0:1: [sdc] rejecting I/O to offline device", "sdc"),
    ("Buffer I/O error on dev sdc1, logical block 12, lost async page write", "sdc"),
    ("critical medium error, dev sdc, sector 2048 op 0x0:(READ)", "sdc"),
    ("nvme nvme1: Removing after reset failure", "nvme1n1"),
    ("block nvme1n1: no available path - failing I/O", "nvme1n1"),
)


@pytest.mark.parametrize(("text", "label"), LOST_DISKS)
@pytest.mark.parametrize("is_gone", [False, True])
def test_a_disk_of_another_machine_fails_no_node(
    tmp_path: Path, text: str, label: str, *, is_gone: bool
) -> None:
    """As when its server was rebooted; one that is gone is known by the last run."""

    def judge(**facts: str) -> Any:
        known = Inventory(parts=(*BOARD.parts, Part("disk", "id", label, facts)))
        now = {"inventory": BOARD, "previous": known} if is_gone else {"inventory": known}
        return judge_items(CHECK, measured(tmp_path, text, **now))

    local, remote = judge(), judge(network="iSCSI")
    assert (local.verdict, remote.verdict) == (Verdict.FAIL, Verdict.WARN)
    assert "reached by iSCSI" in remote.reason
    assert not CHECK.finding_rules[kernel_log.OUTSIDE].conclusive


def test_a_path_of_several_to_a_drive_is_that_drive(tmp_path: Path) -> None:
    """The kernel names the path where a read fails: nvme0c3n1 is one to nvme0n1."""
    lines = "nvme{}c3n1: Read(0x2) @ LBA 8, 8 blocks, Unrecovered Read Error (sct 0x2 / sc 0x81)"
    assert findings(measured(tmp_path, lines.format(0))) == [("nvme_media_error", "wwn-1")]

    far = Inventory(parts=(*BOARD.parts, Part("disk", "id", "nvme1n1", {"network": "tcp"})))
    found = measured(tmp_path, lines.format(1), inventory=far)
    assert findings(found) == [(kernel_log.OUTSIDE, "id")]


@pytest.mark.parametrize(
    ("transport", "verdict"),
    [("tcp", Verdict.WARN), ("rdma", Verdict.WARN), ("pcie", Verdict.FAIL)],
)
def test_a_second_controller_to_a_disk_of_another_machine_fails_no_node(
    tmp_path: Path, transport: str, verdict: Verdict
) -> None:
    """Only the first gives the disk its number."""
    trees.grow(tmp_path, {"sys/class/nvme/nvme2/transport": transport})
    text = "nvme nvme2: Device not ready; aborting initialisation, CSTS=0x0"
    assert judge_items(CHECK, measured(tmp_path, text)).verdict is verdict


@pytest.mark.parametrize(
    ("file", "verdict"), [("md/array_state", Verdict.FAIL), ("loop/backing_file", Verdict.WARN)]
)
def test_an_array_that_lost_all_its_disks_is_a_part_of_the_node(
    tmp_path: Path, file: str, verdict: Verdict
) -> None:
    """Nothing below it says where it was; an image in a file is known to be one."""
    volume = "sys/devices/virtual/block/md0"
    trees.grow(tmp_path, {f"{volume}/dev": "9:0", f"{volume}/{file}": "x"})
    for place in ("sys/class/block/md0", "sys/block/md0", "sys/dev/block/9:0"):
        trees.link(tmp_path, place, volume)
    text = "Buffer I/O error on dev md0, logical block 12, lost async page write"
    assert judge_items(CHECK, measured(tmp_path, text)).verdict is verdict


@pytest.mark.parametrize(
    ("place", "verdict"),
    [
        ("pci0/usb1/1-2/host6", Verdict.WARN),
        ("platform/host3/session1/target3:0:0", Verdict.WARN),
        ("pci0/host0", Verdict.FAIL),
    ],
)
def test_what_is_mapped_onto_disks_is_where_they_are(
    tmp_path: Path, place: str, verdict: Verdict
) -> None:
    disk, volume = f"sys/devices/{place}/block/sdx", "sys/devices/virtual/block/dm-3"
    trees.grow(tmp_path, {f"{disk}/dev": "8:48", f"{volume}/dev": "252:3"})
    trees.link(tmp_path, f"{disk}/device", f"sys/devices/{place}")
    trees.link(tmp_path, f"{volume}/slaves/sdx", disk)
    for name, folder in (("sdx", disk), ("dm-3", volume)):
        trees.link(tmp_path, f"sys/class/block/{name}", folder)
        trees.link(tmp_path, f"sys/block/{name}", folder)
    for number, folder in (("8:48", disk), ("252:3", volume)):
        trees.link(tmp_path, f"sys/dev/block/{number}", folder)
    for name in ("sdx", "dm-3"):
        text = f"Buffer I/O error on dev {name}, logical block 12, lost async page write"
        assert judge_items(CHECK, measured(tmp_path, text)).verdict is verdict
