"""What a check makes of the answers of all devices together, and what a run of that."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from hpcverify.check import ANSWER_CODE, JudgedItem, Metric
from hpcverify.model import (
    CarryOver,
    Cause,
    Coverage,
    Finding,
    FindingRule,
    Inventory,
    Measurement,
    Result,
    Series,
    Verdict,
)
from hpcverify.run.executor import Answer
from hpcverify.run.local import LocalExecutor
from hpcverify.run.wire import Reconcile
from hpcverify.testing import CPU, FakeExecutor, make_answer
from tests.run.builders import break_worker, make_gpus, make_step, verify

GPUS = make_gpus(3)
NODE = Inventory(devices=(CPU, *GPUS))
BAD = Finding("bad", "gpu-1", "a wrong bit")
SLOW = Measurement("speed", 1.0, "", "gpu-1")
METRICS = {"speed": Metric("", "low", "m").fail(low=10.0)}
RULINGS = {"bad": FindingRule(Verdict.FAIL), "unsure": FindingRule(Verdict.ERROR)}


def reconcile(found: Sequence[JudgedItem], _inventory: Inventory) -> Iterator[JudgedItem]:
    yield from found


def result(executor: FakeExecutor, tmp_path: Path, *, together: bool = True) -> Result:
    """Run the check on the node of *executor*, and give what came of it."""
    together_by = reconcile if together else None
    step = make_step(metrics=METRICS, finding_rules=RULINGS, reconcile=together_by)
    (only,) = verify(tmp_path, executor, step, packages=("site",)).results
    return only


def node(**answers: Answer) -> FakeExecutor:
    return FakeExecutor(
        inventory=NODE, answers={name.replace("_", "-"): answer for name, answer in answers.items()}
    )


def asked(executor: FakeExecutor) -> list[Reconcile]:
    tasks = (task for phase in executor.phases for task in phase.values())
    return [task for task in tasks if isinstance(task, Reconcile)]


def test_what_it_yields_replaces_the_numbers_and_the_facts(tmp_path: Path) -> None:
    unsure = Finding("unsure", "gpu-1", "all agree")
    executor = node(gpu_1=make_answer(BAD, SLOW), telemetry=make_answer(unsure))
    made = result(executor, tmp_path)
    assert (made.findings, made.measurements) == ((unsure,), ())
    assert made.verdict is Verdict.ERROR
    assert made.reason == "gpu-1: all agree"


def test_it_is_told_what_all_devices_found_and_of_what_the_node_is_made(tmp_path: Path) -> None:
    good = Measurement("speed", 11.0, "", "gpu-0")
    executor = node(gpu_0=make_answer(good), gpu_1=make_answer(BAD, SLOW))
    result(executor, tmp_path)
    (task,) = asked(executor)
    assert (task.name, task.packages) == ("c", ("site",))
    assert (set(task.measurements), list(task.findings)) == ({good, SLOW}, [BAD])
    assert task.inventory == NODE


def test_the_vote_of_a_part_that_was_proven_wrong_is_void_and_its_data_stay(tmp_path: Path) -> None:
    vote = Finding(ANSWER_CODE, "gpu-1", "a digest", data={"digest": "1"})
    rulings = {
        "bad": FindingRule(Verdict.FAIL, conclusive=True),
        ANSWER_CODE: FindingRule(Verdict.PASS),
    }
    executor = node(gpu_1=make_answer(BAD, vote), telemetry=make_answer(BAD))
    steps = [make_step(name, finding_rules=rulings, reconcile=reconcile) for name in "ab"]
    _, later = verify(tmp_path, executor, *steps).results
    before, after = (
        [f.data for f in task.findings if f.code == ANSWER_CODE] for task in asked(executor)
    )
    assert (before, after) == ([vote.data], [vote.data | {"void": True}])
    assert [(c.part_id, c.text.partition(":")[0]) for c in later.coverage] == [
        ("gpu-1", "does not vote")
    ]


def test_what_is_not_judged_stays_as_each_device_said_it(tmp_path: Path) -> None:
    said = (
        Coverage("gpu-0", "much"),
        CarryOver("cursor", "7"),
        Series("t", "°C", "gpu-0", (0.0,), (50.0,)),
    )
    executor = node(gpu_0=make_answer(*said, SLOW), telemetry=make_answer(SLOW))
    made = result(executor, tmp_path)
    assert (*made.coverage, *made.marks, *made.series) == said
    assert made.measurements == (SLOW,)


@pytest.mark.parametrize("cause", [Cause.CRASHED, Cause.HUNG, Cause.TIMEOUT])
def test_what_was_found_still_counts_where_it_cannot_be_brought_together(
    tmp_path: Path, cause: Cause
) -> None:
    executor = node(gpu_1=make_answer(BAD, SLOW), telemetry=break_worker(cause))
    made = result(executor, tmp_path)
    assert made.verdict is Verdict.FAIL
    assert (made.findings, made.measurements) == ((BAD,), (SLOW,))
    assert [short.cause for short in made.shortfalls] == [cause]


def test_half_of_what_it_all_means_together_does_not_count(tmp_path: Path) -> None:
    good = Measurement("speed", 11.0, "", "gpu-0")
    half = Answer(items=make_answer(good, BAD).items, outcome=break_worker(Cause.CRASHED).outcome)
    made = result(node(gpu_0=make_answer(good), telemetry=half), tmp_path)
    assert (made.verdict, made.cause) == (Verdict.ERROR, Cause.CRASHED)
    assert (made.measurements, made.findings) == ((good,), ())


def test_what_is_good_is_an_error_where_it_cannot_be_brought_together(tmp_path: Path) -> None:
    good = Measurement("speed", 11.0, "", "gpu-0")
    made = result(node(gpu_0=make_answer(good), telemetry=break_worker(Cause.CRASHED)), tmp_path)
    assert (made.verdict, made.cause) == (Verdict.ERROR, Cause.CRASHED)
    assert made.measurements == (good,)


def test_a_device_that_crashed_is_an_error_whatever_is_made_of_the_others(tmp_path: Path) -> None:
    executor = node(
        gpu_1=make_answer(BAD), gpu_2=break_worker(Cause.CRASHED), telemetry=make_answer()
    )
    made = result(executor, tmp_path)
    assert (made.verdict, made.cause) == (Verdict.ERROR, Cause.CRASHED)
    assert [short.part_id for short in made.shortfalls] == ["gpu-2"]


def test_nobody_is_asked_where_nothing_was_found_to_judge(tmp_path: Path) -> None:
    executor = node(gpu_0=make_answer(Coverage("gpu-0", "much")))
    assert result(executor, tmp_path).verdict is Verdict.PASS
    assert asked(executor) == []


def test_nobody_is_asked_where_the_check_has_nothing_to_say(tmp_path: Path) -> None:
    executor = node(gpu_1=make_answer(BAD))
    made = result(executor, tmp_path, together=False)
    assert (made.verdict, made.findings) == (Verdict.FAIL, (BAD,))
    assert asked(executor) == []


def test_a_check_that_was_skipped_everywhere_stays_skipped(tmp_path: Path) -> None:
    skip = break_worker(Cause.NOT_APPLICABLE, verdict=Verdict.SKIP)
    made = result(node(cpu=skip, gpu_0=skip, gpu_1=skip, gpu_2=skip), tmp_path)
    assert made.verdict is Verdict.SKIP


def answer(part_id: str, digest: str) -> Finding:
    ballot = {"group": "H100", "name": "bf16", "digest": digest}
    return Finding("answer", part_id, "first products", data=ballot)


def test_a_worker_puts_the_answers_of_a_real_check_to_the_vote() -> None:
    answers = (answer("gpu-0", "1"), answer("gpu-1", "2"), answer("gpu-2", "1"))
    task = Reconcile(
        name="sdc",
        packages=("hpcverify_checks",),
        inventory=NODE,
        measurements=(),
        findings=answers,
    )
    executor = LocalExecutor(should_stop=lambda: False)
    try:
        said = executor.run({"telemetry": task}, 60)["telemetry"]
    finally:
        executor.close()
    assert said.outcome.verdict is Verdict.PASS
    facts = [item for item in said.items if isinstance(item, Finding)]
    assert [fact.code for fact in facts] == ["answer", "outvoted", "answer"]
