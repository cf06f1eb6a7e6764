"""Random normal products under load, compared with the first of their kind."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from torch import Tensor

from hpcverify.check import Unable
from hpcverify.model import (
    Cause,
    Device,
    Finding,
    FindingRule,
    Inventory,
    Part,
    Remedy,
    Verdict,
)
from hpcverify.testing import CPU, make_context
from hpcverify_checks import sdc, thermal
from hpcverify_checks.exact import soak
from hpcverify_checks.exact.bits import compute_digest, view_integers, view_words
from hpcverify_checks.exact.families import CPU_FAMILIES, FAMILIES
from hpcverify_checks.exact.product_loop import ProductSeams, ProductTask, compare
from hpcverify_checks.exact.products import Shape
from hpcverify_checks.exact.reruns import Reruns
from hpcverify_checks.exact.soak import (
    MISMATCH_METRIC,
    NORMAL_NUMBERS,
    LoadSchedule,
    PartSoak,
    Stretch,
    find_next_edge,
    make_normal_pair,
    name_vote_group,
    plan_stretches,
)
from hpcverify_checks.exact.vote import ProductFault, reconcile
from hpcverify_checks.node.dtypes import Multiply, multiply
from tests.checks.sdc.work_clock import WorkClock

HOST = torch.device("cpu")
SHAPE = Shape(64, 128)
FIRST = soak.OPERAND_PAIRS * soak.FIRST_PRODUCTS
"""Products that are made before any is compared."""
PATIENT = 60.0
CLOCK = WorkClock(product_seconds=0.005)
"""Seconds at most for what ends as soon as it has found something."""
DIGEST = 10292845348357645096
"""Of 520 x 64 numbers with the key 3, on any machine."""


def task(tmp_path: Path, name: str = "fp32", by: Multiply = multiply) -> ProductTask:
    """Make a task for a GPU, which here computes on the host."""
    gpu = Device("cuda", "GPU-0", "GPU 0")
    ctx = structs.replace(make_context(tmp_path), device=gpu)
    family = (CPU_FAMILIES | {"tf32": FAMILIES["tf32"]})[name]
    return ProductTask(ctx, family, SHAPE, HOST, ProductSeams(multiply=by), draw=5)


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


def prepared(made: ProductTask) -> PartSoak:
    pairs = [make_normal_pair(made, pair, HOST) for pair in range(soak.OPERAND_PAIRS)]
    return PartSoak.prepare(made, "GPU-0", NORMAL_NUMBERS, pairs)


@pytest.fixture(autouse=True)
def _work_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    CLOCK.now = 0.0
    CLOCK.put_into(monkeypatch)


def soon(seconds: float, period: float = 0.0) -> Stretch:
    return Stretch(CLOCK.now, CLOCK.now + seconds, period)


def soaked(made: ProductTask, seconds: float = 0.1, *periods: float) -> PartSoak:
    """Load a part until it errs: without a pause, and in waves of these *periods*."""
    part = prepared(made)
    for period in (0.0, *periods):
        if part.corruption is None:
            part.run(soon(seconds, period))
    return part


def mismatched(part: PartSoak) -> int:
    return sum(done.mismatched_words for done in part.done)


def accused(part: PartSoak) -> tuple[Finding, ProductFault]:
    assert part.corruption is not None
    return part.corruption, part.corruption.data_as(ProductFault)


@pytest.mark.parametrize("name", CPU_FAMILIES)
def test_good_products_of_any_type_are_never_called_wrong(tmp_path: Path, name: str) -> None:
    part = soaked(task(tmp_path, name), 0.1, 0.02)
    assert (mismatched(part), part.corruption) == (0, None)
    assert all(done.products > 1 for done in part.done)


@pytest.mark.parametrize("number", [FIRST, FIRST + 1, FIRST + 20])
@pytest.mark.parametrize("bit", [0, 31, 62])
def test_a_bit_that_flips_in_one_product_is_corruption(
    tmp_path: Path, number: int, bit: int
) -> None:
    part = soaked(task(tmp_path, by=flipping([number], bit)), PATIENT)
    assert mismatched(part) == 1
    found, known = accused(part)
    assert found.evidence["wrong_elements"] == "1"
    assert (known.metric, known.in_memory, known.reruns) == (MISMATCH_METRIC, False, Reruns(0))
    assert "compared with its own first product" in found.text


@pytest.mark.parametrize("number", range(FIRST))
def test_a_first_product_that_is_wrong_once_is_not_the_truth_about_the_others(
    tmp_path: Path, number: int
) -> None:
    right = prepared(task(tmp_path)).digest.split()
    part = prepared(task(tmp_path, by=flipping([number], 3)))
    assert part.digest.split() == right
    found, known = accused(part)
    assert (known.reruns, found.evidence["bits"], mismatched(part)) == (Reruns(0), "3", 1)
    pair = number // soak.FIRST_PRODUCTS
    assert known.digest != right[pair]
    assert known.plan == f"normal {pair}"
    assert "the same product made twice more, alike" in found.text


def test_a_part_that_never_gives_the_same_bits_has_no_reference(tmp_path: Path) -> None:
    count = iter(range(10**9))

    def noisy(a: Tensor, b: Tensor, out: Tensor) -> None:
        multiply(a, b, out)
        view_words(out)[7].bitwise_xor_(1 << next(count))

    found, _ = accused(prepared(task(tmp_path, by=noisy)))
    assert "different each time" in found.text


def test_a_fault_that_comes_with_the_load_steps_is_told_as_such(tmp_path: Path) -> None:
    bad = False

    def faulty(a: Tensor, b: Tensor, out: Tensor) -> None:
        multiply(a, b, out)
        if bad:
            view_words(out)[9].bitwise_xor_(1)

    part = soaked(task(tmp_path, by=faulty))
    bad = True
    part.run(soon(PATIENT, 0.02))
    found, known = accused(part)
    assert found.evidence["load"] == "load steps every 20 ms"
    assert "a sagging power supply" in found.text
    assert known.reruns == Reruns(3)


def test_one_fault_has_one_code_and_one_remedy_in_every_check(tmp_path: Path) -> None:
    found, _ = accused(soaked(task(tmp_path, by=flipping([FIRST + 1])), PATIENT))
    rules = [check.finding_rules[found.code] for check in (sdc.CHECK, thermal.CHECK)]
    limits = [check.rules[MISMATCH_METRIC] for check in (sdc.CHECK, thermal.CHECK)]
    assert rules == 2 * [FindingRule(Verdict.FAIL, Remedy.REPLACE, conclusive=True)]
    assert limits[0] == limits[1]
    assert (limits[0].high, limits[0].remedy, limits[0].conclusive) == (0, Remedy.REPLACE, True)


def test_no_product_is_made_once_one_was_wrong_in_each_of_them(tmp_path: Path) -> None:
    part = soaked(task(tmp_path, by=flipping(range(FIRST, 10**6))), PATIENT)
    assert len(part.done) == 1
    assert mismatched(part) == 1


def test_a_fault_that_repeats_itself_agrees_with_itself(tmp_path: Path) -> None:
    # Kept to show why the exact plans are needed, and the vote.
    assert mismatched(soaked(task(tmp_path, by=stuck))) == 0


def test_a_digest_that_the_host_took_wrongly_once_is_no_vote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right, count = torch.Tensor.sum, iter(range(10**9))

    def err(self: Tensor, *args: object, **kwargs: object) -> Tensor:
        made: Tensor = right(self, *args, **kwargs)  # type: ignore[call-overload]
        return made ^ 1 if next(count) == 1 else made  # of the second digest, the host's

    monkeypatch.setattr(torch.Tensor, "sum", err)
    answer = prepared(task(tmp_path)).make_answer("group")
    rule = thermal.CHECK.finding_rules[answer.code]

    assert answer.code == "unwitnessed"
    assert (rule.verdict, rule.cause, rule.conclusive) == (Verdict.ERROR, Cause.CHECKER, False)


def voted(tmp_path: Path, *units: Multiply) -> dict[str, str]:
    """Stress GPUs that compute with these, and say what becomes of their answers."""
    gpus = tuple(Device("cuda", f"GPU-{i}", f"GPU {i}") for i in range(len(units)))
    found: list[Finding] = []
    for gpu, unit in zip(gpus, units, strict=True):
        made = task(tmp_path, by=unit)
        mine = replace(made, ctx=structs.replace(made.ctx, device=gpu))
        answer = prepared(mine).make_answer(name_vote_group(mine))
        found.append(structs.replace(answer, part_id=gpu.part))
    items = reconcile(found, Inventory(devices=(CPU, *gpus)))
    return {f.part_id: f.code for f in items if isinstance(f, Finding)}


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
    first, again = prepared(made).digest, prepared(made).digest
    assert first == again
    assert prepared(replace(made, draw=6)).digest != first


def test_a_group_is_of_one_model_driver_library_and_question(tmp_path: Path) -> None:
    facts = {"name": "H100", "driver": "580.1", "compute_capability": "9.0"}
    parts = (Part("gpu", "GPU-0", "GPU 0", facts),)
    made = task(tmp_path)
    ctx = structs.replace(made.ctx, inventory=Inventory(parts=parts))
    made = replace(made, ctx=ctx)
    group = name_vote_group(made)
    for part in ("H100", "9.0", "580.1", torch.__version__, "64 x 128", "draw 5"):
        assert part in group
    assert name_vote_group(replace(made, shape=Shape(64, 256))) != group
    assert name_vote_group(replace(made, draw=6)) != group


def test_a_tile_that_is_not_written_shows(tmp_path: Path) -> None:
    count = iter(range(10**9))

    def leaving_out(a: Tensor, b: Tensor, out: Tensor) -> None:
        before = out[:16, :16].clone()
        multiply(a, b, out)
        if next(count) == FIRST + 1:
            out[:16, :16] = before

    found, _ = accused(soaked(task(tmp_path, by=leaving_out), PATIENT))
    assert found.evidence["wrong_elements"] == "256"


def test_an_operand_that_changed_is_told_from_arithmetic(tmp_path: Path) -> None:
    count = iter(range(10**9))

    def spoiling(a: Tensor, b: Tensor, out: Tensor) -> None:
        if next(count) == FIRST + 2:
            a[3, 4] *= -1
        multiply(a, b, out)

    found, known = accused(soaked(task(tmp_path, by=spoiling), PATIENT))
    assert known.in_memory
    assert "memory (operand A changed" in found.text


def test_a_comparison_that_sleeps_is_reported_as_such(tmp_path: Path) -> None:
    def blind(found: Tensor, expected: Tensor, count: Tensor) -> None:
        compare(found, expected, count)
        count.zero_()

    made = replace(task(tmp_path), seams=ProductSeams(compare=blind))
    with pytest.raises(Unable, match="did not notice flipped bits") as caught:
        soaked(made)
    assert caught.value.cause is Cause.CHECKER


def test_operands_are_bell_shaped_and_centred() -> None:
    made = soak.make_matrix(3, 600, 600, torch.float64, HOST)
    assert abs(float(made.mean())) < 0.01
    assert float(made.std()) == pytest.approx(0.82, abs=0.01)
    fourth = float((made**4).mean() / made.var() ** 2)
    assert fourth == pytest.approx(2.85, abs=0.05)  # 3 of a normal, 1.8 of a uniform


def test_operands_are_the_same_bits_on_every_machine() -> None:
    made = soak.make_matrix(3, 520, 64, torch.float64, HOST)
    exact = soak.make_bell_integers(3, range(520), 64, HOST).flatten().tolist()
    assert made.flatten().tolist() == [value * soak.BELL_SCALE for value in exact]
    assert compute_digest(made) == DIGEST


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_bit_of_a_significand_takes_part(dtype: torch.dtype) -> None:
    made = view_integers(soak.make_matrix(1, 64, 64, dtype, HOST))
    significand = {torch.float32: 23, torch.float64: 52}[dtype]
    for bit in range(significand):
        assert 0 < int(((made >> bit) & 1).sum()) < made.numel()


@pytest.mark.parametrize("name", FAMILIES)
def test_operands_of_every_type_are_finite_and_of_both_signs(tmp_path: Path, name: str) -> None:
    made = replace(task(tmp_path), family=FAMILIES[name])
    for operand in make_normal_pair(made, 0, HOST):
        values = operand.double()
        assert bool(torch.isfinite(values).all())
        assert 0.4 < float((values > 0).double().mean()) < 0.6
    if FAMILIES[name].by_columns:
        assert make_normal_pair(made, 0, HOST)[1].stride(0) == 1


def test_a_burst_fills_its_share_of_the_period() -> None:
    for period, pace, products in ((0.1, 0.001, 50), (0.01, 0.1, 4), (0.1, 0.0, 4)):
        schedule = LoadSchedule.plan(Stretch(0, 1, period), pace, batch_size=4)
        assert schedule.burst_products == products


def test_the_load_comes_on_at_multiples_of_the_period() -> None:
    period = 0.02
    load = LoadSchedule(soon(0.3, period), burst_products=2)
    edges: list[float] = []
    products = 0
    while not load(products := products + 1):
        if load.edges > len(edges):
            edges.append(CLOCK.now / period)
    assert [round(edge) for edge in edges] == pytest.approx(edges)
    assert len(set(map(round, edges))) == len(edges) == load.edges > 10
    assert products // 2 == load.edges + 1


def test_steady_load_has_no_edges_and_ends_in_time() -> None:
    load = LoadSchedule(soon(0.01))
    while not load(1):
        CLOCK.sleep(0.001)
    assert (load.edges, load.stretch.describe()) == (0, "steady load")
    assert LoadSchedule(soon(-1, 0.05))(1)


def test_a_stretch_that_is_over_before_it_began_is_left_out(tmp_path: Path) -> None:
    part = prepared(task(tmp_path))
    for period in (0.0, 0.05):
        done = part.run(soon(-1, period))
        assert (done.products, done.edges, done.flop) == (0, 0, 0)


def test_what_was_done_is_told_as_it_is_done(tmp_path: Path) -> None:
    noted: list[int] = []
    part = prepared(task(tmp_path))
    done = part.run(soon(0.1), noted.append)
    assert done.products == sum(noted) == len(noted)
    assert done.flop == done.products * SHAPE.operations
    assert part.pace == done.seconds / done.products > 0


PERIODS = (0.5, 0.05, 0.005)


def test_waves_are_framed_by_steady_load() -> None:
    table = plan_stretches(100.0, 60.0, 0.2, PERIODS)
    assert [s.period for s in table] == [0.0, *PERIODS, 0.0]
    lengths = [s.end - s.start for s in table]
    assert lengths == pytest.approx([24, 4, 4, 4, 24])


@given(
    st.floats(0, 1e7),
    st.floats(0.1, 1e6),
    st.floats(0, 1),
    st.lists(st.floats(1e-3, 2), max_size=4),
)
def test_a_plan_fills_its_time_without_a_gap(
    start: float, seconds: float, share: float, periods: list[float]
) -> None:
    table = plan_stretches(start, seconds, share, periods)
    assert table[0].start == start
    assert table[-1].end == pytest.approx(start + seconds)
    assert all(a.end == b.start for a, b in pairwise(table))


@pytest.mark.parametrize(
    ("share", "periods", "expected"),
    [(0.0, PERIODS, [0.0, 0.0]), (0.5, (), [0.0, 0.0]), (1.0, (0.5,), [0.5])],
)
def test_a_soak_may_be_all_steady_or_all_waves(
    share: float, periods: tuple[float, ...], expected: list[float]
) -> None:
    assert [s.period for s in plan_stretches(0, 60, share, periods)] == expected


def test_hours_of_steady_load_are_cut_so_that_they_are_looked_at() -> None:
    table = plan_stretches(0.0, 4 * 3600.0, 0.2, PERIODS)
    longest = max(s.end - s.start for s in table if not s.period)
    assert 0 < longest <= soak.MAX_STEADY_SECONDS


@given(st.floats(0, 1e7), st.floats(0, 1), st.sampled_from(PERIODS))
def test_the_edges_of_all_devices_fall_together(now: float, share: float, period: float) -> None:
    # Asked anywhere between the same two edges, all name the same one.
    number = math.floor(now / period)
    later = (number + 0.001 + 0.998 * share) * period
    assert find_next_edge(later, period) == (number + 1) * period


@given(st.floats(0, 1e7), st.sampled_from(PERIODS))
def test_the_next_edge_is_within_a_period(now: float, period: float) -> None:
    assert now - 1e-8 <= find_next_edge(now, period) <= now + period + 1e-8
