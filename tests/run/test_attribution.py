"""A GPU that hangs is accused by its siblings; nothing else that takes too long is."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from hpcverify.check import HUNG_CODE, RANK_LOST_CODE, Context, Params, Placement
from hpcverify.model import Cause, Device, Finding, Inventory, Part, Remedy, Run, Verdict
from hpcverify.plan.catalog import load_check
from hpcverify.plan.suite import Step
from hpcverify.run.attribution import (
    BUDGET,
    ESTIMATE,
    ESTIMATE_FACTOR,
    START_UP_SECONDS,
    TIMEOUT,
    Allowance,
    GpuXids,
    Phase,
    choose_allowance,
    describe_overrun,
    describe_unused_gpus,
    explain_overruns,
    list_late_workers,
)
from hpcverify.run.executor import Answer, Overrun
from hpcverify.run.wire import FindXids, Measure, Outcome
from hpcverify.telemetry.problems import NOT_USED
from hpcverify.testing import CPU, FakeExecutor, make_context
from tests.run import builders
from tests.run.builders import make_gpus, make_xids

GPUS = make_gpus(4)
PARTS = tuple(Part("gpu", gpu.part, gpu.label, {"name": "H100", "driver": "1"}) for gpu in GPUS)
NODE = Inventory(parts=PARTS, devices=(CPU, *GPUS))
NO_XIDS = GpuXids()
ESTIMATED = Allowance(seconds=200, bound=ESTIMATE, estimate=30)
HANGS = Overrun(seconds=200, doing="bf16 products on GPU 2", part="gpu-2", doing_seconds=180)


def ended(seconds: float) -> Answer:
    return Answer(outcome=Outcome(start=0, end=seconds))


def late(overrun: Overrun) -> Answer:
    return Answer(outcome=describe_overrun(overrun), overrun=overrun)


def explained(
    tmp_path: Path,
    *answers: Answer,
    allowance: Allowance = ESTIMATED,
    inventory: Inventory = NODE,
    device: Device | None = None,
    xids: GpuXids = NO_XIDS,
) -> dict[str, Answer]:
    """Explain the *answers* of as many GPUs, or of one other *device*."""
    devices = (device,) if device else GPUS
    contexts: dict[str, Context] = {
        d.part: make_context(tmp_path, device=d, peers=devices) for d in devices[: len(answers)]
    }
    phase = Phase(
        contexts=contexts, answers=dict(zip(contexts, answers, strict=True)), allowance=allowance
    )
    found = list_late_workers([phase], inventory)
    return explain_overruns([phase], found, 420, xids)


def list_findings(answers: dict[str, Answer]) -> list[Finding]:
    return [i for answer in answers.values() for i in answer.items if isinstance(i, Finding)]


def test_a_gpu_that_hangs_where_its_siblings_ended_long_before_is_accused_by_name(
    tmp_path: Path,
) -> None:
    found = explained(tmp_path, ended(40), ended(38), late(HANGS), ended(41))
    (finding,) = list_findings(found)

    assert (finding.code, finding.part_id) == (HUNG_CODE, "gpu-2")
    assert finding.text == (
        "hung in bf16 products for 180 s until its worker was ended; 3 other GPUs finished "
        "the check in 41 s. Fix: reset the GPU, and run again"
    )
    assert found["gpu-2"].outcome.cause is Cause.TIMEOUT


def test_the_xid_of_that_moment_stands_beside_a_hang(tmp_path: Path) -> None:
    xids = make_xids("gpu-2", 109, "Xid 109 at 03:12:05 UTC")
    found = explained(tmp_path, ended(40), ended(38), late(HANGS), ended(41), xids=xids)
    alone = explained(tmp_path, late(HANGS), device=GPUS[2], xids=xids)
    (finding,) = list_findings(found)

    assert "in 41 s (the kernel log has Xid 109 at 03:12:05 UTC). Fix: reset" in finding.text
    assert finding.evidence["kernel_log"] == "NVRM: Xid 109"
    assert "Xid 109 at 03:12:05" in alone["gpu-2"].outcome.reason


def test_two_gpus_that_hang_where_two_ended_are_both_accused(tmp_path: Path) -> None:
    other = replace(HANGS, part="gpu-3", doing="bf16 products on GPU 3")
    found = explained(tmp_path, ended(40), ended(38), late(HANGS), late(other))
    assert [f.part_id for f in list_findings(found)] == ["gpu-2", "gpu-3"]


INNOCENT = {
    "it may have waited for others": replace(HANGS, part=""),
    "another part was at work": replace(HANGS, part="gpu-1"),
    "nobody knows what it did": replace(HANGS, doing="", part=""),
    "stopped by a signal": replace(HANGS, hindrance="stopped by a signal"),
    "it came so far only now": replace(HANGS, doing_seconds=3),
    "it had little longer than the others": replace(HANGS, seconds=45),
    "its siblings took nearly as long": replace(HANGS, seconds=240),
}


@pytest.mark.parametrize("why", INNOCENT)
def test_a_gpu_is_not_accused_if(tmp_path: Path, why: str) -> None:
    slow = 200 if why == "its siblings took nearly as long" else 40
    found = explained(tmp_path, ended(slow), ended(38), late(INNOCENT[why]), ended(slow))
    outcome = found["gpu-2"].outcome

    assert list_findings(found) == []
    assert (outcome.verdict, outcome.cause) == (Verdict.ERROR, Cause.TIMEOUT)
    assert outcome.remedy in (Remedy.INSPECT, Remedy.RERUN)


def test_gpus_that_gave_up_on_a_peer_are_no_siblings_that_ended(tmp_path: Path) -> None:
    lost = Finding(RANK_LOST_CODE, "gpu-2", "was lost")
    witness = replace(ended(45), items=(lost,))
    found = explained(tmp_path, witness, witness, late(HANGS), witness)
    assert {f.code for f in list_findings(found)} == {RANK_LOST_CODE}
    assert found["gpu-2"].outcome.verdict is Verdict.ERROR


def test_most_gpus_hanging_accuse_none(tmp_path: Path) -> None:
    others = [
        late(replace(HANGS, part=gpu.part, doing=f"products on {gpu.label}")) for gpu in GPUS[1:]
    ]
    found = explained(tmp_path, ended(40), *others)

    assert list_findings(found) == []
    assert found["gpu-2"].outcome.remedy is Remedy.INSPECT


def test_gpus_of_another_model_are_no_siblings(tmp_path: Path) -> None:
    parts = (*PARTS[:2], replace(PARTS[2], facts={"name": "L4"}), PARTS[3])
    mixed = replace(NODE, parts=parts)
    found = explained(tmp_path, ended(4), ended(4), late(HANGS), ended(4), inventory=mixed)
    assert list_findings(found) == []
    assert "no identical GPU" in found["gpu-2"].outcome.reason


def test_all_gpus_hanging_alike_are_to_be_looked_at(tmp_path: Path) -> None:
    alike = [late(replace(HANGS, part=g.part, doing=f"products on {g.label}")) for g in GPUS]
    found = explained(tmp_path, *alike)

    assert list_findings(found) == []
    assert {a.outcome.remedy for a in found.values()} == {Remedy.INSPECT}
    assert found["gpu-2"].outcome.reason == (
        "no end after 200 s in products on GPU 2, for 180 s, as on 3 identical GPUs. Fix: "
        "dmesg | grep -i xid, and run again"
    )


def test_a_lone_gpu_that_hangs_is_to_be_looked_at(tmp_path: Path) -> None:
    found = explained(tmp_path, late(HANGS), device=GPUS[2])
    assert list_findings(found) == []
    assert found["gpu-2"].outcome.remedy is Remedy.INSPECT
    assert "no identical GPU" in found["gpu-2"].outcome.reason


def test_a_gpu_whose_siblings_gave_up_on_it_is_not_said_to_have_none(tmp_path: Path) -> None:
    gave_up = Answer(items=(Finding(RANK_LOST_CODE, "gpu-2", "was lost"),), outcome=Outcome())
    found = explained(tmp_path, gave_up, gave_up, late(HANGS), gave_up)

    assert found["gpu-2"].outcome.reason == (
        "no end after 200 s in bf16 products on GPU 2, for 180 s. Fix: "
        "dmesg | grep -i xid, and run again"
    )


def test_a_gpu_that_others_wait_for_is_to_be_looked_at_and_they_are_said_to_wait(
    tmp_path: Path,
) -> None:
    waits = late(Overrun(seconds=200, doing="the wait for the others", doing_seconds=190))
    found = explained(tmp_path, waits, waits, late(HANGS), waits)
    assert list_findings(found) == []
    assert (
        "for 180 s, while 3 other GPUs waited for it. Fix: dmesg" in found["gpu-2"].outcome.reason
    )
    assert "in the wait for the others" in found["gpu-0"].outcome.reason


def test_a_hang_between_two_gpus_that_one_process_drives_names_them_and_accuses_none(
    tmp_path: Path,
) -> None:
    copy = Overrun(seconds=90, doing="a copy to GPU 2 on GPU 0", part="gpu-0", doing_seconds=80)
    outcome = explained(tmp_path, late(copy), device=CPU)["cpu"].outcome

    assert (outcome.cause, outcome.remedy) == (Cause.TIMEOUT, Remedy.INSPECT)
    assert outcome.reason == (
        "no end after 90 s in a copy to GPU 2 on GPU 0, for 80 s. Fix: "
        "dmesg | grep -i xid, and run again"
    )


def test_a_gpu_whose_process_is_stuck_needs_a_reboot_and_is_named(tmp_path: Path) -> None:
    stuck = replace(HANGS, stuck="process 7, which waits in nv_wait")
    outcome = explained(tmp_path, ended(4), ended(4), late(stuck), ended(4))["gpu-2"].outcome

    assert (outcome.cause, outcome.remedy) == (Cause.HUNG, Remedy.REBOOT)
    assert outcome.reason == (
        "hung in bf16 products on GPU 2: process 7, which waits in nv_wait, cannot be ended. "
        "Fix: reboot the node"
    )


SHORT = Allowance(seconds=45, bound=BUDGET, estimate=30)
AT_WORK = replace(HANGS, seconds=45, doing_seconds=4)


def test_a_budget_that_ran_out_on_all_alike_is_blamed(tmp_path: Path) -> None:
    alike = [late(replace(AT_WORK, part=g.part)) for g in GPUS]
    outcome = explained(tmp_path, *alike, allowance=SHORT)["gpu-2"].outcome

    assert (outcome.cause, outcome.remedy) == (Cause.TIMEOUT, Remedy.FIX_CONFIGURATION)
    assert outcome.reason.endswith(
        "when the suite's budget of 420 s ran out. Fix: raise the budget, or shorten its checks"
    )


CLEARED = {
    "siblings ended": ([ended(40), ended(40), late(AT_WORK), ended(40)], SHORT),
    "a healthy node would have ended": (
        [late(AT_WORK)] * 4,
        replace(SHORT, seconds=START_UP_SECONDS + 30),
    ),
    "one operation took longer than the whole check should": (
        [late(replace(AT_WORK, doing_seconds=31))] * 4,
        SHORT,
    ),
    "the check's own timeout was shorter": ([late(AT_WORK)] * 4, replace(SHORT, bound=TIMEOUT)),
}


@pytest.mark.parametrize("why", CLEARED)
def test_the_budget_is_not_blamed_if(tmp_path: Path, why: str) -> None:
    answers, allowance = CLEARED[why]
    outcome = explained(tmp_path, *answers, allowance=allowance)["gpu-2"].outcome
    assert outcome.remedy is Remedy.INSPECT
    assert "budget" not in outcome.reason


@pytest.mark.parametrize(("doing", "blamed"), [("", True), ("nvmlDeviceGetName of GPU 4", False)])
def test_a_check_without_an_estimate_is_cut_short_by_the_budget_unless_it_hangs(
    tmp_path: Path,
    doing: str,
    blamed: bool,  # noqa: FBT001
) -> None:
    allowance = Allowance(seconds=9, bound=BUDGET, estimate=None)
    answer = late(Overrun(seconds=9, doing=doing))
    outcome = explained(tmp_path, answer, allowance=allowance, device=CPU)["cpu"].outcome
    assert ("budget" in outcome.reason) is blamed
    assert (outcome.remedy is Remedy.FIX_CONFIGURATION) is blamed


@pytest.mark.parametrize(
    ("left", "timeout", "estimate", "bound"),
    [
        (900, 600, 10, ESTIMATE),
        (900, 600, 1000, TIMEOUT),
        (50, 600, 10, BUDGET),
        (900, 600, None, TIMEOUT),
    ],
)
def test_a_phase_is_bounded_by_what_ends_first(
    left: float, timeout: float, estimate: float | None, bound: str
) -> None:
    allowance = choose_allowance(left=left, timeout=timeout, estimate=estimate)

    assert allowance.bound == bound
    assert (
        allowance.seconds
        == {ESTIMATE: START_UP_SECONDS + ESTIMATE_FACTOR * 10, TIMEOUT: timeout, BUDGET: left}[
            bound
        ]
    )


def test_the_gpus_that_measure_one_after_the_other_are_siblings(tmp_path: Path) -> None:
    phases = [
        Phase(
            contexts={gpu.part: make_context(tmp_path, device=gpu)},
            answers={gpu.part: late(HANGS) if gpu is GPUS[2] else ended(4)},
            allowance=ESTIMATED,
        )
        for gpu in GPUS
    ]

    found = list_late_workers(phases, NODE)
    answers = explain_overruns(phases, found, 420, NO_XIDS)

    assert found["gpu-2"].ended == (4, 4, 4)
    assert [f.part_id for f in list_findings(answers)] == ["gpu-2"]


def estimate(_ctx: Context, _params: Params) -> float:
    return 10.0


def make_step(name: str, placement: Placement = Placement.DEVICES) -> Step:
    return builders.make_step(name, timeout=600, placement=placement, estimate=estimate)


class Hanging(FakeExecutor):
    """GPU 2 hangs in the first check on GPUs."""

    def run(self, tasks, timeout):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN201
        """Answer as a worker that was ended, once."""
        self.timeouts = [*getattr(self, "timeouts", []), timeout]
        answers = super().run(tasks, timeout)
        if len(tasks) == len(GPUS):
            answers |= {gpu.part: ended(12) for gpu in GPUS} | {"gpu-2": late(HANGS)}
        return answers


class AllHanging(FakeExecutor):
    """All GPUs hang in each check on them."""

    def run(self, tasks, timeout):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN201
        """Answer as workers that were ended."""
        hung = {gpu.part: late(replace(HANGS, part=gpu.part)) for gpu in GPUS if gpu.part in tasks}
        return super().run(tasks, timeout) | hung


def verify(tmp_path: Path, executor: FakeExecutor, *steps: Step, rounds: int = 1) -> Run:
    return builders.verify(tmp_path, executor, *steps, budget=420, rounds=rounds)


def test_a_run_fails_for_the_gpu_that_hangs_and_uses_it_no_more(tmp_path: Path) -> None:
    executor = Hanging(inventory=NODE)
    first, then = verify(tmp_path, executor, make_step("gemm"), make_step("sdc")).results
    told = [list(phase) for phase in executor.phases if "telemetry" not in phase]
    asked = [phase["telemetry"] for phase in executor.phases if "telemetry" in phase]

    assert (first.verdict, first.remedy) == (Verdict.FAIL, Remedy.RESET_GPU)
    assert [finding.code for finding in first.findings] == [HUNG_CODE]
    assert [task.parts for task in asked if isinstance(task, FindXids)] == [("gpu-2",)]
    assert first.rulings[HUNG_CODE].conclusive is False
    assert first.reason.startswith("GPU 2: hung in bf16 products")
    assert told == [["cpu"], [g.part for g in GPUS], ["cpu"], ["gpu-0", "gpu-1", "gpu-3"]]
    assert (then.verdict, then.cause, then.remedy) == (Verdict.ERROR, Cause.HUNG, Remedy.INSPECT)
    assert "did not return from bf16 products in gemm" in then.reason


def test_gpus_that_did_not_come_back_are_not_used_in_the_next_round(tmp_path: Path) -> None:
    executor = AllHanging(inventory=NODE)
    first, then = verify(tmp_path, executor, make_step("gemm"), rounds=2).results
    used = [phase for phase in executor.phases if GPUS[0].part in phase]

    assert len(used) == 1
    assert (first.verdict, first.cause) == (Verdict.ERROR, Cause.TIMEOUT)
    assert (then.round, then.verdict, then.cause) == (2, Verdict.ERROR, Cause.HUNG)
    assert len(then.shortfalls) == len(GPUS)


def test_a_gpu_that_is_not_used_is_told_by_its_check_and_not_by_the_inventory() -> None:
    rule = load_check("inventory").finding_rules[NOT_USED]
    assert (rule.verdict, rule.remedy) == (Verdict.PASS, Remedy.NONE)


def test_the_peers_of_a_gpu_that_hangs_go_on_without_it(tmp_path: Path) -> None:
    executor = Hanging(inventory=NODE)
    verify(tmp_path, executor, make_step("gemm"), make_step("training"))
    tasks = [t for t in executor.phases[-1].values() if isinstance(t, Measure)]
    assert {t.context.peers for t in tasks} == {(GPUS[0], GPUS[1], GPUS[3])}


@pytest.mark.parametrize(
    ("overrun", "unused"),
    [
        (HANGS, True),
        (replace(HANGS, doing_seconds=29), False),
        (replace(HANGS, part=""), False),
        (replace(HANGS, hindrance="stopped by a signal"), False),
        (Overrun(seconds=200, stuck="process 7"), True),
    ],
)
def test_a_gpu_that_is_merely_slow_is_used_again(
    tmp_path: Path,
    overrun: Overrun,
    unused: bool,  # noqa: FBT001
) -> None:
    phase = Phase(
        contexts={"gpu-2": make_context(tmp_path, device=GPUS[2])},
        answers={"gpu-2": late(overrun)},
        allowance=ESTIMATED,
    )
    found = list(describe_unused_gpus(list_late_workers([phase], NODE), "gemm"))

    expected = [("gpu-2", NOT_USED)] if unused else []
    assert [(finding.part_id, finding.code) for finding in found] == expected


def test_a_phase_has_the_time_that_its_parameters_need_and_not_ten_minutes(tmp_path: Path) -> None:
    executor = Hanging(inventory=NODE)
    verify(tmp_path, executor, make_step("gemm"))
    assert START_UP_SECONDS + ESTIMATE_FACTOR * 10 in executor.timeouts


def test_a_bug_in_an_estimate_ends_its_check_and_not_the_run(tmp_path: Path) -> None:
    def divide(_ctx: Context, _params: Params) -> float:
        raise ZeroDivisionError("a bug")

    sound = make_step("sdc")
    broken = replace(make_step("gemm"), check=replace(sound.check, estimate=divide))
    first, second = verify(tmp_path, FakeExecutor(inventory=NODE), broken, sound).results

    assert (first.verdict, first.remedy) == (Verdict.ERROR, Remedy.FIX_CHECKER)
    assert first.reason == "the estimate of the check raised ZeroDivisionError: a bug"
    assert second.verdict is Verdict.PASS


def test_a_healthy_run_accuses_nobody(tmp_path: Path) -> None:
    results = verify(tmp_path, FakeExecutor(inventory=NODE), make_step("gemm")).results
    assert [(r.verdict, r.findings) for r in results] == [(Verdict.PASS, ())]
