"""What the driver wants done: each wish has its verdict, and none is made up."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from hpcverify.model import Cause, CheckItem, Coverage, Finding, Remedy, Verdict
from hpcverify.telemetry.gpus import GpuAnswers, Recovery
from hpcverify.telemetry.vendors import NVIDIA
from hpcverify.testing import judge_items
from hpcverify_checks.recovery import CHECK, report_recovery
from tests.doubles import read_items
from tests.nvml_lab.nvmllab import Lab

WELL = Recovery(
    action="none", channel_repair_pending=False, tpc_repair_pending=False, unrepairable_memory=False
)

MEASURE = """
import sys, pathlib
from hpcverify.model import Inventory, Part
from hpcverify.run.wire import encode_response
from hpcverify_checks.recovery import CHECK
from hpcverify.testing import make_context
gpu = Part("gpu", "GPU-0", "GPU 0", {"driver": "565"})
ctx = make_context(pathlib.Path(sys.argv[1]), inventory=Inventory(parts=(gpu,)))
for found in CHECK.measure(ctx, CHECK.params()):
    sys.stdout.buffer.write(encode_response(1, found))
"""


def measured(lab: Lab) -> list[CheckItem]:
    return read_items(lab.python(MEASURE).splitlines())


def heard(recovery: Recovery) -> list[CheckItem]:
    return list(report_recovery(GpuAnswers(answers={"GPU-0": recovery}), NVIDIA))


def test_a_gpu_of_which_nothing_is_wanted_passes() -> None:
    found = heard(WELL)
    assert judge_items(CHECK, found).verdict is Verdict.PASS
    assert found == [Coverage("GPU-0", "recovery action: none")]


@pytest.mark.parametrize(
    ("action", "verdict", "remedy"),
    [
        ("gpu_reset", Verdict.FAIL, Remedy.RESET_GPU),
        ("bus_reset", Verdict.FAIL, Remedy.RESET_GPU),
        ("drain_and_reset", Verdict.FAIL, Remedy.RESET_GPU),
        ("node_reboot", Verdict.FAIL, Remedy.REBOOT),
        ("system_reboot", Verdict.FAIL, Remedy.REBOOT),
        ("drain_p2p", Verdict.WARN, Remedy.INSPECT),
        ("recover_imex", Verdict.WARN, Remedy.FIX_CONFIGURATION),
        ("unknown_11", Verdict.WARN, Remedy.INSPECT),
    ],
)
def test_each_wish_has_its_verdict_and_its_remedy(
    action: str, verdict: Verdict, remedy: Remedy
) -> None:
    judgement = judge_items(CHECK, heard(replace(WELL, action=action)))
    assert (judgement.verdict, judgement.remedy) == (verdict, remedy)
    assert judgement.reason.startswith("GPU-0: the driver asks ")


@pytest.mark.parametrize(
    ("vendor", "fix"), [(NVIDIA, "reset it (nvidia-smi -r -i GPU-0)"), ("acme", "reset it")]
)
def test_the_reset_that_is_asked_for_is_of_that_gpu_alone(vendor: str, fix: str) -> None:
    reply = GpuAnswers(answers={"GPU-0": replace(WELL, action="gpu_reset")})
    judgement = judge_items(CHECK, list(report_recovery(reply, vendor)))
    assert judgement.reason == f"GPU-0: the driver asks to end all its processes and {fix}"


def test_a_driver_that_cannot_say_passes_and_it_is_listed() -> None:
    found = heard(replace(WELL, action=None))
    assert judge_items(CHECK, found).verdict is Verdict.PASS
    (item,) = found
    assert isinstance(item, Coverage)
    assert "unknown whether it needs a reset" in item.text


def test_a_healthy_board_wants_nothing_however_often_it_is_asked(lab: Lab) -> None:
    lab.load("healthy-8xh100")
    for _ in range(3):
        found = measured(lab)
        assert judge_items(CHECK, found).verdict is Verdict.PASS
        assert [f for f in found if isinstance(f, Finding)] == []


@pytest.mark.parametrize(
    ("fault", "verdict", "remedy", "reason"),
    [
        ("recovery_action = na", "warn", "inspect", "that its siblings support"),
        ("inforom.valid = 0", "fail", "contact_vendor", "infoROM"),
        ("lost = 1", "fail", "reboot", "lost"),
    ],
)
def test_what_a_driver_says_of_one_gpu_is_found_on_it(
    lab: Lab, fault: str, verdict: str, remedy: str, reason: str
) -> None:
    lab.write(f"gpu.2.{fault}")
    found = measured(lab)
    judgement = judge_items(CHECK, found)
    assert (judgement.verdict.value, judgement.remedy.value) == (verdict, remedy)
    assert reason in judgement.reason
    assert len({f.part_id for f in found if isinstance(f, Finding)}) == bool(reason)


def test_memory_beyond_repair_is_replaced() -> None:
    judgement = judge_items(CHECK, heard(replace(WELL, unrepairable_memory=True)))
    assert (judgement.verdict, judgement.remedy) == (Verdict.FAIL, Remedy.REPLACE)


@pytest.mark.system
def test_a_gpu_that_hangs_is_named_with_the_call_and_hides_no_other(lab: Lab) -> None:
    lab.write(
        "fault = nvmlDeviceGetRepairStatus gpu=3 hang=forever", "gpu.5.recovery_action = DRAIN_P2P"
    )
    found = measured(lab)
    judgement = judge_items(CHECK, found)
    assert (judgement.verdict, judgement.cause) == (Verdict.ERROR, Cause.HUNG)
    assert judgement.remedy is Remedy.REBOOT
    assert "nvmlDeviceGetRepairStatus" in judgement.reason
    assert [f.code for f in found if isinstance(f, Finding)] == ["drain_p2p", "gpu_hung"]
