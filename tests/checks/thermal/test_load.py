"""The load of a soak is exact on a CPU, tells its rate, and lets no wrong bit by."""

from __future__ import annotations

from collections.abc import Callable, Generator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from hpcverify.testing import make_context
from hpcverify_checks.exact.bits import view_words
from hpcverify_checks.exact.families import make_fp64_plans
from hpcverify_checks.exact.product_loop import ProductSeams
from hpcverify_checks.exact.products import Operands, Shape, prove_by_freivalds
from hpcverify_checks.exact.soak import FIRST_PRODUCTS, OPERAND_PAIRS, PartSoak, Stretch
from hpcverify_checks.node.dtypes import multiply
from hpcverify_checks.thermal import load
from hpcverify_checks.thermal.load import prepare_loads, run_loads
from hpcverify_checks.thermal.plan import Meter
from tests.checks.sdc.work_clock import WorkClock

SIZE = 128
CLOCK = WorkClock(product_seconds=0.005)
PRODUCTS = OPERAND_PAIRS * FIRST_PRODUCTS
"""That one load makes before any is compared."""


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Multiply small matrices, whose products are as exact, and go by the clock of work."""
    CLOCK.put_into(monkeypatch)
    for sizes in (load.STEADY_SIZES, load.WAVE_SIZES):
        monkeypatch.setitem(sizes, "cpu", SIZE)


@pytest.fixture
def loads(tmp_path: Path) -> tuple[PartSoak, PartSoak]:
    return prepare_loads(make_context(tmp_path))


@pytest.fixture
def threads() -> Generator[Callable[[int], None]]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def soon(*lengths: float, period: float = 0.0) -> tuple[Stretch, ...]:
    return tuple(Stretch(CLOCK.now, CLOCK.now + length, period) for length in lengths)


def test_good_products_are_never_called_wrong_on_however_many_threads(
    loads: tuple[PartSoak, PartSoak], threads: Callable[[int], None]
) -> None:
    for count in (1, 2, 3):
        threads(count)
        (done,) = run_loads(loads, soon(0.05), Meter(1.0))
        assert done.products > 1
        assert done.mismatched_words == 0


def test_the_products_of_the_host_are_exact_in_every_order(
    loads: tuple[PartSoak, PartSoak],
) -> None:
    for job in loads[0].bench.jobs:
        a, b = job.a[:, :SIZE].long(), job.b[:SIZE].long()
        assert torch.equal(view_words((a @ b).double()), view_words(job.reference))
    assert f"{SIZE} x {SIZE} x {SIZE} random 20-bit integers" in loads[0].text


@pytest.mark.parametrize("size", [384, 1024])
def test_the_products_of_a_run_are_certified(size: int) -> None:
    for plan in make_fp64_plans(size)[:OPERAND_PAIRS]:
        made = Operands(plan, Shape(size, size))
        a, b = made.store(torch.float64, "cpu")
        proof = prove_by_freivalds(made, a[:, :size] @ b[:size], seed=1)
        assert not proof.wrong_rows
        assert proof.certificate <= plan.limit


def test_steady_load_tells_its_rate(loads: tuple[PartSoak, PartSoak]) -> None:
    meter = Meter(0.05)
    (done,) = run_loads(loads, soon(0.5), meter)
    assert done.flop == done.products * 2 * SIZE**3
    assert done.seconds > 0
    assert len(meter.rates) > 1
    assert all(rate > 0 for rate in meter.rates)


def test_waves_know_how_long_a_product_takes_before_they_begin(
    loads: tuple[PartSoak, PartSoak],
) -> None:
    assert loads[1].pace > 0
    (done,) = run_loads(loads, soon(0.3, period=0.05), Meter(1.0))
    assert done.edges > 0


@pytest.mark.parametrize("period", [0.0, 0.02])
def test_a_load_ends_with_the_first_product_that_is_wrong(tmp_path: Path, period: float) -> None:
    bad = False

    def faulty(a: Tensor, b: Tensor, out: Tensor) -> None:
        multiply(a, b, out)
        if bad:
            view_words(out)[77].bitwise_xor_(1)

    loads = prepare_loads(make_context(tmp_path), ProductSeams(multiply=faulty))
    bad = True
    (done,) = run_loads(loads, soon(60, 60, period=period), Meter(1.0))
    assert done.mismatched_words == 1
    accused = loads[bool(period)].corruption
    assert accused is not None
    assert ("load steps every 20 ms" in accused.text) is bool(period)


def test_a_part_that_errs_before_the_load_is_not_loaded(tmp_path: Path) -> None:
    made = iter(range(10**9))

    def faulty(a: Tensor, b: Tensor, out: Tensor) -> None:
        multiply(a, b, out)
        if next(made) == PRODUCTS + 1:  # the second of the waves
            view_words(out)[77].bitwise_xor_(1)

    loads = prepare_loads(make_context(tmp_path), ProductSeams(multiply=faulty))
    assert loads[1].corruption is not None
    assert not list(run_loads(loads, soon(60), Meter(1.0)))
