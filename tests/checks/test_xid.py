"""Xids and SXids: what each one means, what is new, and whose fault it was."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from hpcverify.check import Context, Sample, Skip, Unable, Watch
from hpcverify.limits.specs import Spec, load_specs
from hpcverify.model import (
    CarryOver,
    Cause,
    CheckItem,
    Finding,
    Inventory,
    Measurement,
    Part,
    Remedy,
    Verdict,
)
from hpcverify.telemetry import kernel_log
from hpcverify.telemetry.kernel_log import KernelMessage, format_moment
from hpcverify.testing import judge_items, make_context
from hpcverify_checks import recovery as recovery_check
from hpcverify_checks import xid
from hpcverify_checks.node.kernel_log import PartFailure
from hpcverify_checks.xid import CHECK
from hpcverify_checks.xid import lines as kernel_lines
from hpcverify_checks.xid.lines import REPEATED_SUFFIX, ROWS, UNDER_LOAD_SUFFIX, XidRow, find_row
from tests.telemetry import test_kernel_log as logs
from tests.telemetry import trees
from tests.telemetry.test_kernel_log import record

BOOTED = int(time.time()) - 7200
"""Today, as the check goes by the clock: a first run takes one day for new."""
ADDRESSES = ("0000:18:00.0", "0000:b3:00.0")
BOARD = Inventory(
    parts=tuple(
        Part("gpu", f"GPU-{i}", f"GPU {i}", {"pci_address": a, "driver": "580.82.07"})
        for i, a in enumerate(ADDRESSES)
    )
)

HEALTHY = """\
Linux version 6.8.0-79-generic (buildd@lcy02) #79-Ubuntu SMP PREEMPT_DYNAMIC
nvidia-nvlink: Nvlink Core is being initialized, major device number 234
nvidia-nvswitch3: Driver is loaded successfully
nvidia 0000:18:00.0: enabling device (0140 -> 0142)
NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.82.07  Release Build
NVRM: GPU at PCI:0000:b3:00: GPU-b850f46d-d5ea-c752-ddf3-c4453e44d3f7
nvidia-modeset: Loading NVIDIA UNIX Open Kernel Mode Setting Driver 580.82.07
[drm] [nvidia-drm] [GPU ID 0x00001800] Loading driver
nvidia-uvm: Loaded the UVM driver, major device number 511.
NVRM: GPU0 nvAssertOkFailedNoLog: Assertion failed: Invalid data
nfs: server Xid (0x4f2a91c3) retransmitted: 79 times, waiting
RPC: Xid (PCI:0000:b3:00): 79, a reply that nobody waits for
mlx5_core 0000:b3:00.1: Xid (79) of the request has fallen off the list
usb 1-1: GPU 0000:b3:00.0: GPU has fallen off the bus.
NVRM: The NVIDIA GPU 0000:b3:00.0 (PCI ID: 10de:2330)
NVRM: installed in this system is not supported by open
EXT4-fs (nvme0n1p2): re-mounted; user said: NVRM: Xid (PCI:0000:b3:00): 79
pcieport 0000:00:01.0: AER: Correctable error message received from 0000:18:00.0
""".splitlines()
"""What drivers write when all is well, and lines of others that look alike."""

FATAL = "NETIR_LINK_EVT  Fatal   XC0 i0 Link 07 (0x021425c6 0x00000000 0x0 0x0 0x0 0x0)"


def ring(root: Path, *records: str) -> Path:
    stat = {"proc/stat": f"btime {BOOTED}"}
    return trees.grow(logs.ring(root, *records), stat)


def line(number: int, rest: str = "pid=7, name=python3, text", at: str = "b3") -> str:
    return f"NVRM: Xid (PCI:0000:{at}:00): {number}, {rest}"


def recovery(number: int, words: str) -> str:
    return line(154, f"GPU recovery action changed from 0x0 (None) to {number:#x} ({words})")


def measured(tmp_path: Path, *texts: str, step_s: int = 1, **changes: object) -> list[CheckItem]:
    """Run the check over a log in which *texts* come *step_s* apart."""
    records = (record(i, t) for i, t in enumerate(spread(texts, step_s)))
    ctx = make_context(tmp_path, **{"inventory": BOARD, **changes})
    return list(xid.read_log(ctx, ring(tmp_path, *records)))


def spread(texts: Iterable[str], step_s: int) -> Iterable[str]:
    """Put others' messages in between: `record` gives each one second."""
    for text in texts:
        yield text
        yield from ["usb 1-1: new device"] * (step_s - 1)


def findings(found: Iterable[CheckItem]) -> list[tuple[str, str]]:
    return [(f.code, f.part_id) for f in found if isinstance(f, Finding)]


def counts(found: Iterable[CheckItem]) -> dict[str, float | None]:
    return {f.part_id: f.value for f in found if isinstance(f, Measurement)}


def cursor(found: Iterable[CheckItem]) -> CarryOver:
    (mark,) = (f for f in found if isinstance(f, CarryOver) and f.name == "cursor")
    return mark


def example_of(row: XidRow) -> str:
    """Write a line that *row* is about, by the columns of the table alone."""
    number, when = row.xid or 0, row.when[:1]
    if number == 154:
        return recovery(int(when[0]) if when else 0x77, "words that change")
    if not when or number not in range(144, 151):
        return line(number)
    unit, _, rest = when[0].partition(" ")
    if not rest:
        return line(number, f"SOME_UNIT {unit} XC0 i0 Link 03 (0x1 0x0 0x0 0x0)")
    status = int(rest, 16)
    return line(number, f"{unit} Nonfatal XC0 i0 Link 03 (0x1 {status:#010x} 0x0 0x0)")


XIDS = [row for row in ROWS.values() if row.xid is not None]


@pytest.mark.parametrize("row", XIDS, ids=[row.code for row in XIDS])
def test_each_xid_gives_the_verdict_and_remedy_of_its_row(tmp_path: Path, row: XidRow) -> None:
    found = measured(tmp_path, *HEALTHY, example_of(row))
    assert findings(found) == [(row.code, "GPU-1")]
    judgement = judge_items(CHECK, found)
    assert judgement.verdict is row.verdict
    if judgement.verdict is not Verdict.PASS:
        assert judgement.remedy is row.remedy
        assert judgement.reason.startswith(f"GPU-1: {row.meaning}")
    assert judge_items(CHECK, measured(tmp_path, *HEALTHY)).verdict is Verdict.PASS


def test_the_table_is_sound() -> None:
    kinds = {row.kind for row in ROWS.values()}
    assert kinds == {"app", "context", "gpu", "driver"}
    for row in ROWS.values():
        assert row.meaning
        assert row.source
        passes = row.kind in ("context", "app")
        assert (row.verdict is Verdict.PASS) == passes, row.code
        assert (row.remedy is Remedy.NONE) == (row.kind == "context"), row.code
        assert row.verdict is not Verdict.FAIL or row.kind == "gpu", row.code
        assert row.conclusive is (row.verdict is Verdict.FAIL), row.code
        assert row.xid is None or row.mnemonic
        assert row.pattern == "" or (row.xid, row.when) == (None, ()), row.code
        assert set(CHECK.finding_rules) > {row.code}


def test_no_two_rows_speak_for_the_same_line() -> None:
    signs = [(row.xid, sign) for row in ROWS.values() for sign in row.when]
    assert len(set(signs)) == len(signs)


@pytest.mark.parametrize("spec", load_specs(), ids=[spec.key for spec in load_specs()])
def test_a_healthy_log_passes_on_every_part(tmp_path: Path, spec: Spec) -> None:
    facts = {"name": spec.name, "pci_device_id": spec.pci_device_ids[0]}
    parts = [Part("gpu", p.id, spec.name, p.facts | facts) for p in BOARD.parts]
    for seed in range(3):
        texts = random.Random(seed).sample(HEALTHY, len(HEALTHY))  # noqa: S311 - no secret
        found = measured(tmp_path, *texts, inventory=Inventory(parts=tuple(parts)))
        assert judge_items(CHECK, found).faults == ()
        assert counts(found) == {"GPU-0": 0, "GPU-1": 0}


@given(st.integers(0, 2**20))
def test_a_code_that_nobody_knows_is_never_silent(number: int) -> None:
    (event,) = kernel_lines.read_events([KernelMessage(line(number), None, "0")])
    known = f"xid_{number}" in ROWS
    assert event.row.code == (f"xid_{number}" if known else "xid_unknown")


@given(st.text(st.characters(exclude_characters="\n"), max_size=60))
def test_a_line_that_cannot_be_read_is_never_silent(rest: str) -> None:
    text = f"NVRM: Xid (PCI:0000:b3:00{rest}"
    (event,) = kernel_lines.read_events([KernelMessage(text, None, "0")])
    assert event.row.code.startswith("xid_")


def test_an_unknown_code_warns_and_says_so(tmp_path: Path) -> None:
    judgement = judge_items(CHECK, measured(tmp_path, line(9999)))
    assert (judgement.verdict, judgement.remedy) == (Verdict.WARN, Remedy.INSPECT)
    assert "does not have" in judgement.reason
    assert "9999" in judgement.reason


@pytest.mark.parametrize(
    ("place", "part_id"),
    [
        ("PCI:0000:b3:00", "GPU-1"),
        ("PCI:0000:b3:00.0", "GPU-1"),
        ("0000:B3:00", "GPU-1"),
        ("PCI:00000000:B3:00", "GPU-1"),
        ("PCI:0000:b3:00 GPU-I:05", "GPU-1"),
        ("PCI:0000:18:00", "GPU-0"),
        ("PCI:0009:01:00", "0009:01:00.0"),
    ],
)
def test_an_address_is_turned_into_the_part(tmp_path: Path, place: str, part_id: str) -> None:
    found = measured(tmp_path, f"NVRM: Xid ({place}): 79, GPU has fallen off the bus.")
    assert findings(found) == [("xid_79", part_id)]
    assert counts(found)[part_id] == 1


THREE_LINES = (
    "NVRM: The NVIDIA GPU 0000:b3:00.0",
    "NVRM: (PCI ID: 10de:26b5) installed in this system has",
    "NVRM: fallen off the bus and is not responding to commands.",
)
"""From NVIDIA/NVSentinel issue 155, with driver 570.158.01."""
LOSSES = (
    ("NVRM: GPU 0000:b3:00.0: GPU has fallen off the bus.",),
    ("NVRM: GPU at 0000:b3:00.0 has fallen off the bus.",),
    (r"\x0a".join(THREE_LINES),),
    ("#012".join(THREE_LINES),),
    THREE_LINES,
)


@pytest.mark.parametrize("texts", LOSSES)
def test_a_gpu_that_fell_off_the_bus_without_an_xid_fails_hard_and_is_named(
    tmp_path: Path, texts: tuple[str, ...]
) -> None:
    found = measured(tmp_path, *texts)

    assert findings(found) == [("xid_79", "GPU-1")]
    assert counts(found) == {"GPU-0": 0, "GPU-1": 1}
    judgement = judge_items(CHECK, found)
    assert (judgement.verdict, judgement.remedy) == (Verdict.FAIL, Remedy.REBOOT)
    assert CHECK.finding_rules["xid_79"].conclusive
    (lost,) = (f for f in found if isinstance(f, Finding))
    assert "fallen off the bus" in lost.evidence["line"]
    assert "0000:b3:00.0" in lost.evidence["line"]


@pytest.mark.parametrize("texts", LOSSES)
def test_a_loss_that_an_xid_tells_of_as_well_counts_once(
    tmp_path: Path, texts: tuple[str, ...]
) -> None:
    xid_line = line(79, "pid=7, name=python3, GPU has fallen off the bus.")
    for number, several in enumerate([(xid_line, *texts), (*texts, xid_line)]):
        (root := tmp_path / str(number)).mkdir()
        found = measured(root, *several)
        assert findings(found) == [("xid_79", "GPU-1")]
        assert counts(found)["GPU-1"] == 1


def test_the_loss_of_another_gpu_is_not_hidden_by_an_xid(tmp_path: Path) -> None:
    found = measured(tmp_path, line(79, at="18"), LOSSES[0][0])

    assert findings(found) == [("xid_79", "GPU-0"), ("xid_79", "GPU-1")]


def test_a_loss_whose_first_line_is_gone_is_the_nodes(tmp_path: Path) -> None:
    assert findings(measured(tmp_path, THREE_LINES[2])) == [("xid_79", "node")]


def test_a_gpu_of_the_last_run_that_is_gone_keeps_its_name(tmp_path: Path) -> None:
    rest = Inventory(parts=BOARD.parts[:1])
    found = measured(tmp_path, line(79), inventory=rest, previous=BOARD)
    assert findings(found) == [("xid_79", "GPU-1")]
    judgement = judge_items(CHECK, found)
    assert (judgement.verdict, judgement.remedy) == (Verdict.FAIL, Remedy.REBOOT)


def test_equal_errors_are_told_once_with_their_number(tmp_path: Path) -> None:
    found = measured(tmp_path, *[line(63, f"row {i}") for i in range(40)])
    (told,) = (f for f in found if isinstance(f, Finding))
    assert "(40 times)" in told.text
    assert told.evidence["count"] == "40"
    assert told.evidence["line"] == line(63, "row 0")
    assert told.evidence["first"] < told.evidence["last"]
    assert "gpud" in told.evidence["disagreement"]


@pytest.mark.parametrize(
    ("number", "words", "verdict", "remedy"),
    [
        (0, "None", Verdict.PASS, Remedy.NONE),
        (1, "GPU Reset Required", Verdict.FAIL, Remedy.RESET_GPU),
        (1, "PF FLR", Verdict.FAIL, Remedy.RESET_GPU),
        (2, "Node Reboot Required", Verdict.FAIL, Remedy.REBOOT),
        (2, "OS Reboot", Verdict.FAIL, Remedy.REBOOT),
        (3, "Drain P2P", Verdict.WARN, Remedy.INSPECT),
        (4, "Drain and Reset", Verdict.FAIL, Remedy.RESET_GPU),
        (5, "Recover IMEX Domain", Verdict.WARN, Remedy.FIX_CONFIGURATION),
        (12, "Something New", Verdict.WARN, Remedy.INSPECT),
    ],
)
def test_the_drivers_own_advice_is_followed(
    tmp_path: Path, number: int, words: str, verdict: Verdict, remedy: Remedy
) -> None:
    judgement = judge_items(CHECK, measured(tmp_path, recovery(number, words)))
    assert (judgement.verdict, judgement.remedy) == (verdict, remedy)


@pytest.mark.parametrize("action", recovery_check.RECOVERY_ACTIONS)
def test_the_drivers_advice_means_the_same_in_the_log_and_over_nvml(action: str) -> None:
    _, ruling = recovery_check.RECOVERY_ACTIONS[action]
    assert CHECK.finding_rules[f"xid_154_{action}"] == ruling


def test_no_advice_in_the_log_is_unknown_over_nvml() -> None:
    in_log = {r.code.removeprefix("xid_154_") for r in ROWS.values() if r.xid == 154}
    assert in_log == {"xid_154", "none", *recovery_check.RECOVERY_ACTIONS}


def test_only_the_last_advice_on_a_gpu_holds(tmp_path: Path) -> None:
    done = line(154, "GPU recovery action changed from 0x1 (PF FLR) to 0x0 (None)")
    found = measured(tmp_path, recovery(1, "PF FLR"), done)
    assert findings(found) == [("xid_154_none", "GPU-1")]


@pytest.mark.parametrize(
    ("number", "rest", "code"),
    [
        (149, FATAL, "xid_149_fatal"),
        (149, FATAL.replace("021425c6", "026001c6"), "xid_149_nonfatal"),
        (149, "NETIR Fatal XC0 i0 Link -1 (0x000fe406 0x0 0x0)", "xid_149_fatal"),
        (
            149,
            "NETIR_BER_EVENT Nonfatal XC0 i0 Link 03 (0x00086226 0x00000001 0x0 0x0)",
            "xid_149_nonfatal",
        ),
        (
            145,
            "RLW_REMAP Nonfatal XC0 i0 Link 00 (0x00000004 0x00000100 0x0 0x0)",
            "xid_145_harmless",
        ),
        (
            145,
            "RLW_REMAP Fatal XC1 i0 Link 10 (0x00000082 0x00000040 0x0 0x0 0x0 0x0)",
            "xid_145_fatal",
        ),
        (
            145,
            "RLW_SRC_TRACK Nonfatal XC1 i0 Link 12 (0x040988e2 0x00000008 0x0 0x0)",
            "xid_145_nonfatal",
        ),
        (
            146,
            "TLW_RX/TLW_RX_PIPE0 Nonfatal XC0 i0 Link 00 (0x0000000a 0x00000001 0x0)",
            "xid_146_harmless",
        ),
        (144, "SAW_MVB Fatal XC0 i0 Link 00 (0x00000001 0x00000004 0x0 0x0)", "xid_144_fatal"),
        (
            144,
            "SAW_MVB Nonfatal XC0 i0 Link 00 (0x00000001 0x00000024 0x0 0x0)",
            "xid_144_nonfatal",
        ),
        (150, "MSE_WATCHDOG Fatal XC0 i0 Link 00 (0x0 0x0 0x0 0x0)", "xid_150_fatal"),
        (148, "something else", "xid_148"),
    ],
)
def test_errors_of_nvlink_5_are_decoded(tmp_path: Path, number: int, rest: str, code: str) -> None:
    assert findings(measured(tmp_path, line(number, rest))) == [(code, "GPU-1")]


def evidence(tmp_path: Path, text: str) -> dict[str, str]:
    (told,) = (f for f in measured(tmp_path, text) if isinstance(f, Finding))
    return told.evidence


def test_the_evidence_names_unit_link_process_and_function(tmp_path: Path) -> None:
    link = evidence(tmp_path, line(149, FATAL))
    assert (link["unit"], link["link"], link["weight"]) == ("NETIR_LINK_EVT", "07", "Fatal")
    rest = "pid=42, name=a.out, Graphics SM Warp Exception on (GPC 3, TPC 2, SM 1): x"
    unit = evidence(tmp_path, line(13, rest))
    assert (unit["pid"], unit["process"], unit["unit"]) == ("42", "a.out", "GPC 3 TPC 2 SM 1")
    gsp = "Timeout after 6s of waiting for RPC response from GPU3 GSP!"
    gsp += " Expected function 76 (GSP_RM_CONTROL) (0x20802a02 0x8)."
    assert evidence(tmp_path, line(119, gsp))["function"] == "76 GSP_RM_CONTROL"


def by(pid: int, number: int = 31, at: str = "b3") -> str:
    return line(number, f"pid={pid}, name=job, text", at)


@pytest.mark.parametrize("number", [13, 31, 109])
@pytest.mark.parametrize("step_s", [1, 60])
def test_what_a_job_brought_about_is_listed_and_passes(
    tmp_path: Path, number: int, step_s: int
) -> None:
    found = measured(tmp_path, *[by(7, number)] * 5, step_s=step_s)
    assert findings(found) == [(f"xid_{number}", "GPU-1")]
    assert judge_items(CHECK, found).faults == ()


@pytest.mark.parametrize(
    ("texts", "step_s"),
    [
        ([by(i) for i in range(30)], 1),  # a job of 30 processes that ended at once
        ([by(1), by(2, at="18")], 60),
        ([by(1), by(2, number=13)], 60),
        ([line(31, f"pid='<unknown>', name=<unknown>, {i}") for i in range(3)], 60),
    ],
)
def test_one_job_or_one_time_on_a_gpu_is_no_repetition(
    tmp_path: Path, texts: Sequence[str], step_s: int
) -> None:
    found = measured(tmp_path, *texts, step_s=step_s)
    assert judge_items(CHECK, found).faults == ()


@pytest.mark.parametrize("number", [13, 31, 109])
def test_what_came_again_by_another_process_warns(tmp_path: Path, number: int) -> None:
    again = measured(tmp_path, by(1, number), by(2, number), step_s=60)
    assert findings(again) == [(f"xid_{number}{REPEATED_SUFFIX}", "GPU-1")]
    assert judge_items(CHECK, again).verdict is Verdict.WARN
    assert judge_items(CHECK, again).remedy in (Remedy.INSPECT, Remedy.RESET_GPU)


@pytest.mark.parametrize("number", [43, 45])
def test_what_only_goes_with_another_error_passes_and_is_listed(
    tmp_path: Path, number: int
) -> None:
    text = line(number, "pid=1, name=python3, Ch 00000001 caused by previous Xid 149")
    found = measured(tmp_path, text, text)
    assert findings(found) == [(f"xid_{number}", "GPU-1")]
    assert judge_items(CHECK, found).verdict is Verdict.PASS


SWITCH = "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): "


@pytest.mark.parametrize(
    ("rest", "code", "verdict"),
    [
        ("20034, Fatal, Link 30 LTSSM Fault Up", "sxid_fatal", Verdict.FAIL),
        ("12028, Non-fatal, Link 32 egress (First)", "sxid_nonfatal", Verdict.WARN),
        ("12028, Odd, Link 32", "sxid_unknown", Verdict.WARN),
        ("12028, Fatality, Link 32", "sxid_unknown", Verdict.WARN),
        ("12028,Non-fatal", "sxid_nonfatal", Verdict.WARN),
    ],
)
def test_switches_are_judged_by_the_word(
    tmp_path: Path, rest: str, code: str, verdict: Verdict
) -> None:
    number = rest[:5]
    more = (
        f"{SWITCH}{number}, Severity 0 Engine instance 32 Sub-engine instance 00",
        f"{SWITCH}{number}, Data {{0x00140004, 0x00000000}}",
    )
    found = measured(tmp_path, SWITCH + rest, *more)
    assert findings(found) == [(code, "0000:c1:00.0")]
    assert judge_items(CHECK, found).verdict is verdict


def test_a_gpu_that_could_not_be_started_is_told_of(tmp_path: Path) -> None:
    text = "NVRM: GPU 0000:b3:00.0: RmInitAdapter failed! (0x62:0xffff:2477)"
    problem = Finding("driver_not_loaded", "node", "no driver")
    bare = tuple(Part("gpu", a, a, {"pci_address": a}) for a in ADDRESSES)
    blocked = Inventory(parts=bare, problems=(problem,))
    found = measured(tmp_path, text, inventory=blocked)
    assert findings(found) == [("init_failed", "0000:b3:00.0")]
    assert judge_items(CHECK, found).verdict is Verdict.WARN


@pytest.mark.parametrize(
    "said", ["nvAssertOkFailedNoLog: Assertion failed", "GPU0 nvCheckOkFailedNoLog: Check failed"]
)
def test_a_driver_that_requires_a_reset_warns_of_the_node(tmp_path: Path, said: str) -> None:
    """The macros of nvport/nvassert.h in open-gpu-kernel-modules name no address."""
    text = f"NVRM: {said}: Reset required [NV_ERR_RESET_REQUIRED] (0x00000062) returned from x"
    found = measured(tmp_path, text, text)
    assert findings(found) == [("reset_required", "node")]
    judged = judge_items(CHECK, found)
    assert (judged.verdict, judged.remedy) == (Verdict.WARN, Remedy.RESET_GPU)


def test_an_old_error_does_not_fail_a_node_for_ever(tmp_path: Path) -> None:
    first = measured(tmp_path, line(79))
    second = measured(tmp_path, line(79), carry_overs=(cursor(first),))
    third = measured(tmp_path, line(79), line(95), carry_overs=(cursor(second),))
    verdicts = [judge_items(CHECK, found).verdict for found in (first, second, third)]
    assert verdicts == [Verdict.FAIL, Verdict.PASS, Verdict.FAIL]
    assert findings(third) == [("xid_95", "GPU-1")]


def test_a_part_that_failed_is_not_passed_by_looking_again(tmp_path: Path) -> None:
    failed = measured(tmp_path, line(79))
    marks = tuple(item for item in failed if isinstance(item, CarryOver))
    again = measured(tmp_path, line(79), carry_overs=marks)
    judgement = judge_items(CHECK, again)

    assert (judgement.verdict, judgement.remedy) == (Verdict.WARN, Remedy.REBOOT)
    assert "xid_79" in judgement.reason
    assert {m.part_id for m in again if isinstance(m, CarryOver)} == {"node", "GPU-1"}


def test_a_part_that_failed_is_not_passed_by_the_crash_of_a_job(tmp_path: Path) -> None:
    failed = measured(tmp_path, line(79))
    marks = tuple(item for item in failed if isinstance(item, CarryOver))
    again = measured(tmp_path, line(79), by(7, 31), carry_overs=marks)

    assert findings(again) == [("xid_31", "GPU-1"), ("xid_standing", "GPU-1")]
    assert judge_items(CHECK, again).verdict is Verdict.WARN


def test_what_failed_a_part_is_forgotten_after_a_restart_or_a_day(tmp_path: Path) -> None:
    failed = measured(tmp_path, line(79))
    (stands,) = (m for m in failed if isinstance(m, CarryOver) and m.name == "standing")
    failure = msgspec.json.decode(stands.value, type=PartFailure)
    for old in (replace(failure, boot="other"), replace(failure, when=failure.when - 90_000)):
        mark = CarryOver("standing", msgspec.json.encode(old).decode(), stands.part_id)
        again = measured(tmp_path, line(79), carry_overs=(cursor(failed), mark))
        assert judge_items(CHECK, again).verdict is Verdict.PASS


def test_a_mark_of_a_failure_that_cannot_be_read_is_none(tmp_path: Path) -> None:
    failed = measured(tmp_path, line(79))
    (stands,) = (m for m in failed if isinstance(m, CarryOver) and m.name == "standing")
    mark = CarryOver("standing", "no mark of ours", stands.part_id)
    again = measured(tmp_path, line(79), carry_overs=(cursor(failed), mark))
    assert judge_items(CHECK, again).verdict is Verdict.PASS


def test_what_was_not_seen_is_a_warning(tmp_path: Path) -> None:
    seen = cursor(measured(tmp_path, "x"))
    ctx = make_context(tmp_path, inventory=BOARD, carry_overs=(seen,))
    found = list(xid.read_log(ctx, ring(tmp_path, record(900, "x"))))
    assert findings(found) == [("log_gap", "node")]
    judgement = judge_items(CHECK, found)
    assert (judgement.verdict, judgement.remedy) == (Verdict.WARN, Remedy.FIX_CONFIGURATION)
    assert "899 messages" in judgement.reason


def after_a_reboot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *entries: dict[str, str]
) -> list[CheckItem]:
    """Run on a node that was restarted since, with *entries* in its journal, if it has one."""
    seconds = BOOTED - 1800
    mark = CarryOver("cursor", f"b0 {seconds} /dev/kmsg 7", "node")
    root = ring(tmp_path, record(0, "Linux"))
    if entries:
        (root / "var/log/journal").mkdir(parents=True)
    read = partial(kernel_log.read, tool=logs.Journalctl(*entries))
    monkeypatch.setattr(kernel_log, "read", read)
    ctx = make_context(tmp_path, inventory=BOARD, carry_overs=(mark,))
    return list(xid.read_log(ctx, root))


def logged(at: int, text: str) -> dict[str, str]:
    return logs.entry(at, text, ago=logs.NOW - at)


def test_a_gpu_that_fell_off_before_somebody_restarted_the_node_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = (logged(BOOTED - 3600, "x"), logged(BOOTED - 600, line(79)), logged(BOOTED + 1, "x"))
    found = after_a_reboot(tmp_path, monkeypatch, *lines)
    assert findings(found) == [("xid_79", "GPU-1")]
    judgement = judge_items(CHECK, found)
    assert (judgement.verdict, judgement.remedy) == (Verdict.FAIL, Remedy.REBOOT)


def test_a_log_that_should_have_the_end_of_the_earlier_boot_and_lacks_it_warns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = logged(BOOTED - 600, "x"), logged(BOOTED + 1, "x")
    found = after_a_reboot(tmp_path, monkeypatch, *lines)
    assert findings(found) == [("log_gap", "node")]
    judgement = judge_items(CHECK, found)
    assert judgement.verdict is Verdict.WARN
    assert f"and the boot at {format_moment(BOOTED)} are lost" in judgement.reason


def test_a_reboot_of_a_node_that_never_keeps_its_log_is_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = after_a_reboot(tmp_path, monkeypatch)
    judgement = judge_items(CHECK, found)
    assert (judgement.verdict, judgement.remedy, judgement.reason) == (
        *(Verdict.PASS, Remedy.NONE, ""),
    )
    assert "the kernel log of this node is not kept across reboots" in str(found)


def test_what_was_logged_long_before_the_first_run_is_listed(tmp_path: Path) -> None:
    texts = line(31, "pid=1, name=job, text"), line(79), line(79)
    root = ring(tmp_path, *(record(i, text) for i, text in enumerate(texts)))
    trees.grow(root, {"proc/stat": f"btime {int(time.time()) - 2 * 86400}"})
    found = list(xid.read_log(make_context(tmp_path, inventory=BOARD), root))
    assert findings(found) == [("before_first_run", "GPU-1")]
    assert judge_items(CHECK, found).faults == ()
    assert counts(found)["GPU-1"] == 0
    (told,) = (f.text for f in found if isinstance(f, Finding))
    assert told.startswith("3 lines")
    assert "fallen off the bus" in told


def test_an_unreadable_log_is_an_error_and_keeps_its_place(tmp_path: Path) -> None:
    mark = cursor(measured(tmp_path, "x"))
    ctx = make_context(tmp_path, inventory=BOARD, carry_overs=(mark,))
    reading = xid.read_log(ctx, tmp_path / "elsewhere")
    assert next(reading) == mark
    with pytest.raises(Unable, match="run as root") as unable:
        next(reading)
    assert unable.value.cause is Cause.DENIED


def test_a_node_without_gpus_is_skipped(tmp_path: Path) -> None:
    with pytest.raises(Skip) as skip:
        measured(tmp_path, line(79), inventory=Inventory())
    assert skip.value.cause is Cause.NOT_APPLICABLE


def observed(ctx: Context, root: Path, *events: tuple[float, int]) -> list[CheckItem]:
    samples = [Sample("xid", float(number), "", "GPU-1", t) for t, number in events]
    return list(xid.report_live_xids(Watch(start=0, end=600, samples=samples), ctx, root))


@pytest.mark.parametrize(
    ("times", "verdict"),
    [([], "pass"), ([5.0], "warn"), ([5.0, 5.1, 5.2], "warn"), ([5.0, 90.0], "fail")],
)
@pytest.mark.parametrize("number", [13, 31])
def test_a_programs_error_under_our_own_load_weighs_more(
    tmp_path: Path, number: int, times: Sequence[float], verdict: str
) -> None:
    ctx = make_context(tmp_path, inventory=BOARD)
    found = observed(ctx, ring(tmp_path, record(0, "x")), *((t, number) for t in times))
    assert judge_items(CHECK, found).verdict.value == verdict
    if times:
        assert judge_items(CHECK, found).remedy is Remedy.INSPECT
        assert all(UNDER_LOAD_SUFFIX in code for code, _ in findings(found))


def test_a_live_event_that_the_log_has_is_told_once(tmp_path: Path) -> None:
    ctx = make_context(tmp_path, inventory=BOARD)
    root = ring(tmp_path, record(0, line(79)))
    assert findings(xid.read_log(ctx, root)) == [("xid_79", "GPU-1")]
    assert observed(ctx, root, (5.0, 79)) == []
    assert findings(observed(ctx, root, (5.0, 79), (6.0, 95))) == [("xid_95", "GPU-1")]


@pytest.mark.parametrize("place", ["node", "0009:01:00.0", "GPU-of-nobody"])
@pytest.mark.parametrize("number", [79, 31])
def test_a_live_event_of_an_unknown_place_is_told(tmp_path: Path, place: str, number: int) -> None:
    ctx = make_context(tmp_path, inventory=BOARD)
    root = ring(tmp_path, record(0, line(number)))
    samples = [Sample("xid", float(number), "", place, 5.0)]
    found = list(xid.report_live_xids(Watch(start=0, end=600, samples=samples), ctx, root))
    assert [part_id for _, part_id in findings(found)] == [place]
    assert judge_items(CHECK, found).verdict > Verdict.PASS


def test_a_live_event_of_an_address_is_that_of_its_gpu(tmp_path: Path) -> None:
    ctx = make_context(tmp_path, inventory=BOARD)
    samples = [Sample("xid", x, "", ADDRESSES[1], 5.0) for x in (79.0, 95.0)]
    watch = Watch(start=0, end=600, samples=samples)
    found = list(xid.report_live_xids(watch, ctx, ring(tmp_path, record(0, line(79)))))
    assert findings(found) == [("xid_95", "GPU-1")]


def test_live_events_are_told_when_the_log_cannot_be_read(tmp_path: Path) -> None:
    ctx = make_context(tmp_path, inventory=BOARD)
    found = observed(ctx, tmp_path / "elsewhere", (5.0, 79), (9.0, 43))
    assert findings(found) == [("xid_43", "GPU-1"), ("xid_79", "GPU-1")]
    judgement = judge_items(CHECK, found)
    assert (judgement.verdict, judgement.remedy) == (Verdict.FAIL, Remedy.REBOOT)


def test_a_log_full_of_errors_is_read_in_bounded_time(tmp_path: Path) -> None:
    texts = [line(145, FATAL.replace("NETIR_LINK_EVT", "RLW_CTRL"))] * 5000
    found = measured(tmp_path, *texts)
    assert findings(found) == [("xid_145_fatal", "GPU-1")]
    assert counts(found)["GPU-1"] == 5000


def test_the_span_that_was_read_is_said(tmp_path: Path) -> None:
    covered = str(measured(tmp_path, "x", "y"))
    assert "read 2 kernel messages from /dev/kmsg" in covered
    assert format_moment(float(BOOTED)) in covered


def test_the_worst_row_of_an_xid_is_never_chosen_for_lack_of_a_sign() -> None:
    assert find_row(154).verdict is Verdict.WARN
    assert find_row(145).verdict is Verdict.WARN


def on_this_machine(ctx: Context) -> list[CheckItem] | Unable:
    """Run the whole check on the machine that runs the tests."""
    params, watch = CHECK.params(), Watch(start=0, end=1, samples=())
    try:
        found = list(CHECK.measure(ctx, params))
    except Unable as unable:
        return unable
    return found + (list(CHECK.observe(watch, ctx, params)) if CHECK.observe else [])


def test_the_check_reads_the_log_of_the_machine_that_it_runs_on(tmp_path: Path) -> None:
    match on_this_machine(make_context(tmp_path, inventory=BOARD)):
        case Unable() as unable:
            assert unable.cause is Cause.DENIED
        case found:
            assert cursor(found).value
            assert {"GPU-0", "GPU-1"} <= counts(found).keys()
