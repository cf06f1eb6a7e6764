"""The stress phase loads the GPU, or each core of the CPU by itself."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from hpcverify.model import (
    CheckItem,
    Coverage,
    Device,
    Finding,
    Measurement,
)
from hpcverify.testing import INVENTORY, make_context
from hpcverify_checks.exact.bits import view_integers, view_words
from hpcverify_checks.exact.families import CPU_FAMILIES
from hpcverify_checks.exact.product_loop import ProductSeams, ProductTask
from hpcverify_checks.exact.products import Shape
from hpcverify_checks.exact.soak import FIRST_PRODUCTS, OPERAND_PAIRS, StretchResult
from hpcverify_checks.exact.vote import reconcile
from hpcverify_checks.node.dtypes import Multiply, multiply
from hpcverify_checks.sdc import stress
from hpcverify_checks.sdc.prepare import list_families
from tests.checks.sdc.work_clock import WorkClock

HOST = torch.device("cpu")
SHAPE = Shape(64, 128)
FIRST = OPERAND_PAIRS * FIRST_PRODUCTS
"""Products that are made before any is compared."""


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Multiply small matrices: what goes wrong is the same."""
    monkeypatch.setattr(stress, "CPU_SHAPE", SHAPE)


def numbers(found: Iterable[CheckItem], name: str) -> dict[str, float | None]:
    return {f.part_id: f.value for f in found if isinstance(f, Measurement) and f.name == name}


def test_all_cores_are_stressed_and_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    WorkClock(0.01).put_into(monkeypatch)  # else a busy machine leaves types out
    found = list(stress.run_stress(make_context(tmp_path), HOST, 2.0, list_families(HOST)))
    cores = {f"cpu{core}" for core in os.sched_getaffinity(0)}
    assert numbers(found, "stress.mismatched") == dict.fromkeys(cores, 0)
    assert all(numbers(found, "stress.products").values())
    assert not [f for f in found if isinstance(f, Finding)]
    texts = [f.text for f in found if isinstance(f, Coverage)]
    assert all("whose first products are identical" in text for text in texts)


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
    found = list(stress.run_stress(make_context(tmp_path), HOST, 0.4, list_families(HOST), seams))
    codes = {(f.code, f.part_id) for f in found if isinstance(f, Finding)}
    assert codes == {("corruption", f"cpu{bad}")}
    assert numbers(found, "stress.mismatched")[f"cpu{bad}"] == 1


def test_a_core_that_always_differs_is_worth_a_warning(tmp_path: Path) -> None:
    bad = max(os.sched_getaffinity(0))
    seams = ProductSeams(multiply=core_only(bad, lambda out: view_integers(out)[5].bitwise_or_(1)))
    floats = [CPU_FAMILIES[name] for name in ("fp32", "fp64")]
    found = list(stress.run_stress(make_context(tmp_path), HOST, 0.2, floats, seams))
    facts = [f for f in found if isinstance(f, Finding)]
    left = [f for f in reconcile(facts, INVENTORY) if isinstance(f, Finding)]
    assert {f.code for f in left} == {"dissent"}
    assert f"cpu{bad}" in {f.part_id for f in left}
    assert not any(numbers(found, "stress.mismatched").values())


def test_coverage_says_what_was_multiplied_and_how_often_the_load_came_on(tmp_path: Path) -> None:
    gpu = Device("cuda", "GPU-0", "GPU 0")
    made = ProductTask(make_context(tmp_path, device=gpu), CPU_FAMILIES["fp32"], SHAPE, HOST)
    (part,) = stress.stress_device(made, 0.01)
    part.done[:] = [
        StretchResult(0.0, 0.0, 1.0, 10, 1e9),
        StretchResult(0.1, 1.0, 2.0, 30, 3e9, edges=7),
    ]
    covered = next(iter(stress.report_gpu(made, [part])))
    assert isinstance(covered, Coverage)
    assert "fp32: 40 products of 64 x 128 x 64 random normal numbers" in covered.text
    assert "in 2.0 s; load switched on 7 times, for 5, 20, 50 ms" in covered.text


def test_a_part_is_loaded_until_its_time_is_over_or_it_errs(tmp_path: Path) -> None:
    gpu, count = Device("cuda", "GPU-0", "GPU 0"), iter(range(10**9))

    def faulty(a: Tensor, b: Tensor, out: Tensor) -> None:
        multiply(a, b, out)
        if next(count) == FIRST + 1:
            view_words(out)[7].bitwise_xor_(1)

    ctx, kind = make_context(tmp_path, device=gpu), CPU_FAMILIES["fp32"]
    (good,) = stress.stress_device(ProductTask(ctx, kind, SHAPE, HOST), 0.4)
    assert [done.period for done in good.done] == [0.0, *stress.PERIOD_SECONDS, 0.0]
    seams = ProductSeams(multiply=faulty)
    (bad,) = stress.stress_device(ProductTask(ctx, kind, SHAPE, HOST, seams), 60.0)
    assert bad.corruption is not None
    assert len(bad.done) == 1
