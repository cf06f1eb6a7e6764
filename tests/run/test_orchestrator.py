"""What runs where and when, and what a run makes of the answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hpcverify.check import UNOWNED_CODE, Context, Metric, Params, Placement, Rule, Watch
from hpcverify.model import (
    CarryOver,
    Cause,
    CheckItem,
    Coverage,
    Device,
    Finding,
    FindingRule,
    Inventory,
    Limit,
    Maturity,
    Measurement,
    Part,
    Remedy,
    Result,
    Run,
    Series,
    Shortfall,
    Verdict,
)
from hpcverify.plan.suite import Plan, Step
from hpcverify.records import documents
from hpcverify.run.attribution import describe_overrun
from hpcverify.run.conclude import judge_cut_short, judge_result
from hpcverify.run.executor import Answer, Overrun
from hpcverify.run.history import NodeHistory, extend_history
from hpcverify.run.orchestrator import derive_seed
from hpcverify.run.wire import GpuHolder, Measure, Observe, Outcome, Probe, Settle, Task
from hpcverify.testing import CPU, ENDED, FakeExecutor, make_answer
from tests.doubles import SilentProgress
from tests.run.builders import break_worker, make_gpus, make_step, verify

GPUS = make_gpus(3)
NODE = Inventory(devices=(CPU, *GPUS))


def observe(_watch: Watch, _ctx: Context, _params: Params) -> Iterator[CheckItem]:
    yield from ()


def step(placement: Placement = Placement.DEVICES, **changes: Any) -> Step:
    metrics = {"speed": Metric("", "low", "m").fail(low=10.0)}
    return make_step(placement=placement, metrics=metrics, **changes)


NOW = 1000.0


def verified(tmp_path: Path, executor: FakeExecutor, *steps: Step, **changes: Any) -> Run:
    """Run *steps*, for which there are 100 s, with the workers of *executor*."""
    by_no_clock: dict[str, Any] = {"began": NOW, "clock": lambda: NOW}
    return verify(tmp_path, executor, *(steps or (step(),)), **by_no_clock | changes)


def only(run: Run) -> Result:
    (result,) = run.results
    return result


@pytest.mark.parametrize(
    ("placement", "phases"),
    [
        (Placement.PASSIVE, [["telemetry"]]),
        (Placement.NODE, [["node"]]),
        (Placement.DEVICES_TOGETHER, [["node"]]),
        (Placement.DEVICES, [["cpu"], ["gpu-0", "gpu-1", "gpu-2"]]),
        (Placement.ALL_DEVICES, [["cpu", "gpu-0", "gpu-1", "gpu-2"]]),
        (Placement.DEVICES_ALONE, [["cpu"], ["gpu-0"], ["gpu-1"], ["gpu-2"]]),
    ],
)
def test_a_check_runs_where_it_belongs_beside_whom_it_should(
    tmp_path: Path, placement: Placement, phases: list[list[str]]
) -> None:
    executor = FakeExecutor(inventory=NODE)
    verified(tmp_path, executor, step(placement))
    assert [sorted(phase) for phase in executor.phases] == phases
    assert executor.closed


HIDDEN = Finding(
    "partial_view",
    "node",
    "CUDA_VISIBLE_DEVICES=0 shows 3 of 4 GPUs. Fix: unset it",
)
FALLEN = Finding("gpu_lost", "gpu-9", "GPU is lost")


@pytest.mark.parametrize(
    ("problem", "remedy"),
    [(HIDDEN, Remedy.FIX_CONFIGURATION), (FALLEN, Remedy.INSPECT)],
    ids=lambda each: getattr(each, "code", ""),
)
@pytest.mark.parametrize("placement", [Placement.DEVICES_TOGETHER, Placement.DEVICES])
def test_a_check_of_the_devices_says_which_it_could_not_use_and_keeps_what_it_found(
    tmp_path: Path, placement: Placement, problem: Finding, remedy: Remedy
) -> None:
    node = msgspec.structs.replace(NODE, problems=(problem,))
    workers = ("node", *(device.part for device in NODE.devices))
    answers = dict.fromkeys(workers, make_answer(Measurement("speed", 11)))
    executor = FakeExecutor(inventory=node, answers=answers)
    result = only(verified(tmp_path, executor, step(placement)))

    assert (result.verdict, result.remedy) == (Verdict.ERROR, remedy)
    assert result.reason.endswith(problem.text)
    assert result.measurements


@pytest.mark.parametrize("place", ["scratch", "folder"])
def test_a_directory_that_is_gone_under_way_is_made_nowhere_else(
    tmp_path: Path, place: str
) -> None:
    executor = FakeExecutor()
    gone = tmp_path / "gone"
    changes: dict[str, Any] = {place: gone}
    plan = (step(), step(Placement.PASSIVE))
    load, reading = verified(tmp_path, executor, *plan, **changes).results

    assert (load.verdict, load.cause) == (Verdict.ERROR, Cause.MISSING)
    assert load.remedy is Remedy.INSPECT
    assert f"{gone}/" in load.reason
    assert not gone.exists()
    assert reading.verdict is Verdict.PASS


def test_for_a_check_that_only_reads_no_directory_is_made(tmp_path: Path) -> None:
    executor = FakeExecutor(inventory=NODE)
    verified(tmp_path, executor, step(Placement.PASSIVE))
    (task,) = (t for t in executor.phases[0].values() if isinstance(t, Measure))
    assert task.context.scratch == task.context.shared == tmp_path
    assert list(tmp_path.iterdir()) == []


def test_only_devices_of_one_kind_meet(tmp_path: Path) -> None:
    executor = FakeExecutor(inventory=NODE)
    verified(tmp_path, executor, step(Placement.ALL_DEVICES))
    tasks = [t for t in executor.phases[0].values() if isinstance(t, Measure)]
    places = [task.context.shared for task in tasks]
    assert (len(set(places)), len(set(places[1:]))) == (2, 1)


def test_peers_are_the_devices_of_one_kind_in_the_same_order_for_all(tmp_path: Path) -> None:
    executor = FakeExecutor(inventory=NODE)
    verified(tmp_path, executor)
    tasks = [t for t in executor.phases[1].values() if isinstance(t, Measure)]
    assert {t.context.peers for t in tasks} == {GPUS}
    assert ([t.context.rank for t in tasks], len({t.context.seed for t in tasks})) == ([0, 1, 2], 1)


def test_what_all_devices_found_is_one_result(tmp_path: Path) -> None:
    answers = {g.part: make_answer(Measurement("speed", 11, "", g.part)) for g in GPUS}
    answers["gpu-1"] = make_answer(Measurement("speed", 9, "", "gpu-1"))
    result = only(verified(tmp_path, FakeExecutor(inventory=NODE, answers=answers)))

    assert result.verdict is Verdict.FAIL
    assert result.reason == "gpu-1: speed 9 < 10 (hpcverify default)"
    assert (len(result.measurements), [limit.name for limit in result.limits]) == (3, ["speed"])


def test_a_device_that_could_not_be_measured_is_an_error_with_its_name(tmp_path: Path) -> None:
    executor = FakeExecutor(inventory=NODE, answers={"gpu-2": break_worker(Cause.CRASHED)})
    result = only(verified(tmp_path, executor))
    assert (result.verdict, result.cause) == (Verdict.ERROR, Cause.CRASHED)
    assert "gpu-2: it broke" in result.reason


def test_an_error_hides_no_failure_that_was_found_before_it(tmp_path: Path) -> None:
    broke = break_worker(Cause.CRASHED, Measurement("speed", 1, "", "gpu-2"))
    executor = FakeExecutor(inventory=NODE, answers={"gpu-2": broke})
    result = only(verified(tmp_path, executor))
    assert result.verdict is Verdict.FAIL
    assert "speed 1 < 10" in result.reason


def skipped(reason: str, cause: Cause = Cause.NOT_APPLICABLE) -> Answer:
    return Answer(outcome=Outcome(verdict=Verdict.SKIP, reason=reason, cause=cause))


def test_skipped_on_every_device_is_a_skip(tmp_path: Path) -> None:
    executor = FakeExecutor(answers={"cpu": skipped("no such part")})
    result = only(verified(tmp_path, executor))
    assert (result.verdict, result.reason) == (Verdict.SKIP, "no such part")
    assert result.cause is Cause.NOT_APPLICABLE


def test_skipped_on_some_devices_is_said_in_the_coverage(tmp_path: Path) -> None:
    executor = FakeExecutor(inventory=NODE, answers={"cpu": skipped("not for CPUs")})
    result = only(verified(tmp_path, executor))
    assert result.verdict is Verdict.PASS
    assert [c.text for c in result.coverage] == ["skipped: not for CPUs"]


def test_a_broken_driver_is_an_error_of_every_check_of_devices(tmp_path: Path) -> None:
    problem = Finding("driver_not_loaded", "node", "the NVIDIA driver is not loaded")
    node = Inventory(devices=(CPU,), problems=(problem,))
    result = only(verified(tmp_path, FakeExecutor(inventory=node)))
    assert (result.verdict, result.cause) == (Verdict.ERROR, Cause.MISCONFIGURED)
    assert problem.text in result.reason


def test_a_gpu_of_the_last_run_that_is_gone_is_not_passed_over(tmp_path: Path) -> None:
    memory = NodeHistory(previous=NODE)
    here = FakeExecutor(inventory=Inventory(devices=(CPU, *GPUS[:2])))
    result = only(verified(tmp_path, here, history=memory))
    assert result.verdict is Verdict.ERROR
    assert "GPU 2 was here before" in result.reason


@pytest.mark.parametrize(
    ("force", "placement", "cause"),
    [
        (False, Placement.DEVICES, Cause.BUSY),
        (True, Placement.DEVICES, Cause.NONE),
        (False, Placement.PASSIVE, Cause.NONE),
    ],
)
def test_nobodys_work_on_a_gpu_is_disturbed(
    tmp_path: Path, *, force: bool, placement: Placement, cause: Cause
) -> None:
    executor = FakeExecutor(inventory=NODE, holders=(GpuHolder("gpu-0", 4242),))
    result = only(verified(tmp_path, executor, step(placement), force=force))
    assert result.cause is cause
    assert ("4242" in result.reason) is (cause is Cause.BUSY)


def test_a_probe_that_fails_is_an_error_and_never_a_node_without_gpus(tmp_path: Path) -> None:
    class Blind(FakeExecutor):
        def run(self, tasks, timeout):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
            if "telemetry" in tasks:
                return {"telemetry": break_worker(Cause.HUNG)}
            return super().run(tasks, timeout)

    run = verified(tmp_path, Blind())

    assert run.verdict is Verdict.ERROR
    assert "listing the hardware failed: it broke" in only(run).reason


def test_being_told_to_stop_leaves_a_run_that_is_not_complete(tmp_path: Path) -> None:
    run = verified(tmp_path, FakeExecutor(told_to_stop=True), step(), step())
    assert not run.complete
    assert {r.cause for r in run.results} == {Cause.INTERRUPTED}
    assert run.verdict is Verdict.ERROR


def test_telemetry_is_asked_about_the_time_of_the_check(tmp_path: Path) -> None:
    executor = FakeExecutor(
        inventory=NODE,
        answers={"telemetry": make_answer(Series("t", "°C", "cpu", (0.0,), (50.0,)))},
    )
    result = only(verified(tmp_path, executor, step(observe=observe)))
    (task,) = executor.phases[-1].values()

    assert isinstance(task, Observe)
    assert task.start <= task.end
    assert [c.device.part for c in task.contexts] == ["cpu", "gpu-0", "gpu-1", "gpu-2"]
    assert result.series[0].name == "t"


def test_a_check_that_was_skipped_is_not_also_observed(tmp_path: Path) -> None:
    executor = FakeExecutor(
        answers={"cpu": skipped("no sensor"), "telemetry": break_worker(Cause.CRASHED)}
    )
    assert only(verified(tmp_path, executor, step(observe=observe))).verdict is Verdict.SKIP


def test_a_passive_check_is_observed_where_something_loads_the_node(tmp_path: Path) -> None:
    executor = FakeExecutor(answers={"telemetry": make_answer(Measurement("speed", 11))})
    passive = step(Placement.PASSIVE, observe=observe)
    _, result = verified(tmp_path, executor, step(), passive).results
    assert len(result.measurements) == 2


def test_a_passive_suite_samples_nothing_and_observes_nothing(tmp_path: Path) -> None:
    executor = FakeExecutor(answers={"telemetry": make_answer(Measurement("speed", 11))})
    result = only(verified(tmp_path, executor, step(Placement.PASSIVE, observe=observe)))
    assert executor.probes == [Probe(sample=False, folder=tmp_path.parent)]
    assert len(result.measurements) == 1


def test_a_run_says_whether_anything_loaded_the_node(tmp_path: Path) -> None:
    passive = msgspec.structs.replace(step(Placement.PASSIVE), name="p")
    answer = make_answer(Measurement("speed", 11))
    ran = FakeExecutor(answers={"cpu": answer, "telemetry": answer})
    no_part = Answer(outcome=Outcome(verdict=Verdict.SKIP, reason="none"))
    skipped = FakeExecutor(answers={"cpu": no_part, "telemetry": answer})

    assert verified(tmp_path, ran, passive).passive is True
    assert verified(tmp_path, ran, step(), passive).passive is False
    assert verified(tmp_path, skipped, step(), passive).passive is True


def test_a_check_is_told_again_what_it_marked(tmp_path: Path) -> None:
    mark = CarryOver("cursor", "17")
    executor = FakeExecutor(answers={"cpu": make_answer(CarryOver("cursor", "18"))})
    memory = NodeHistory(carry_overs={"c": (mark,), "d": (CarryOver("cursor", "99"),)})
    result = only(verified(tmp_path, executor, step(), history=memory))
    ((task,),) = (phase.values() for phase in executor.phases)

    assert isinstance(task, Measure)
    assert (task.context.recall("cursor"), task.context.recall("other")) == ("17", None)
    assert result.marks == (CarryOver("cursor", "18"),)


def test_who_waits_to_settle_is_told_for_which_check_and_devices(tmp_path: Path) -> None:
    executor = FakeExecutor(inventory=NODE)
    verified(tmp_path, executor, step(), step(Placement.DEVICES_ALONE), settle=60)
    tasks = [t for phase in executor.phases for t in phase.values()]
    (task,) = (t for t in tasks if isinstance(t, Settle))
    assert (task.name, [ctx.device for ctx in task.contexts]) == ("c", [CPU, *GPUS])


def test_the_devices_settle_before_a_check_that_follows_a_load(tmp_path: Path) -> None:
    waited = Coverage("node", "began after 9 s of settling")
    executor = FakeExecutor(answers={"telemetry": make_answer(waited)})
    plan = (step(Placement.PASSIVE), step(), step(), step(Placement.PASSIVE))
    run = verified(tmp_path, executor, *plan, settle=60)

    assert sum(isinstance(t, Settle) for p in executor.phases for t in p.values()) == 1
    assert waited in run.results[2].coverage
    assert waited not in run.results[1].coverage


def list_released(executor: FakeExecutor) -> list[tuple[str, ...]]:
    tasks = [t for phase in executor.phases for t in phase.values()]
    return [task.released for task in tasks if isinstance(task, Settle)]


@pytest.mark.parametrize(
    ("how", "waits"),
    [
        (Answer(outcome=Outcome(is_worker_spent=True)), True),
        (break_worker(Cause.CRASHED), True),
        (Answer(outcome=break_worker(Cause.TIMEOUT).outcome, overrun=Overrun(seconds=9)), True),
        (break_worker(Cause.MISSING), False),
        (ENDED, False),
    ],
)
def test_after_a_worker_was_ended_the_next_load_waits_for_the_memory_of_its_gpu(
    tmp_path: Path,
    how: Answer,
    waits: bool,  # noqa: FBT001
) -> None:
    executor = FakeExecutor(inventory=NODE, answers={"gpu-1": how})
    verified(tmp_path, executor, step(), step(Placement.PASSIVE), step(Placement.NODE))
    assert list_released(executor) == ([("gpu-1",)] if waits else [])


def test_a_worker_of_the_whole_node_may_have_used_every_gpu(tmp_path: Path) -> None:
    executor = FakeExecutor(inventory=NODE, answers={"node": break_worker(Cause.CRASHED)})
    verified(tmp_path, executor, step(Placement.NODE), step())
    assert list_released(executor) == [tuple(gpu.part for gpu in GPUS)]


def test_a_wait_for_memory_is_told_once_and_memory_that_is_kept_is_a_finding(
    tmp_path: Path,
) -> None:
    kept = Finding(UNOWNED_CODE, "gpu-1", "70 GiB")
    waited = Coverage("gpu-0", "free again")
    executor = FakeExecutor(
        inventory=NODE,
        answers={"gpu-1": break_worker(Cause.CRASHED), "telemetry": make_answer(waited, kept)},
    )
    first, second = verified(tmp_path, executor, step(), step(Placement.NODE)).results

    assert kept not in first.findings
    assert (second.verdict, second.remedy) == (Verdict.WARN, Remedy.RESET_GPU)
    assert second.findings == (kept,)
    assert waited in second.coverage


def test_rulings_are_kept_with_the_findings_that_they_were_for(tmp_path: Path) -> None:
    rulings = {"old": FindingRule(Verdict.WARN), "unseen": FindingRule(Verdict.FAIL)}
    executor = FakeExecutor(answers={"cpu": make_answer(Finding("old", "cpu", "it is old"))})
    result = only(verified(tmp_path, executor, step(finding_rules=rulings)))
    assert result.verdict is Verdict.WARN
    assert result.rulings == {"old": rulings["old"]}


def test_the_maturity_of_a_check_is_kept_with_its_result(tmp_path: Path) -> None:
    run = verified(tmp_path, FakeExecutor(), step(maturity=Maturity.BETA))
    assert only(run).maturity is Maturity.BETA


def test_a_nodes_past_is_a_limit_with_its_source(tmp_path: Path) -> None:
    planned = make_step(metrics={"speed": Metric("", "low", "m").fail(of_baseline=0.5)})
    memory = NodeHistory(past_values=lambda _check: lambda _name, _where: [100.0] * 9)
    executor = FakeExecutor(answers={"cpu": make_answer(Measurement("speed", 49))})
    result = only(verified(tmp_path, executor, planned, history=memory))

    assert result.verdict is Verdict.FAIL
    assert result.limits == (
        Limit(
            name="speed",
            low=50.0,
            part_id="node",
            source="0.5 x 100, the median of this node's last 9 runs",
        ),
    )


def test_an_interrupted_run_never_fails_a_node(tmp_path: Path) -> None:
    broke = break_worker(Cause.INTERRUPTED, Measurement("speed", 1, "", "cpu"))
    run = verified(tmp_path, FakeExecutor(answers={"cpu": broke}))
    assert only(run).verdict is Verdict.FAIL
    assert (run.verdict, run.complete) == (Verdict.ERROR, False)


def test_a_gpu_that_was_replaced_is_not_missed_as_well(tmp_path: Path) -> None:
    def node(uuid: str) -> Inventory:
        part = Part("gpu", uuid, uuid, {"pci_address": "0000:18:00.0"})
        return Inventory(parts=(part,), devices=(Device("cuda", uuid, uuid),))

    memory = NodeHistory(previous=node("old"))
    run = verified(tmp_path, FakeExecutor(inventory=node("new")), history=memory)

    assert only(run).verdict is Verdict.PASS


def test_what_could_not_be_verified_stays_so_when_it_is_judged_again(tmp_path: Path) -> None:
    answers = {"cpu": break_worker(Cause.TIMEOUT, Measurement("speed", 1, "", "cpu"))}
    result = only(verified(tmp_path, FakeExecutor(answers=answers)))
    relaxed = {"speed": Rule(low=0.0)}
    again = judge_result(result, relaxed, {}, Inventory(), lambda *_: ())

    assert result.verdict is Verdict.FAIL
    assert (again.verdict, again.cause) == (Verdict.ERROR, Cause.TIMEOUT)


class InRounds(FakeExecutor):
    """Answers a check on the CPU otherwise each time, and then with nothing."""

    def __init__(self, *answers: Answer) -> None:
        """Take the answers in the order of the rounds."""
        super().__init__()
        self._answers = iter(answers)

    def run(self, tasks: Mapping[str, Task], timeout: float) -> dict[str, Answer]:
        """Go on to the next answer with each measurement on the CPU."""
        if isinstance(tasks.get("cpu"), Measure):
            self.answers["cpu"] = next(self._answers, ENDED)
        return super().run(tasks, timeout)

    def contexts(self) -> list[Context]:
        """List what the checks on the CPU were told."""
        tasks = [phase.get("cpu") for phase in self.phases]
        return [task.context for task in tasks if isinstance(task, Measure)]


SLOW = make_answer(Measurement("speed", 1, "", "cpu"))
FAST = make_answer(Measurement("speed", 11, "", "cpu"))


def rounds_and_verdicts(run: Run) -> list[tuple[int, str]]:
    return [(r.round, r.verdict.value) for r in run.results]


def test_all_checks_run_in_order_in_every_round(tmp_path: Path) -> None:
    named = [msgspec.structs.replace(step(), name=name) for name in "ba"]
    run = verified(tmp_path, FakeExecutor(), *named, rounds=3)
    told = [(r.round, r.check) for r in run.results]
    assert told == [(n, name) for n in (1, 2, 3) for name in "ba"]
    assert (run.rounds, run.left_out, run.complete) == (3, "", True)


def test_each_round_has_a_seed_and_a_turn_of_its_own(tmp_path: Path) -> None:
    first, second = InRounds(), InRounds()
    for executor in (first, second):
        memory = NodeHistory(run_count=7)
        verified(tmp_path, executor, rounds=4, seed=2**31 - 1, history=memory)
    seeds = [context.seed for context in first.contexts()]

    assert [context.rotation for context in first.contexts()] == [7, 8, 9, 10]
    assert (seeds[0], len(set(seeds))) == (2**31 - 1, 4)
    assert seeds == [context.seed for context in second.contexts()]


def test_a_thousand_rounds_have_a_thousand_seeds() -> None:
    assert len({derive_seed(1, number) for number in range(1, 1001)}) == 1000
    assert min(derive_seed(2**31 - 1, number) for number in range(1, 1001)) >= 0


def test_a_round_is_told_what_those_before_it_marked(tmp_path: Path) -> None:
    executor = InRounds(
        make_answer(CarryOver("a", "1"), CarryOver("b", "1")), make_answer(CarryOver("a", "2"))
    )
    memory = NodeHistory(carry_overs={"c": (CarryOver("a", "0"),)})
    verified(tmp_path, executor, rounds=3, history=memory)
    told = [(c.recall("a"), c.recall("b")) for c in executor.contexts()]

    assert told == [("0", None), ("1", "1"), ("2", "1")]


def test_a_round_that_failed_is_finished_and_is_the_last(tmp_path: Path) -> None:
    executor = InRounds(FAST, FAST, SLOW, FAST)
    run = verified(tmp_path, executor, step(), step(), rounds=5)
    assert rounds_and_verdicts(run) == [*((1, "pass"), (1, "pass")), *((2, "fail"), (2, "pass"))]
    assert (run.verdict, run.complete) == (Verdict.FAIL, True)
    assert run.left_out == "round 2 failed"


SKIPPED = Answer(
    outcome=Outcome(verdict=Verdict.SKIP, reason="no such tool", cause=Cause.NOT_OBSERVABLE)
)


@pytest.mark.parametrize(
    ("answer", "verdict"), [(SKIPPED, "skip"), (break_worker(Cause.MISSING), "error")]
)
def test_after_a_first_round_in_which_no_check_could_run_there_is_no_other(
    tmp_path: Path, answer: Answer, verdict: str
) -> None:
    executor = FakeExecutor(answers={"node": answer})
    node = step(Placement.NODE)
    run = verified(tmp_path, executor, node, node, rounds=5)

    assert rounds_and_verdicts(run) == [(1, verdict), (1, verdict)]
    assert (run.verdict, run.complete) == (Verdict.ERROR, True)
    assert run.left_out == "no check could run in the first"


class Told(SilentProgress):
    """Keeps which checks began and what came of them."""

    def __init__(self) -> None:
        self.began: list[int] = []
        self.ended: list[tuple[int, str]] = []

    def begin_step(self, step: Step, place: int, plan: Plan, target: str) -> None:
        """Keep its place."""
        super().begin_step(step, place, plan, target)
        self.began.append(place)

    def end_step(self, result: Result) -> None:
        """Keep the verdict."""
        self.ended.append((result.round, result.verdict.value))


def test_why_a_check_is_skipped_is_told_in_one_round(tmp_path: Path) -> None:
    told, answers = Told(), {"node": SKIPPED}
    node = msgspec.structs.replace(step(Placement.NODE), name="n")
    run = verified(tmp_path, FakeExecutor(answers=answers), step(), node, rounds=3, progress=told)

    assert told.began == [1, 2, 3, 5]
    assert told.ended == [(1, "pass"), (1, "skip"), (2, "pass"), (3, "pass")]
    assert rounds_and_verdicts(run)[-1] == (3, "skip")


@pytest.mark.parametrize(
    ("answer", "verdict"), [(break_worker(Cause.CRASHED), Verdict.ERROR), (ENDED, Verdict.PASS)]
)
def test_what_is_no_failure_ends_no_run(tmp_path: Path, answer: Answer, verdict: Verdict) -> None:
    run = verified(tmp_path, InRounds(FAST, answer), rounds=3)
    assert [number for number, _ in rounds_and_verdicts(run)] == [1, 2, 3]
    assert run.verdict is verdict


def test_a_failure_in_beta_ends_no_run(tmp_path: Path) -> None:
    beta = step(maturity=Maturity.BETA)
    run = verified(tmp_path, InRounds(SLOW), beta, rounds=2)
    assert rounds_and_verdicts(run) == [(1, "fail"), (2, "pass")]
    assert run.verdict is Verdict.WARN


def test_a_round_that_does_not_fit_is_not_begun_and_is_no_error(tmp_path: Path) -> None:
    begun = NOW - 60  # of 100
    run = verified(tmp_path, FakeExecutor(), rounds=3, began=begun)
    assert rounds_and_verdicts(run) == [(1, "pass")]
    assert (run.verdict, run.complete) == (Verdict.PASS, True)
    assert "a round took up to 60 s" in run.left_out


@pytest.mark.parametrize(("took", "settle"), [(48, 0), (40, 30)])
def test_a_round_is_begun_only_with_time_to_spare(
    tmp_path: Path, took: float, settle: float
) -> None:
    begun = NOW - took
    run = verified(tmp_path, FakeExecutor(), rounds=3, settle=settle, began=begun)
    assert rounds_and_verdicts(run) == [(1, "pass")]
    assert f"a round took up to {took} s" in run.left_out


def test_a_round_that_fits_is_begun(tmp_path: Path) -> None:
    begun = NOW - 30
    run = verified(tmp_path, FakeExecutor(), rounds=3, began=begun)
    assert [number for number, _ in rounds_and_verdicts(run)] == [1, 2, 3]


def test_a_first_round_that_does_not_fit_is_an_error(tmp_path: Path) -> None:
    begun = NOW - 101
    run = verified(tmp_path, FakeExecutor(), rounds=3, began=begun)
    assert (only(run).cause, run.verdict) == (Cause.TIMEOUT, Verdict.ERROR)


class Slow(InRounds):
    """Needs 60 s for a measurement, by its own clock, from the third one on."""

    def clock(self) -> float:
        return NOW + 60 * max(0, len(self.contexts()) - 2)


def ended(*items: CheckItem, after: float = 60, stuck: str = "") -> Answer:
    """Answer as a worker that found *items* and had not come to its end *after* s."""
    overrun = Overrun(seconds=after, stuck=stuck)
    outcome = msgspec.structs.replace(describe_overrun(overrun), end=after)
    return Answer(items=make_answer(*items).items, outcome=outcome, overrun=overrun)


def of_two(
    tmp_path: Path,
    *answers: Answer,
    rounds: int = 3,
    rulings: Mapping[str, FindingRule] | None = None,
) -> Run:
    """Go through two checks that may take 9 and 99 s, with 40 s left for the last."""
    base = step(finding_rules=rulings or {})
    first, last = (msgspec.structs.replace(base, name=name) for name in "ab")
    last = msgspec.structs.replace(last, timeout=99)
    slow = Slow(FAST, FAST, *answers)
    return verified(tmp_path, slow, first, last, rounds=rounds, clock=slow.clock)


@pytest.mark.parametrize("rounds", [2, 3])
def test_a_later_round_that_the_budget_cuts_short_is_no_error_and_is_said(
    tmp_path: Path, rounds: int
) -> None:
    run = of_two(tmp_path, FAST, ended(), rounds=rounds)

    assert rounds_and_verdicts(run) == [(1, "pass"), (1, "pass"), (2, "pass")]
    assert (run.verdict, run.complete) == (Verdict.PASS, True)
    assert run.left_out == (
        "round 2 was cut short when the suite's 100 s ran out, with no result of b"
    )


def test_checks_without_a_turn_in_a_later_round_are_no_error_and_are_said(tmp_path: Path) -> None:
    slow = Slow()
    named = [msgspec.structs.replace(step(), name=n) for n in "ab"]
    late = [msgspec.structs.replace(step(Placement.NODE), name=n) for n in "cd"]
    run = verified(tmp_path, slow, *named, *late, rounds=3, clock=slow.clock)

    assert [r.check for r in run.results] == [*"abcd", *"ab"]
    assert run.verdict is Verdict.PASS
    assert run.left_out.endswith("with no result of c, d")


CUT = {
    "worn": FindingRule(Verdict.WARN),
    "unsound": FindingRule(Verdict.ERROR, cause=Cause.CHECKER),
    "broken": FindingRule(Verdict.FAIL),
}


@pytest.mark.parametrize("code", CUT)
def test_what_is_bad_counts_though_the_budget_cut_the_check_short(
    tmp_path: Path, code: str
) -> None:
    fact = Finding(code, "cpu", "a fact")
    run = of_two(tmp_path, FAST, ended(fact), rulings=CUT)
    assert run.verdict is run.results[-1].verdict is CUT[code].verdict
    assert run.results[-1].reason == "CPU: a fact"
    assert run.results[-1].cause is CUT[code].cause


def test_a_number_outside_its_limit_counts_though_the_check_was_cut_short(tmp_path: Path) -> None:
    run = of_two(tmp_path, FAST, ended(Measurement("speed", 1, "", "cpu")))
    assert (run.verdict, run.results[-1].round) == (Verdict.FAIL, 2)
    assert "speed 1 < 10" in run.results[-1].reason


def test_half_a_check_is_not_asked_for_what_the_whole_one_would_have_had() -> None:
    some, few = Measurement("speed", 11.0), Measurement("samples", 2.0)
    limits = (
        Limit(name="speed", low=10.0),
        Limit(name="samples", low=9.0, otherwise=Verdict.ERROR),
        Limit(name="products", low=9.0),
    )
    half = Result(
        check="c",
        verdict=Verdict.ERROR,
        measurements=(some, few),
        limits=limits,
        shortfalls=(Shortfall("cpu", "no end", Cause.TIMEOUT),),
    )

    assert judge_cut_short(half, frozenset({"cpu"}), Inventory()) is None
    assert judge_cut_short(half, frozenset({"gpu-0"}), Inventory()) == half


@pytest.mark.parametrize(
    "answer", [break_worker(Cause.TIMEOUT), break_worker(Cause.CRASHED), ended(stuck="process 7")]
)
def test_what_befalls_a_check_by_itself_is_an_error_in_every_round(
    tmp_path: Path, answer: Answer
) -> None:
    run = of_two(tmp_path, FAST, answer)
    assert run.verdict is Verdict.ERROR
    assert run.results[-1].cause is answer.outcome.cause


def test_a_check_that_takes_longer_than_it_may_is_an_error_in_every_round(tmp_path: Path) -> None:
    run = of_two(tmp_path, ended(after=9), FAST)
    assert [v for _, v in rounds_and_verdicts(run)] == ["pass", "pass", "error", "pass"]


def test_a_first_round_that_the_budget_cuts_short_is_an_error(tmp_path: Path) -> None:
    begun = NOW - 95
    run = verified(tmp_path, InRounds(ended()), rounds=3, began=begun)
    assert (only(run).cause, run.verdict) == (Cause.TIMEOUT, Verdict.ERROR)


def test_nobody_is_asked_what_was_sampled_when_the_sampling_was_cut_short(tmp_path: Path) -> None:
    slow = Slow()
    slow.answers["telemetry"] = ended()
    passive = step(Placement.PASSIVE, observe=observe)
    passive = msgspec.structs.replace(passive, name="p", timeout=99)
    run = verified(tmp_path, slow, step(), passive, rounds=3, clock=slow.clock)
    watches = [t for p in slow.phases for t in p.values() if isinstance(t, Observe)]

    assert len(watches) == 2
    assert (run.results[-1].round, run.results[-1].check) == (3, "c")


def test_a_document_that_could_not_be_read_again_is_not_filled(tmp_path: Path) -> None:
    run = verified(tmp_path, FakeExecutor(), rounds=9, max_bytes=2000)
    assert 1 < len(run.results) < 9
    assert documents.count_bytes(run.results) < 2000
    assert "exceed the size limit" in run.left_out


def test_a_run_that_is_told_to_stop_begins_no_other_round(tmp_path: Path) -> None:
    run = verified(tmp_path, InRounds(FAST, break_worker(Cause.INTERRUPTED)), rounds=9)
    assert rounds_and_verdicts(run) == [(1, "pass"), (2, "error")]
    assert (run.verdict, run.complete, run.left_out) == (Verdict.ERROR, False, "")


def test_to_be_told_to_stop_between_two_rounds_is_no_end(tmp_path: Path) -> None:
    class Stopping(InRounds):
        def should_stop(self) -> bool:
            return len(self.contexts()) == 1

    run = verified(tmp_path, Stopping(), rounds=9)

    assert run.results[-1].cause is Cause.INTERRUPTED
    assert (len(run.results), run.complete) == (2, False)


def test_passive_checks_watch_the_whole_run_between_them(tmp_path: Path) -> None:
    executor = FakeExecutor()
    passive = step(Placement.PASSIVE, observe=observe)
    begun = NOW - 1
    verified(tmp_path, executor, step(), passive, rounds=3, began=begun)
    watches = [t for p in executor.phases for t in p.values() if isinstance(t, Observe)]

    assert watches[0].start == begun
    assert ([w.start for w in watches[1:]], len(watches)) == ([w.end for w in watches[:-1]], 3)


def test_what_could_not_be_heard_is_asked_for_again_in_the_next_round(tmp_path: Path) -> None:
    executor = FakeExecutor(answers={"telemetry": break_worker(Cause.TIMEOUT)})
    passive = step(Placement.PASSIVE, observe=observe)
    verified(tmp_path, executor, step(), passive, rounds=2)
    watches = [t for p in executor.phases for t in p.values() if isinstance(t, Observe)]
    assert watches[1].start == watches[0].start


def test_the_devices_settle_between_two_rounds(tmp_path: Path) -> None:
    executor = FakeExecutor()
    verified(tmp_path, executor, settle=60, rounds=2)
    kinds = [type(t) for p in executor.phases for t in p.values()]
    assert kinds == [Measure, Settle, Measure]


class Losing(FakeExecutor):
    """Has one GPU less, and is held by its own workers, from the second look on."""

    def run(self, tasks: Mapping[str, Task], timeout: float) -> dict[str, Answer]:
        """Answer for what is there now."""
        if isinstance(tasks.get("telemetry"), Probe) and self.probes:
            self.inventory = Inventory(devices=(CPU, *GPUS[:2]))
            self.holders = (GpuHolder("gpu-0", 4242),)
        return super().run(tasks, timeout)


def test_a_gpu_that_is_lost_in_one_round_is_missed_in_the_next(tmp_path: Path) -> None:
    executor = Losing(inventory=NODE)
    listing = msgspec.structs.replace(step(Placement.PASSIVE), name="inventory")
    run = verified(tmp_path, executor, listing, step(), rounds=2)
    tasks = [t for p in executor.phases for t in p.values() if isinstance(t, Measure)]

    assert rounds_and_verdicts(run)[1:] == [(1, "pass"), (2, "pass"), (2, "error")]
    assert "GPU 2 was here" in run.results[-1].reason
    assert [p.sample for p in executor.probes] == [True, False]
    assert tasks[-1].context.previous == NODE
    assert run.inventory == NODE


@pytest.mark.parametrize("previous", [None, NODE])
def test_a_gpu_that_is_lost_is_missed_in_all_rounds_though_nobody_lists_the_parts(
    tmp_path: Path, previous: Inventory | None
) -> None:
    memory = NodeHistory(previous=previous)
    run = verified(tmp_path, Losing(inventory=NODE), rounds=3, history=memory)
    assert rounds_and_verdicts(run) == [(1, "pass"), (2, "error"), (3, "error")]
    assert all("GPU 2 was here before" in r.reason for r in run.results[1:])


def part(uuid: str, slot: str) -> Part:
    return Part("gpu", uuid, uuid, {"pci_address": slot})


def of_gpus(*gpus: Part) -> Inventory:
    devices = tuple(Device("cuda", gpu.id, gpu.id) for gpu in gpus)
    return Inventory(parts=gpus, devices=devices)


def test_what_nobody_refused_is_missed_beside_what_an_earlier_run_had() -> None:
    known = of_gpus(part("old", "1"), part("gone", "2"), part("same", "3"))
    here = of_gpus(part("new", "1"), part("same", "3"), part("added", "4"))
    held = extend_history(NodeHistory(previous=known), [], here).previous

    assert held is not None
    assert {d.part for d in held.devices} == {"new", "same", "added", "gone"}
    assert {p.id for p in held.of_kind("gpu")} == {"new", "same", "added", "gone"}


def test_an_inventory_that_was_refused_is_no_reference_for_the_next_round() -> None:
    refused = Result(check="inventory", verdict=Verdict.ERROR)
    accepted = Result(check="inventory", verdict=Verdict.WARN)
    memory = NodeHistory(previous=NODE)
    assert extend_history(memory, [refused], Inventory()).previous == NODE
    assert extend_history(memory, [accepted], Inventory()).previous == Inventory()


def test_to_skip_what_is_required_in_one_round_is_an_error_of_the_run(tmp_path: Path) -> None:
    required = msgspec.structs.replace(step(), required=True)
    run = verified(tmp_path, InRounds(FAST, skipped("gone")), required, rounds=3)
    assert [v for _, v in rounds_and_verdicts(run)] == ["pass", "skip", "pass"]
    assert run.verdict is Verdict.ERROR


@pytest.mark.parametrize(("code", "asked"), [("torch_without_platform", 1), ("", 2)])
def test_gpus_that_none_of_them_can_compute_on_are_asked_once(
    tmp_path: Path, code: str, asked: int
) -> None:
    """What one check alone misses keeps no other from being run."""
    missing = Outcome(verdict=Verdict.ERROR, reason="no", cause=Cause.MISSING, code=code)
    answers = {gpu.part: Answer(outcome=missing) for gpu in GPUS}
    executor = FakeExecutor(inventory=NODE, answers=answers)
    second = msgspec.structs.replace(step(), name="d")
    run = verified(tmp_path, executor, step(), second)

    assert sum("gpu-0" in phase for phase in executor.phases) == asked
    assert {r.check: (r.verdict, r.cause) for r in run.results} == {
        "c": (Verdict.ERROR, Cause.MISSING),
        "d": (Verdict.ERROR, Cause.MISSING),
    }
    assert sum("cpu" in phase for phase in executor.phases) == 2
