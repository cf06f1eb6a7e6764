"""A core or a GPU that computes wrongly fails, alone, and the report says what was covered."""

from __future__ import annotations

import os
import re
import time
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from hpcverify.check import Sample, Unable, Watch
from hpcverify.model import (
    Cause,
    CheckItem,
    Coverage,
    Finding,
    Measurement,
    Part,
    Remedy,
    Verdict,
)
from hpcverify.testing import INVENTORY, judge_items, make_context
from hpcverify_checks import sdc
from hpcverify_checks.exact.product_loop import ProductJob, ProductSeams
from hpcverify_checks.exact.product_loop import compare as compared
from hpcverify_checks.exact.products import Shape
from hpcverify_checks.exact.vote import reconcile
from hpcverify_checks.node.cores import format_ranges, pick_cores, run_on_each
from hpcverify_checks.node.device import use_threads
from hpcverify_checks.node.dtypes import Multiply, multiply
from hpcverify_checks.sdc.faults import ignore_all, stick
from hpcverify_checks.sdc.prepare import DeviceTask, PartResult, list_families, prepare
from tests.checks.sdc.benches import a_task
from tests.checks.sdc.work_clock import ROOM, WorkClock

QUICK = sdc.SdcParams(seconds=0.6, size=128, depth=256)
CORES = {f"cpu{core}" for core in os.sched_getaffinity(0)}


def found(tmp_path: Path, seams: ProductSeams | None = None, **changes: Any) -> list[CheckItem]:
    params = msgspec.structs.replace(QUICK, **changes)
    return list(sdc.measure(make_context(tmp_path), params, seams))


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> list[CheckItem]:
    """Examine this machine once, and see that its main thread is left as it was."""
    before = os.sched_getaffinity(0)
    items = found(tmp_path_factory.mktemp("healthy"))
    assert os.sched_getaffinity(0) == before  # never pinned
    return items


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> list[CheckItem]:
    """Examine it with operands that no run has had."""
    ctx = make_context(tmp_path_factory.mktemp("fresh"), seed=7)
    return list(sdc.measure(ctx, msgspec.structs.replace(QUICK, fresh=True)))


def wrong_on(cores: set[int]) -> Multiply:
    """Multiply with a stuck bit, but on these *cores* only."""

    def faulty(a: Tensor, b: Tensor, out: Tensor) -> None:
        multiply(a, b, out)
        if os.sched_getaffinity(0) <= cores:
            stick(12, at=1)(out)

    return faulty


def test_all_cores_are_examined(healthy: list[CheckItem]) -> None:
    products = (m for m in healthy if isinstance(m, Measurement) and m.name == "products")
    done = {m.part_id: m.value for m in products}
    assert done.keys() == CORES
    assert all(done.values())


def test_a_healthy_node_passes_again_and_again(
    healthy: list[CheckItem], fresh: list[CheckItem]
) -> None:
    assert judge_items(sdc.CHECK, healthy).verdict is Verdict.PASS
    assert judge_items(sdc.CHECK, fresh).verdict is Verdict.PASS


@pytest.mark.parametrize("rotation", [0, 1])
def test_a_core_that_computes_wrongly_fails_and_alone(tmp_path: Path, rotation: int) -> None:
    # Whichever core makes the first products.
    bad = max(os.sched_getaffinity(0))
    ctx = make_context(tmp_path, rotation=rotation)
    items = list(sdc.measure(ctx, QUICK, ProductSeams(multiply=wrong_on({bad}))))
    judgement = judge_items(sdc.CHECK, items)
    left = {f.part_id for f in facts(items) if f.code != "answer"}
    assert judgement.verdict is Verdict.FAIL
    assert judgement.remedy is Remedy.REPLACE
    assert left == {f"cpu{bad}"}
    assert re.search(rf"cpu{bad}: fp\d\d product", judgement.reason)


def facts(items: list[CheckItem]) -> list[Finding]:
    """List what is left of the findings after the vote."""
    both = [i for i in items if isinstance(i, (Measurement, Finding))]
    return [f for f in reconcile(both, INVENTORY) if isinstance(f, Finding)]


def test_a_fault_that_persists_from_the_start_fails(tmp_path: Path) -> None:
    # On every core and from the first product on, as a broken library would.
    everywhere = set(range(os.cpu_count() or 1))
    judgement = judge_items(sdc.CHECK, found(tmp_path, ProductSeams(multiply=wrong_on(everywhere))))
    assert judgement.verdict is not Verdict.PASS


def test_a_type_that_all_cores_compute_alike_and_wrongly_accuses_no_core(tmp_path: Path) -> None:
    def inexact(a: Tensor, b: Tensor, out: Tensor) -> None:
        multiply(a, b, out)
        if out.dtype == torch.float32:  # in all of its plans
            stick(12, at=1)(out)

    cores = str(len(CORES))
    part = Part("cpu", "cpu", "CPU", {"threads": cores, "cores": cores})
    inventory = msgspec.structs.replace(INVENTORY, parts=(part,))
    judgement = judge_items(sdc.CHECK, found(tmp_path, ProductSeams(multiply=inexact)), inventory)
    if len(CORES) == 1:  # nobody to agree with
        assert judgement.verdict is Verdict.FAIL
    else:
        assert judgement.verdict is Verdict.ERROR
        assert judgement.cause is Cause.CHECKER


class Threads(TorchFunctionMode):
    """Note with how many threads each operation of the main thread is done."""

    def __init__(self) -> None:
        """Have seen none."""
        super().__init__()
        self.seen: set[int] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call what is called, and note it if it makes a tensor."""
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor):
            self.seen.add(torch.get_num_threads())
        return result


def test_operands_and_proofs_are_made_by_one_thread_on_a_cpu(tmp_path: Path) -> None:
    with use_threads(2), Threads() as threads:
        found(tmp_path, fresh=True)
        assert torch.get_num_threads() == 2
    assert threads.seen == {1}


def test_what_it_takes_to_prepare_is_taken_off_the_hunt_but_not_all_of_it() -> None:
    assert sdc.compute_hunt_seconds(4.0, 0.5) == 3.5
    assert sdc.compute_hunt_seconds(4.0, 197.0) == 1.0


@pytest.mark.system
@pytest.mark.parametrize("rotation", range(3))
@pytest.mark.parametrize(
    ("seconds", "pace"), [(4.0, 1.0), (4.0, 10.0), (4.0, 40.0), (2.0, 40.0), (1.0, 20.0)]
)
def test_the_check_ends_within_twice_its_time_however_slow_the_machine_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, pace: float, rotation: int
) -> None:
    # With pace 1 as on an idle machine; so many times slower otherwise.
    clock = WorkClock(0.002 * pace, 0.01 * pace, 0.01 * pace)
    clock.put_into(monkeypatch)
    params = msgspec.structs.replace(QUICK, seconds=seconds)
    items = list(sdc.measure(make_context(tmp_path, rotation=rotation), params))
    assert clock.now <= 2 * params.seconds
    assert judge_items(sdc.CHECK, items).verdict is Verdict.PASS
    left_out = [i.text for i in items if isinstance(i, Coverage) and "left out" in i.text]
    assert bool(left_out) == (pace > 1)


def test_what_was_left_out_is_named_and_comes_first_in_another_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    WorkClock(0.02, plan_seconds=5.0).put_into(monkeypatch)
    tried: set[str] = set()
    for rotation in range(4):
        items = list(sdc.measure(make_context(tmp_path, rotation=rotation), QUICK))
        texts = [i.text for i in items if isinstance(i, Coverage)]
        (examined,) = (
            text for text in texts if "compared bit by bit in" in text and "on cores" in text
        )
        tried.add(examined.partition(" ")[0])
        assert "plans left out, since no time was left: " in examined
        assert "random products: left out: no time was left" in texts
        (copied,) = (text for text in texts if " copies (" in text)
        assert f"of 1 byte to {ROOM / 2**21:g} MiB" in copied
    assert tried == {f.name for f in list_families(torch.device("cpu"))}


def test_distinct_data_are_told_from_repeats_over_all_cores(tmp_path: Path) -> None:
    task = a_task(tmp_path)
    jobs = prepare(task).jobs
    every = len(jobs) * len(task.shifts)
    one, other = (task.start_at(t).hunt(f"cpu{t}", jobs, lambda n: n >= len(jobs)) for t in (0, 4))
    long = task.hunt("cpu1", jobs, lambda n: n >= every + 5)
    few = sdc.FamilyResult(task, [one, other, one])
    assert not one.data & other.data
    assert f"{len(one.data | other.data)} of them distinct" in few.summarize()
    assert f"{every} of them distinct" in sdc.FamilyResult(task, [one, long]).summarize()


def test_a_core_is_only_credited_with_the_time_that_it_worked(tmp_path: Path) -> None:
    def slow(a: Tensor, b: Tensor, out: Tensor) -> None:
        time.sleep(0.1)  # as while others have the core
        multiply(a, b, out)

    task = a_task(tmp_path, shape=Shape(64, 128), seams=ProductSeams(multiply=slow))
    outcome = task.hunt("cpu0", prepare(task).jobs, lambda n: n >= 20)
    assert 0 < outcome.seconds < 0.1 * outcome.products


def test_a_blind_comparison_makes_the_check_report_itself(tmp_path: Path) -> None:
    with pytest.raises(Unable, match="did not notice") as caught:
        found(tmp_path, ProductSeams(compare=ignore_all(compared)))
    assert (caught.value.cause, caught.value.remedy) == (Cause.CHECKER, Remedy.FIX_CHECKER)


def test_coverage_states_what_was_exercised_and_a_rate(healthy: list[CheckItem]) -> None:
    texts = [f.text for f in healthy if isinstance(f, Coverage)]
    first = next(text for text in texts if text.startswith("fp32 on cores"))
    cores = format_ranges(sorted(os.sched_getaffinity(0)))
    assert f"fp32 on cores {cores} of {cores}: " in first
    assert "products of 128 x 256 x 128" in first
    assert "plain (sums to 2^" in first
    assert "data the same in every run, at 9 offsets of 16 lanes" in first
    assert "bits that no product changes: output " in first
    assert "excluded at 95 %" in first


def test_coverage_says_that_data_were_drawn_afresh(fresh: list[CheckItem]) -> None:
    texts = [f.text for f in fresh if isinstance(f, Coverage)]
    assert any("data new in this run (7)" in text for text in texts)


def test_a_fault_is_no_reason_to_exclude_a_rate(tmp_path: Path) -> None:
    wrong = sdc.FamilyResult(a_task(tmp_path), [PartResult("cpu0", 3, 1.0, mismatched_words=1)])
    assert "excluded" not in wrong.summarize()
    right = sdc.FamilyResult(a_task(tmp_path), [PartResult("cpu0", 3, 1.0)])
    assert "more than 10,800 wrong products an hour of all cores together" in right.summarize()


def test_the_rate_is_that_of_the_core_that_was_examined_least(tmp_path: Path) -> None:
    outcomes = [PartResult("cpu0", 3, 3600.0), PartResult("cpu1", 3, 1.0)]
    text = sdc.FamilyResult(a_task(tmp_path), outcomes).summarize()
    assert "in 3601.0 core-seconds of CPU time" in text
    assert "more than 3 wrong products an hour of all cores together and 10,800 of each" in text


def test_what_was_found_is_told_before_what_ends_the_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    WorkClock(product_seconds=0.01).put_into(monkeypatch)  # else a busy machine skips fp64

    def dying(a: Tensor, b: Tensor, out: Tensor) -> None:
        if a.dtype == torch.float64:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        multiply(a, b, out)
        stick(12, at=1)(out)

    items: list[CheckItem] = []
    with pytest.raises(RuntimeError):
        items.extend(sdc.measure(make_context(tmp_path), QUICK, ProductSeams(multiply=dying)))
    assert any(isinstance(i, Finding) and i.code == "corruption" for i in items)


def test_a_core_that_cannot_be_examined_hides_no_other(tmp_path: Path) -> None:
    blind_part, bad = min(os.sched_getaffinity(0)), max(os.sched_getaffinity(0))

    def compare(one: Tensor, other: Tensor, count: Tensor) -> None:
        compared(one, other, count)
        if os.sched_getaffinity(0) == {blind_part}:
            count.zero_()

    seams = ProductSeams(multiply=wrong_on({bad}), compare=compare)
    task = a_task(tmp_path, seams=seams)
    jobs = prepare(task).jobs
    accused: list[PartResult] = []
    with pytest.raises(Unable, match="did not notice"):
        accused.extend(run_on_each((blind_part, bad), partial(on_core, task, jobs)))
    assert [outcome.part_id for outcome in accused] == [f"cpu{bad}"]


def test_the_core_whose_comparison_is_blind_is_named(tmp_path: Path) -> None:
    core = max(os.sched_getaffinity(0))

    def compare(one: Tensor, other: Tensor, count: Tensor) -> None:
        compared(one, other, count)
        if os.sched_getaffinity(0) == {core}:
            count.zero_()

    items: list[CheckItem] = []
    with pytest.raises(Unable, match=f"cpu{core}: the comparison did not notice") as caught:
        items.extend(sdc.measure(make_context(tmp_path), QUICK, ProductSeams(compare=compare)))
    assert [(f.code, f.part_id) for f in items if isinstance(f, Finding)] == [
        ("blind_part", f"cpu{core}")
    ]
    assert caught.value.remedy is Remedy.INSPECT
    rule = sdc.CHECK.finding_rules["blind_part"]
    assert (rule.verdict, rule.remedy) == (Verdict.ERROR, Remedy.INSPECT)


def on_core(task: DeviceTask, jobs: tuple[ProductJob, ...], core: int) -> PartResult:
    return task.hunt(f"cpu{core}", jobs, lambda n: n >= 9)


def test_under_what_load_a_core_was_wrong_is_said(tmp_path: Path) -> None:
    bad = max(os.sched_getaffinity(0))
    items = found(tmp_path, ProductSeams(multiply=wrong_on({bad})), seconds=3.0)
    loads = {
        f.evidence["load"]
        for f in items
        if isinstance(f, Finding) and f.evidence.get("plan") == "plain"
    }
    assert loads == {"cores alone", "cores all at once"}


def test_the_temperature_is_part_of_what_was_covered(tmp_path: Path) -> None:
    samples = [Sample("temperature", 40.0 + t, "°C", "cpu", t) for t in range(5)]
    other = [Sample("temperature", 90.0, "°C", "GPU-1", 0.0)]
    watch = Watch(start=0, end=5, samples=samples + other)
    (item,) = sdc.observe(watch, make_context(tmp_path), QUICK)
    assert item == Coverage("cpu", "at 40 to 44 °C")


@pytest.mark.parametrize(
    "params", [{"seconds": 0}, {"seconds": -1}, {"size": 100}, {"depth": 999}, {"size": -16}]
)
def test_params_that_make_no_sense_are_refused(params: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(params, sdc.SdcParams)


def test_a_depth_that_is_too_small_to_be_shifted_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Unable, match="depth 64 is too small") as caught:
        found(tmp_path, depth=64)
    assert caught.value.cause is Cause.MISCONFIGURED


def test_cores_that_do_not_fit_take_turns_until_all_were_examined() -> None:
    cores = range(10)
    turns = [pick_cores(cores, 4, rotation) for rotation in range(5)]
    assert {core for chosen in turns for core in chosen} == set(cores)
    assert all(len(chosen) == 4 for chosen in turns)
    assert pick_cores(cores, 64, 3) == tuple(cores)


def test_core_lists_are_printed_as_the_kernel_does() -> None:
    assert format_ranges((8, 0, 1, 2)) == "0-2,8"
    assert format_ranges(()) == ""
