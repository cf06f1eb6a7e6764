"""What the errors of all GPUs mean together: the node's software, a peer, or each of them."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

import pytest

from hpcverify.model import Cause, Finding, Inventory, Part, Remedy, Result, Verdict
from hpcverify.run.attribution import GpuXids
from hpcverify.run.conclude import conclude, judge_result
from hpcverify.run.executor import Answer
from hpcverify.run.gpu_errors import HARDWARE_XIDS, explain_gpu_errors
from hpcverify.run.wire import GpuHolder, Outcome
from hpcverify.summary.diagnosis import diagnose_run
from hpcverify.telemetry.cuda_errors import (
    UNKNOWN,
    build_finding_rules,
    list_software_codes,
    load_rows,
)
from hpcverify.testing import ENDED, has_no_past
from hpcverify_checks.xid.lines import ROWS
from tests.doubles import a_run
from tests.run.builders import make_gpus, make_step, make_xids

SOFTWARE = sorted(list_software_codes())
HARDWARE = sorted(build_finding_rules().keys() - list_software_codes())


STEP = make_step()


def node(count: int) -> Inventory:
    gpus = make_gpus(count)
    return Inventory(parts=tuple(Part("gpu", d.part, d.label) for d in gpus), devices=gpus)


def ended(code: str, part_id: str) -> Answer:
    """Answer as a worker does that an error of CUDA ended."""
    row = next(row for row in load_rows() if row.code == code)
    outcome = Outcome(
        verdict=Verdict.ERROR, reason="ended early", cause=Cause.CRASHED, code=code, start=5.0
    )
    return Answer(items=(Finding(code, part_id, row.text, {"error": row.title}),), outcome=outcome)


def result(answers: Mapping[str, Answer], count: int = 3, xids: GpuXids | None = None) -> Result:
    def ask(parts: Collection[str], start: float) -> GpuXids:
        assert set(parts) == {f"gpu-{i}" for i in range(count)}
        assert start in (0.0, 5.0)
        return xids or GpuXids()

    inventory = node(count)
    explained, _ = explain_gpu_errors(answers, inventory, ask)
    return conclude(STEP, explained, inventory, has_no_past, 1.0)


def on(code: str, *gpus: int, of: int = 3) -> dict[str, Answer]:
    return {f"gpu-{i}": ended(code, f"gpu-{i}") if i in gpus else ENDED for i in range(of)}


@pytest.mark.parametrize("code", sorted({*SOFTWARE} - {UNKNOWN}))
@pytest.mark.parametrize("count", [2, 8])
def test_what_all_gpus_raise_alike_and_software_can_cause_fails_no_gpu(
    code: str, count: int
) -> None:
    told = result(on(code, *range(count), of=count), count)

    assert (told.verdict, told.cause) == (Verdict.ERROR, Cause.MISCONFIGURED)
    assert (told.remedy, told.findings) == (Remedy.FIX_CONFIGURATION, ())
    assert "every GPU raised the same error" in told.reason
    assert told.reason.count("install a driver that this torch supports") == 1
    assert judge_result(told, {}, {}, node(count), has_no_past) == told


def test_where_no_gpu_can_say_what_is_wrong_the_driver_has_failed_and_a_reboot_is_the_fix() -> None:
    told = result(on(UNKNOWN, 0, 1, 2))
    assert (told.verdict, told.remedy, told.findings) == (Verdict.ERROR, Remedy.REBOOT, ())
    assert told.reason.endswith("reboot the node, and run again")


def test_what_all_gpus_raise_alike_is_said_once_of_all_of_them() -> None:
    told = result(on("cuda_launch_failure", 0, 1, 2))
    (diagnosis,) = diagnose_run(a_run(results=(told,), verdict=told.verdict, inventory=node(3)))

    assert told.reason.startswith("all 3 GPUs: every GPU raised the same error")
    assert diagnosis.sentence.startswith("all 3 GPUs: every GPU raised the same error")
    assert diagnosis.part_ids == ("gpu-0", "gpu-1", "gpu-2")
    assert [c.part_id for c in told.faults] == ["gpu-0", "gpu-1", "gpu-2"]


@pytest.mark.parametrize("code", SOFTWARE)
def test_what_one_gpu_raises_and_its_siblings_do_not_fails_it(code: str) -> None:
    told = result(on(code, 1))
    assert (told.verdict, [f.part_id for f in told.findings]) == (Verdict.FAIL, ["gpu-1"])
    assert told.reason.startswith("GPU 1: ")


@pytest.mark.parametrize("code", sorted({*SOFTWARE} - {"cuda_contained"}))
def test_what_all_gpus_but_one_raise_fails_them(code: str) -> None:
    assert result(on(code, 0, 1)).verdict is Verdict.FAIL


def test_what_all_gpus_raised_in_an_earlier_check_fails_none_in_a_later_one() -> None:
    common: frozenset[str] = frozenset()

    def explain(answers: Mapping[str, Answer]) -> list[str]:
        nonlocal common
        told, common = explain_gpu_errors(answers, node(3), lambda _p, _s: GpuXids(), (), common)
        found = (item for answer in told.values() for item in answer.items)
        return [item.code for item in found if isinstance(item, Finding)]

    assert explain(on("cuda_launch_failure", 0)) == ["cuda_launch_failure"]
    assert explain(on("cuda_launch_failure", 0, 1, 2)) == []
    assert explain(on("cuda_launch_failure", 0)) == []
    assert explain(on("cuda_assert", 0)) == ["cuda_assert"]


@pytest.mark.parametrize("code", SOFTWARE)
def test_a_gpu_without_siblings_fails_by_itself(code: str) -> None:
    assert result(on(code, 0, of=1), 1).verdict is Verdict.FAIL


@pytest.mark.parametrize("code", HARDWARE)
def test_what_software_cannot_cause_fails_all_gpus_that_raise_it(code: str) -> None:
    told = result(on(code, 0, 1, 2))
    assert (told.verdict, len(told.findings)) == (Verdict.FAIL, 3)


def test_different_errors_on_all_gpus_are_faults_of_each() -> None:
    answers = on("cuda_illegal_address", 0) | {
        "gpu-1": ended("cuda_launch_failure", "gpu-1"),
        "gpu-2": ended("cuda_assert", "gpu-2"),
    }
    assert result(answers).verdict is Verdict.FAIL


def lost(cause: Cause) -> Answer:
    """Answer as a worker without a finding does."""
    return Answer(
        outcome=Outcome(verdict=Verdict.ERROR, reason="lost", cause=cause, remedy=Remedy.RERUN)
    )


@pytest.mark.parametrize(
    "other", [ended("ecc_uncorrectable", "gpu-1"), lost(Cause.CRASHED), lost(Cause.HUNG)]
)
def test_a_gpu_that_met_the_error_of_a_peer_is_a_witness(other: Answer) -> None:
    told = result(on("cuda_contained", 0, 2) | {"gpu-1": other})
    assert [f.part_id for f in told.findings if f.code == "cuda_contained"] == []
    assert {s.part_id: s.remedy for s in told.shortfalls}["gpu-0"] is Remedy.RERUN


@pytest.mark.parametrize("other", [ENDED, lost(Cause.TIMEOUT)], ids=["well", "in vain"])
def test_a_gpu_that_contained_an_error_fails_where_its_peers_were_well_or_waited_for_it(
    other: Answer,
) -> None:
    told = result(on("cuda_contained", 1) | {"gpu-0": other, "gpu-2": other})
    assert (told.verdict, [f.part_id for f in told.findings]) == (Verdict.FAIL, ["gpu-1"])


XID = make_xids("gpu-1", 94, "Xid 94 at 03:12:05 UTC")


ABORTED = """\
[rank1]:[E ProcessGroupNCCL.cpp:1932] Process group watchdog thread terminated with exception: \
CUDA error: uncorrectable ECC error encountered
terminate called after throwing an instance of 'c10::AcceleratorError'
"""


def died(log: str) -> Answer:
    """Answer as the executor does for a worker that ended by itself."""
    reason = "its worker killed by SIGABRT"
    outcome = Outcome(
        verdict=Verdict.ERROR, reason=reason, cause=Cause.CRASHED, remedy=Remedy.RERUN, trace=log
    )
    return Answer(outcome=outcome)


def test_a_worker_that_died_of_an_error_of_cuda_accuses_its_gpu() -> None:
    told = result({"gpu-0": ENDED, "gpu-1": died(ABORTED), "gpu-2": ENDED})
    assert (told.verdict, told.remedy) == (Verdict.FAIL, Remedy.RESET_GPU)
    assert [(f.code, f.part_id) for f in told.findings] == [("ecc_uncorrectable", "gpu-1")]


@pytest.mark.parametrize("log", ["", "Segmentation fault", "CUDA error: out of memory"])
def test_a_worker_that_died_of_something_else_accuses_nobody(log: str) -> None:
    told = result({"gpu-0": ENDED, "gpu-1": died(log), "gpu-2": ENDED})
    assert (told.verdict, told.findings) == (Verdict.ERROR, ())


def test_an_xid_stands_beside_the_error_of_its_gpu() -> None:
    (finding,) = result(on("ecc_uncorrectable", 1), xids=XID).findings
    assert finding.text.endswith("; Xid 94 at 03:12:05 UTC")
    assert finding.evidence["xid"] == "Xid 94 at 03:12:05 UTC"
    assert finding.evidence["kernel_log"] == "NVRM: Xid 94"


def test_a_kernel_log_that_nobody_may_read_is_said_and_changes_no_verdict() -> None:
    told = result(on("ecc_uncorrectable", 1), xids=GpuXids(problem="cannot be read: run as root"))
    assert told.verdict is Verdict.FAIL
    assert told.findings[0].evidence["xid"] == "cannot be read: run as root"


def test_an_xid_names_the_gpu_that_cuda_did_not() -> None:
    told = result({"node": ended("cuda_launch_failure", "node")}, xids=XID)
    assert (told.verdict, [f.part_id for f in told.findings]) == (Verdict.FAIL, ["gpu-1"])


@pytest.mark.parametrize("code", HARDWARE)
@pytest.mark.parametrize(("xid", "part"), [(31, "node"), (48, "gpu-1"), (172, "gpu-1")])
def test_an_xid_of_hardware_alone_names_the_gpu_of_what_only_hardware_causes(
    code: str, xid: int, part: str
) -> None:
    xids = make_xids("gpu-1", xid, f"Xid {xid}")
    told = result({"node": ended(code, "node")}, xids=xids)
    assert (told.verdict, [f.part_id for f in told.findings]) == (Verdict.FAIL, [part])


def test_every_xid_of_an_uncorrectable_error_is_one_of_hardware() -> None:
    words = re.compile("CONTAINED_ERROR|ECC_DBE|UNRECOVERABLE_ECC|UNCORRECTABLE|C2C_FATAL")
    named = {row.xid for row in ROWS.values() if words.search(row.mnemonic)}
    assert {48, 94, 95, 140, 171, 172, 173} == named
    assert named <= HARDWARE_XIDS


def test_without_a_name_what_software_can_cause_fails_nobody() -> None:
    told = result({"node": ended("cuda_launch_failure", "node")})
    assert (told.verdict, told.findings) == (Verdict.ERROR, ())
    assert "did not report which" in told.reason


def test_without_a_name_what_only_hardware_causes_fails_the_node() -> None:
    told = result({"node": ended("ecc_uncorrectable", "node")})
    assert (told.verdict, [f.part_id for f in told.findings]) == (Verdict.FAIL, ["node"])


def test_nobody_is_asked_for_xids_where_no_gpu_failed() -> None:
    def ask(_parts: Collection[str], _start: float) -> GpuXids:
        raise AssertionError("asked")

    assert explain_gpu_errors(on("", of=3), node(3), ask)[0] == on("", of=3)


def test_who_holds_a_gpu_is_said() -> None:
    busy = Outcome(verdict=Verdict.ERROR, reason="busy", cause=Cause.BUSY, code="cuda_busy")
    told, _ = explain_gpu_errors(
        {"gpu-0": Answer(outcome=busy), "gpu-1": Answer(outcome=busy)},
        node(2),
        lambda _parts, _start: GpuXids(),
        (GpuHolder("gpu-0", 42),),
    )

    assert told["gpu-0"].outcome.reason == "in use by process 42: busy"
    assert told["gpu-1"].outcome.reason == "busy"
