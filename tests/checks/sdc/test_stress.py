"""Random normal products under load, compared with the first of their kind."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from msgspec import structs
from torch import Tensor

from hpcverify.check import Unable
from hpcverify.model import (
    Cause,
    CheckItem,
    Coverage,
    Device,
    Finding,
    Inventory,
    Measurement,
    Part,
)
from hpcverify.testing import CPU, INVENTORY, make_context
from hpcverify_checks.common.bits import compute_digest, view_integers, view_words
from hpcverify_checks.common.dtypes import CPU_FAMILIES, FAMILIES, Multiply, multiply
from hpcverify_checks.common.exact import Shape
from hpcverify_checks.common.vote import OWN_REFERENCE, reconcile
from hpcverify_checks.sdc import stress
from hpcverify_checks.sdc.loop import HuntResult, ProductSeams, compare
from hpcverify_checks.sdc.prepare import DeviceTask
from hpcverify_checks.sdc.stress import LoadSchedule, StressResult

HOST = torch.device("cpu")
SHAPE = Shape(64, 128)
FIRST = stress.OPERAND_PAIRS * stress.FIRST_PRODUCTS
"""Products that are made before any is compared."""
PATIENT = 60.0
"""Seconds at most for what ends as soon as it has found something."""
DIGEST = 10292845348357645096
"""Of 520 x 64 numbers with the key 3, on any machine."""


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Multiply small matrices: what goes wrong is the same."""
    monkeypatch.setattr(stress, "CPU_SHAPE", SHAPE)


def task(tmp_path: Path, name: str = "fp32", by: Multiply = multiply) -> DeviceTask:
    """Make a task for a GPU, which here computes on the host."""
    gpu = Device("cuda", "GPU-0", "GPU 0")
    ctx = structs.replace(make_context(tmp_path), device=gpu)
    family = (CPU_FAMILIES | {"tf32": FAMILIES["tf32"]})[name]
    return DeviceTask(ctx, family, SHAPE, HOST, ProductSeams(multiply=by), draw=5)


def flipping(numbers: Iterable[int], bit: int = 0) -> Multiply:
    """Multiply, and flip one bit in the products of these numbers."""
    chosen, count = frozenset(numbers), iter(range(10**9))

    def faulty(a: Tensor, b: Tensor, out: Tensor) -> None:
        multiply(a, b, out)
        if next(count) in chosen:
            view_words(out)[77].bitwise_xor_(1 << bit)

    return faulty


def stuck(a: Tensor, b: Tensor, out: Tensor) -> None:
    """Multiply with a unit that holds one bit at one, every time."""
    multiply(a, b, out)
    view_integers(out)[5] |= 1


def worked(made: DeviceTask, seconds: float = 0.3) -> StressResult:
    (done,) = stress.stress_device(made, seconds)
    return done


def numbers(found: Iterable[CheckItem], name: str) -> dict[str, float | None]:
    return {f.where: f.value for f in found if isinstance(f, Measurement) and f.name == name}


@pytest.mark.parametrize("name", CPU_FAMILIES)
def test_good_products_of_any_type_are_never_called_wrong(tmp_path: Path, name: str) -> None:
    done = worked(task(tmp_path, name), seconds=0.3)
    assert (done.mismatched_words, done.corruption) == (0, None)
    assert done.products > 2


@pytest.mark.parametrize("number", [FIRST, FIRST + 1, FIRST + 20])
@pytest.mark.parametrize("bit", [0, 31, 62])
def test_a_bit_that_flips_in_one_product_is_corruption(
    tmp_path: Path, number: int, bit: int
) -> None:
    done = worked(task(tmp_path, by=flipping([number], bit)), PATIENT)
    assert done.mismatched_words == 1
    assert done.corruption is not None
    evidence = done.corruption.evidence
    assert evidence["reference"] == OWN_REFERENCE
    assert (evidence["place"], evidence["wrong_elements"]) == ("compute", "1")
    assert evidence["reruns"].startswith("intermittent")
    assert "compared with its own first product" in done.corruption.text


@pytest.mark.parametrize("number", range(FIRST))
def test_a_first_product_that_is_wrong_once_is_not_the_truth_about_the_others(
    tmp_path: Path, number: int
) -> None:
    right = worked(task(tmp_path), 0.05).digest.split()
    done = worked(task(tmp_path, by=flipping([number], 3)), PATIENT)
    assert done.digest.split() == right
    assert done.corruption is not None
    evidence = done.corruption.evidence
    assert (evidence["reruns"], evidence["bits"], done.mismatched_words) == (
        "intermittent: 0 of 3 reruns wrong",
        "3",
        1,
    )
    pair = number // stress.FIRST_PRODUCTS
    assert evidence["digest"] != right[pair]
    assert evidence["plan"] == f"normal {pair}"
    assert "the same product made twice more, alike" in done.corruption.text


def test_a_part_that_never_gives_the_same_bits_has_no_reference(tmp_path: Path) -> None:
    count = iter(range(10**9))

    def noisy(a: Tensor, b: Tensor, out: Tensor) -> None:
        multiply(a, b, out)
        view_words(out)[7].bitwise_xor_(1 << next(count))

    done = worked(task(tmp_path, by=noisy), PATIENT)
    assert done.corruption is not None
    assert "different each time" in done.corruption.text


def test_a_fault_that_comes_with_the_load_steps_is_told_as_such(tmp_path: Path) -> None:
    seconds, begun = 2.0, time.monotonic()

    def faulty(a: Tensor, b: Tensor, out: Tensor) -> None:
        multiply(a, b, out)
        if time.monotonic() - begun > 0.75 * seconds:
            view_words(out)[9].bitwise_xor_(1)

    done = worked(task(tmp_path, by=faulty), seconds)
    assert done.corruption is not None
    assert done.corruption.evidence["load"].startswith("load steps every")
    assert done.corruption.evidence["reruns"].startswith("persistent")


def test_a_fault_that_repeats_itself_agrees_with_itself(tmp_path: Path) -> None:
    # Kept to show why the exact plans are needed, and the vote.
    assert worked(task(tmp_path, by=stuck)).mismatched_words == 0


def voted(tmp_path: Path, *units: Multiply) -> dict[str, str]:
    """Stress GPUs that compute with these, and say what becomes of their answers."""
    gpus = tuple(Device("cuda", f"GPU-{i}", f"GPU {i}") for i in range(len(units)))
    found: list[Finding] = []
    for gpu, unit in zip(gpus, units, strict=True):
        made = task(tmp_path, by=unit)
        mine = replace(made, ctx=structs.replace(made.ctx, device=gpu))
        items = stress.report_gpu(mine, [worked(mine, 0.05)])
        found += [f for f in items if isinstance(f, Finding)]
    items = reconcile(found, Inventory(devices=(CPU, *gpus)))
    return {f.where: f.code for f in items if isinstance(f, Finding)}


def test_the_vote_finds_the_gpu_whose_fault_repeats_itself(tmp_path: Path) -> None:
    assert voted(tmp_path, multiply, stuck, multiply) == {
        "GPU-0": "answer",
        "GPU-1": "outvoted",
        "GPU-2": "answer",
    }
    assert set(voted(tmp_path, multiply, stuck).values()) == {"disagreement"}
    assert set(voted(tmp_path, multiply, multiply, multiply).values()) == {"answer"}


def test_answers_differ_with_the_seed_and_with_nothing_else(tmp_path: Path) -> None:
    made = task(tmp_path)
    first, again = worked(made, 0.05).digest, worked(made, 0.05).digest
    assert first == again
    assert worked(replace(made, draw=6), 0.05).digest != first


def test_a_group_is_of_one_model_driver_library_and_question(tmp_path: Path) -> None:
    facts = {"name": "H100", "driver": "580.1", "compute_capability": "9.0"}
    parts = (Part("gpu", "GPU-0", "GPU 0", facts),)
    made = task(tmp_path)
    ctx = structs.replace(made.ctx, inventory=Inventory(parts=parts))
    made = replace(made, ctx=ctx)
    group = stress.name_vote_group(made)
    for part in ("H100", "9.0", "580.1", torch.__version__, "64 x 128", "draw 5"):
        assert part in group
    assert stress.name_vote_group(replace(made, shape=Shape(64, 256))) != group
    assert stress.name_vote_group(replace(made, draw=6)) != group


def test_a_tile_that_is_not_written_shows(tmp_path: Path) -> None:
    count = iter(range(10**9))

    def leaving_out(a: Tensor, b: Tensor, out: Tensor) -> None:
        before = out[:16, :16].clone()
        multiply(a, b, out)
        if next(count) == FIRST + 1:
            out[:16, :16] = before

    done = worked(task(tmp_path, by=leaving_out), PATIENT)
    assert done.corruption is not None
    assert done.corruption.evidence["wrong_elements"] == "256"


def test_an_operand_that_changed_is_told_from_arithmetic(tmp_path: Path) -> None:
    count = iter(range(10**9))

    def spoiling(a: Tensor, b: Tensor, out: Tensor) -> None:
        if next(count) == FIRST + 2:
            a[3, 4] *= -1
        multiply(a, b, out)

    done = worked(task(tmp_path, by=spoiling), PATIENT)
    assert done.corruption is not None
    assert done.corruption.evidence["place"].startswith("memory (operand A changed")


def test_a_comparison_that_sleeps_is_reported_as_such(tmp_path: Path) -> None:
    def blind(found: Tensor, expected: Tensor, count: Tensor) -> None:
        compare(found, expected, count)
        count.zero_()

    made = replace(task(tmp_path), seams=ProductSeams(compare=blind))
    with pytest.raises(Unable, match="did not notice flipped bits") as caught:
        worked(made)
    assert caught.value.cause is Cause.CHECKER


def test_operands_are_bell_shaped_and_centred() -> None:
    made = stress.make_matrix(3, 600, 600, torch.float64, HOST)
    assert abs(float(made.mean())) < 0.01
    assert float(made.std()) == pytest.approx(0.82, abs=0.01)
    fourth = float((made**4).mean() / made.var() ** 2)
    assert fourth == pytest.approx(2.85, abs=0.05)  # 3 of a normal, 1.8 of a uniform


def test_operands_are_the_same_bits_on_every_machine() -> None:
    made = stress.make_matrix(3, 520, 64, torch.float64, HOST)
    exact = stress.make_bell_integers(3, range(520), 64, HOST).flatten().tolist()
    assert made.flatten().tolist() == [value * stress.BELL_SCALE for value in exact]
    assert compute_digest(made) == DIGEST


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_bit_of_a_significand_takes_part(dtype: torch.dtype) -> None:
    made = view_integers(stress.make_matrix(1, 64, 64, dtype, HOST))
    significand = {torch.float32: 23, torch.float64: 52}[dtype]
    for bit in range(significand):
        assert 0 < int(((made >> bit) & 1).sum()) < made.numel()


@pytest.mark.parametrize("name", FAMILIES)
def test_operands_of_every_type_are_finite_and_of_both_signs(tmp_path: Path, name: str) -> None:
    made = replace(task(tmp_path), family=FAMILIES[name])
    for operand in stress.make_operands(made, 0, HOST):
        values = operand.double()
        assert bool(torch.isfinite(values).all())
        assert 0.4 < float((values > 0).double().mean()) < 0.6
    if FAMILIES[name].by_columns:
        assert stress.make_operands(made, 0, HOST)[1].stride(0) == 1


def test_a_burst_fills_its_share_of_the_period() -> None:
    assert LoadSchedule.plan_wave(1.0, period=0.1, pace=0.001, batch_size=4).burst_products == 50
    assert LoadSchedule.plan_wave(1.0, period=0.01, pace=0.1, batch_size=4).burst_products == 4


def test_the_load_comes_on_at_multiples_of_the_period() -> None:
    period = 0.02
    load = LoadSchedule(time.monotonic() + 0.3, period, burst_products=2)
    edges: list[float] = []
    products = 0
    while not load(products := products + 1):
        if load.edges > len(edges):
            edges.append(time.monotonic())
    # A sleep may be late on a busy machine, and is never early.
    assert len({edge // period for edge in edges}) == len(edges) > 0
    assert load.edges - len(edges) in (0, 1)  # the last may come when time is up
    assert products // 2 in (load.edges, load.edges + 1)


def test_steady_load_has_no_edges_and_ends_in_time() -> None:
    load = LoadSchedule(time.monotonic() + 0.01)
    while not load(1):
        pass
    assert load.edges == 0
    assert load.describe() == "steady"
    assert LoadSchedule(time.monotonic() - 1, period=0.05)(1)


def test_all_cores_are_stressed_and_pass(tmp_path: Path) -> None:
    found = list(stress.run_stress(make_context(tmp_path), HOST, 0.4))
    cores = {f"cpu{core}" for core in os.sched_getaffinity(0)}
    assert numbers(found, "stress.mismatched") == dict.fromkeys(cores, 0)
    assert all(numbers(found, "stress.products").values())
    assert not [f for f in found if isinstance(f, Finding)]
    texts = [f.text for f in found if isinstance(f, Coverage)]
    assert all("which all gave the same first products" in text for text in texts)


def core_only(bad: int, spoil: Callable[[Tensor], object]) -> Multiply:
    def faulty(a: Tensor, b: Tensor, out: Tensor) -> None:
        multiply(a, b, out)
        if os.sched_getaffinity(0) == {bad}:
            spoil(out)

    return faulty


def test_a_core_that_flips_bits_is_accused_and_alone(tmp_path: Path) -> None:
    bad, count = max(os.sched_getaffinity(0)), iter(range(10**9))

    def spoil(out: Tensor) -> None:
        if next(count) == FIRST + 3:
            view_words(out)[1].bitwise_xor_(1 << 40)

    seams = ProductSeams(multiply=core_only(bad, spoil))
    found = list(stress.run_stress(make_context(tmp_path), HOST, 0.4, seams))
    codes = {(f.code, f.where) for f in found if isinstance(f, Finding)}
    assert codes == {("corruption", f"cpu{bad}")}
    assert numbers(found, "stress.mismatched")[f"cpu{bad}"] == 1


def test_a_core_that_always_differs_is_worth_a_warning(tmp_path: Path) -> None:
    bad = max(os.sched_getaffinity(0))
    seams = ProductSeams(multiply=core_only(bad, lambda out: view_integers(out)[5].bitwise_or_(1)))
    found = list(stress.run_stress(make_context(tmp_path), HOST, 0.2, seams))
    facts = [f for f in found if isinstance(f, Finding)]
    left = [f for f in reconcile(facts, INVENTORY) if isinstance(f, Finding)]
    assert {f.code for f in left} == {"dissent"}
    assert f"cpu{bad}" in {f.where for f in left}
    assert not any(numbers(found, "stress.mismatched").values())


def test_coverage_says_what_was_multiplied_and_how_often_the_load_came_on(tmp_path: Path) -> None:
    made = task(tmp_path)
    spell = StressResult("GPU-0", "0x1", (HuntResult(10, 1.0), HuntResult(30, 1.0)), edges=7)
    covered = next(iter(stress.report_gpu(made, [spell])))
    assert isinstance(covered, Coverage)
    assert "fp32: 40 products of 64 x 128 x 64 random normal numbers" in covered.text
    assert "in 2.0 s; load switched on 7 times, for 5, 20, 50 ms" in covered.text
