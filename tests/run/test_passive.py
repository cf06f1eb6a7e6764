"""A passive check runs before the load as well as after it, and gives one result."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from hpcverify.check import Metric, Placement
from hpcverify.model import (
    CarryOver,
    Cause,
    Coverage,
    Fact,
    Finding,
    FindingRule,
    Measurement,
    Remedy,
    Result,
    Run,
    Verdict,
)
from hpcverify.plan.suite import Step
from hpcverify.run.executor import Answer
from hpcverify.run.history import NodeHistory
from hpcverify.run.wire import Measure, Outcome, Task
from hpcverify.testing import ENDED, FakeExecutor, make_answer
from tests.run import builders
from tests.run.builders import break_worker, make_step

METRICS = {
    "links": Metric("", "neither", "m").fail(low=18),
    "errors": Metric("", "neither", "m").fail(high=0),
}
RULINGS = {
    "xid_79": FindingRule(Verdict.FAIL, conclusive=True),
    "noted": FindingRule(Verdict.WARN),
    "starting": FindingRule(Verdict.ERROR, Remedy.RERUN, Cause.UNMEASURED),
}
READ = make_step("xid", metrics=METRICS, finding_rules=RULINGS, placement=Placement.PASSIVE)
LOAD = make_step("gemm", metrics=METRICS, finding_rules=RULINGS, placement=Placement.NODE)


class Reading(FakeExecutor):
    """Answers a passive check with the next of some answers, and then with nothing."""

    def __init__(self, *answers: Answer, load_seconds: float = 0) -> None:
        """Take the *answers*, and how long the load takes on the clock of `clock`."""
        super().__init__()
        self._answers = iter(answers)
        self._load_seconds = load_seconds

    def run(self, tasks: Mapping[str, Task], timeout: float) -> dict[str, Answer]:
        """Go on to the next answer with each passive check."""
        if isinstance(tasks.get("telemetry"), Measure):
            self.answers["telemetry"] = next(self._answers, ENDED)
        return super().run(tasks, timeout)

    def clock(self) -> float:
        """Tell the time: it jumps with each load."""
        loads = sum("node" in phase for phase in self.phases)
        return time.monotonic() + loads * self._load_seconds

    def list_turns(self) -> list[str]:
        return [
            worker
            for phase in self.phases
            for worker, task in phase.items()
            if isinstance(task, Measure)
        ]

    def list_carried(self) -> list[str | None]:
        """List what each passive check was told of the last run."""
        tasks = [phase.get("telemetry") for phase in self.phases]
        return [task.context.recall("cursor") for task in tasks if isinstance(task, Measure)]


def verify(tmp_path: Path, executor: Reading, *steps: Step, **changes: Any) -> Run:
    """Run a load and then a passive check, or other *steps*, for which there are 100 s."""
    remembered = NodeHistory(carry_overs={"xid": (CarryOver("cursor", "7"),)})
    usual: dict[str, Any] = {"history": remembered, "clock": executor.clock}
    return builders.verify(tmp_path, executor, *(steps or (LOAD, READ)), **{**usual, **changes})


def read_twice(tmp_path: Path, *answers: Answer) -> Result:
    """Give the one result of a check that gives these two *answers*."""
    run = verify(tmp_path, Reading(*answers))
    assert [r.check for r in run.results] == ["gemm", "xid"]
    return run.results[-1]


FELL_OFF = Finding("xid_79", "gpu-0", "it fell off the bus")
NOTED = Finding("noted", "gpu-0", "noted 3 times")


@pytest.mark.parametrize(
    ("steps", "turns"),
    [
        ((LOAD, READ), ["telemetry", "node", "telemetry"]),
        ((READ, LOAD), ["telemetry", "node"]),
        ((READ, LOAD, replace(READ, name="ecc")), ["telemetry"] * 2 + ["node", "telemetry"]),
        ((LOAD, READ, LOAD), ["telemetry", "node", "telemetry", "node"]),
        ((READ,), ["telemetry"]),
        ((LOAD,), ["node"]),
    ],
)
def test_what_only_reads_after_a_load_reads_before_it_as_well(
    tmp_path: Path, steps: tuple[Step, ...], turns: list[str]
) -> None:
    executor = Reading()
    run = verify(tmp_path, executor, *steps)
    assert executor.list_turns() == turns
    assert [r.check for r in run.results] == [step.name for step in steps]


def test_a_later_round_begins_with_the_load(tmp_path: Path) -> None:
    executor = Reading()
    verify(tmp_path, executor, rounds=2)
    assert executor.list_turns() == ["telemetry", "node", "telemetry", "node", "telemetry"]


def test_both_times_it_begins_from_what_the_last_run_remembered(tmp_path: Path) -> None:
    executor = Reading(make_answer(CarryOver("cursor", "8")), make_answer(CarryOver("cursor", "9")))
    run = verify(tmp_path, executor)
    assert executor.list_carried() == ["7", "7"]
    assert run.results[-1].marks == (CarryOver("cursor", "9"),)


def test_after_the_load_it_knows_what_it_remembered_before(tmp_path: Path) -> None:
    executor = Reading(make_answer(CarryOver("cursor", "8")))
    verify(tmp_path, executor)
    tasks = [phase.get("telemetry") for phase in executor.phases]
    told = [task.context.before_load for task in tasks if isinstance(task, Measure)]
    assert told == [(), (CarryOver("cursor", "8"),)]


@pytest.mark.parametrize("after", [(Fact("SMT", "on"),), ()])
def test_the_facts_are_those_of_the_later_one_or_else_of_the_first(
    tmp_path: Path, after: tuple[Fact, ...]
) -> None:
    result = read_twice(tmp_path, make_answer(Fact("SMT", "off")), make_answer(*after))
    assert result.facts == (after or (Fact("SMT", "off"),))


def test_what_was_seen_before_the_load_is_kept(tmp_path: Path) -> None:
    result = read_twice(tmp_path, make_answer(FELL_OFF), make_answer(NOTED))
    assert result.verdict is Verdict.FAIL
    assert [f.code for f in result.findings] == ["noted", "xid_79"]
    assert result.findings[1].text == "it fell off the bus (seen before the load, but not after it)"
    assert set(result.rulings) == {"noted", "xid_79"}


def test_what_could_only_not_be_judged_yet_had_its_rerun_after_the_load(tmp_path: Path) -> None:
    starting = make_answer(Finding("starting", "gpu-0", "it still starts"))
    assert read_twice(tmp_path, starting, make_answer()).verdict is Verdict.PASS
    assert read_twice(tmp_path, starting, starting).verdict is Verdict.ERROR


def test_what_both_results_have_is_told_once_in_the_words_of_the_later_one(tmp_path: Path) -> None:
    again = replace(NOTED, text="noted 5 times")
    assert read_twice(tmp_path, make_answer(NOTED), make_answer(again)).findings == (again,)


def test_a_clean_node_is_clean_both_times(tmp_path: Path) -> None:
    links = Measurement("links", 18, "", "gpu-0")
    result = read_twice(tmp_path, make_answer(links), make_answer(links))
    assert (result.verdict, result.findings) == (Verdict.PASS, ())
    assert result.measurements == (links,)


@pytest.mark.parametrize(
    ("before", "after", "kept"), [(17, 18, 17), (18, 17, 17), (16, 17, 17), (18, 19, 19)]
)
def test_of_two_values_the_later_one_counts_unless_only_the_first_is_outside_its_limit(
    tmp_path: Path, before: int, after: int, kept: int
) -> None:
    answers = [make_answer(Measurement("links", value, "", "gpu-0")) for value in (before, after)]
    result = read_twice(tmp_path, *answers)
    assert [m.value for m in result.measurements] == [kept]
    assert (result.verdict is Verdict.FAIL) is (kept < 18)


def test_a_value_that_only_the_first_result_has_is_judged_too(tmp_path: Path) -> None:
    first = Measurement("errors", 3, "", "gpu-0")
    result = read_twice(tmp_path, make_answer(first), make_answer())
    assert (result.verdict, result.measurements) == (Verdict.FAIL, (first,))


def test_a_second_run_that_fails_hides_nothing_of_the_first(tmp_path: Path) -> None:
    old, new = CarryOver("cursor", "7"), CarryOver("cursor", "8")
    result = read_twice(tmp_path, make_answer(FELL_OFF, new), break_worker(Cause.CRASHED, old))
    assert result.verdict is Verdict.FAIL
    assert [s.cause for s in result.shortfalls] == [Cause.CRASHED]
    assert result.marks == (new,), "the lines that were reported are not read again"


def test_a_first_run_that_fails_is_made_up_for_by_the_second(tmp_path: Path) -> None:
    result = read_twice(tmp_path, break_worker(Cause.CRASHED), make_answer(NOTED))
    assert (result.verdict, result.findings, result.shortfalls) == (Verdict.WARN, (NOTED,), ())


def test_after_a_first_run_that_ended_the_worker_another_one_samples(tmp_path: Path) -> None:
    no_log = Outcome(verdict=Verdict.ERROR, reason="no log", cause=Cause.MISSING)
    broken, unable, sound = (
        Reading(break_worker(Cause.CRASHED)),
        Reading(Answer(outcome=no_log)),
        Reading(),
    )
    for executor in (broken, unable, sound):
        verify(tmp_path, executor)

    assert [probe.sample for probe in broken.probes] == [True, True]
    assert [probe.sample for probe in unable.probes] == [True]
    assert [probe.sample for probe in sound.probes] == [True]


SKIPPED = Answer(outcome=Outcome(verdict=Verdict.SKIP, reason="no GPU"))


def test_a_part_that_the_second_run_does_not_find_was_there(tmp_path: Path) -> None:
    result = read_twice(tmp_path, make_answer(NOTED), SKIPPED)
    assert (result.verdict, result.findings) == (Verdict.WARN, (NOTED,))
    assert result.coverage[-1] == Coverage("node", "checked only before the load: no GPU")


def test_what_does_not_apply_is_skipped_both_times(tmp_path: Path) -> None:
    assert read_twice(tmp_path, SKIPPED, SKIPPED).verdict is Verdict.SKIP


@pytest.mark.parametrize(
    ("answer", "verdict"), [(make_answer(FELL_OFF), Verdict.FAIL), (ENDED, Verdict.PASS)]
)
def test_if_the_time_runs_out_the_result_before_the_load_stands_and_says_so(
    tmp_path: Path, answer: Answer, verdict: Verdict
) -> None:
    run = verify(tmp_path, Reading(answer, load_seconds=101))
    result = run.results[-1]

    assert (result.verdict, result.shortfalls) == (verdict, ())
    assert result.coverage[-1] == Coverage(
        "node", "checked only before the load: the suite's 100 s ran out"
    )
    assert run.complete


def test_a_load_that_has_no_turn_is_still_an_error(tmp_path: Path) -> None:
    run = verify(tmp_path, Reading(load_seconds=101), LOAD, replace(LOAD, name="sdc"), READ)
    assert [r.verdict for r in run.results] == [Verdict.PASS, Verdict.ERROR, Verdict.PASS]
    assert run.verdict is Verdict.ERROR


def test_a_run_that_is_told_to_stop_does_not_fail_for_what_was_read_before(tmp_path: Path) -> None:
    class Stopping(Reading):
        def should_stop(self) -> bool:
            return "node" in self.list_turns()

    run = verify(tmp_path, Stopping(make_answer(FELL_OFF)))

    assert run.results[-1].cause is Cause.INTERRUPTED
    assert (run.complete, run.verdict) == (False, Verdict.ERROR)
