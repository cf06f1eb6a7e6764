"""The plans are exact on the tensor cores that there are, and their limits are real."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcverify_checks.exact.families import FAMILIES, FP8_LIMIT
from hpcverify_checks.exact.products import Operands, Shape
from hpcverify_checks.exact.sparse import SparseOperands
from tests.checks.exact.tensor_core import (
    CORES,
    LEAST,
    SMALLEST,
    Core,
    Matrix,
    fma_chain,
    to_nearest,
    towards_zero,
)

SIZE = 2
HOLDS = {"fp16": 2**11, "tf32": 2**11, "bf16": 2**8, "fp8": 2**4}
"""The integers that an operand holds."""
ALL = pytest.mark.parametrize("core", CORES, ids=lambda c: f"{c.operand} on {c.name}")
FP32 = [core for core in CORES if core.operand != "fp8"]


def limit(core: Core) -> int:
    """Say up to which magnitude the sums of *core* are exact."""
    return FP8_LIMIT if core.aligned == 13 else 2**24 - 1


def planned(family: str) -> tuple[Operands, ...]:
    """Give the operands of all plans of *family* at the depth of the suites."""
    depth = FAMILIES[family].depth
    shape = Shape(SIZE, depth)
    return tuple(Operands(plan, shape) for plan in FAMILIES[family].make_plans(depth))


def integers(made: Operands) -> tuple[Matrix, Matrix]:
    a = made.make_a(range(SIZE), "cpu").double()
    return a.numpy(), made.make_b(range(made.shape.depth), "cpu").double().numpy()


def stacked(family: str) -> tuple[Matrix, Matrix]:
    """Give the integers of all plans of *family*."""
    a, b = zip(*map(integers, planned(family)), strict=True)
    return np.stack(a), np.stack(b)


def scaled(family: str) -> tuple[Matrix, Matrix, Matrix]:
    """Give the operands of all plans of *family* as they are stored, and A x B."""
    a, b = stacked(family)
    both = [m.make_factors("cpu") for m in planned(family)]
    rows = np.stack([factors.numpy() for factors, _ in both])
    columns = np.stack([factors.numpy() for _, factors in both])
    return a * rows, b * columns, (a @ b) * rows * columns


@ALL
@pytest.mark.parametrize("draw", range(5))
def test_one_product_in_each_output_loses_no_bit_and_a_zero_cannot_hide_it(
    core: Core, draw: int
) -> None:
    family = FAMILIES[core.operand]
    assert family.sparse
    made = SparseOperands(family.sparse, Shape(16, 128), draw)
    a = made.make_a_values(range(16), "cpu").numpy()
    b = made.make_b_values(range(128), "cpu").numpy()
    right = made.compute_rows(range(16), torch.float32).double().numpy()
    assert (core.product(a, b) == right).all()
    # As if a zero counted as the smallest number: some sum is then aligned to it.
    tops = core.instructions(a, b)
    smallest = LEAST[core.operand] + family.sparse.full[-1]
    found = np.zeros_like(right)
    for terms, top in tops:
        found = core.step(terms, np.maximum(top, smallest), found)
    assert (found == right).all()


def partial_sums(a: Matrix, b: Matrix) -> int:
    """Give the largest magnitude of any sum over any products of one output."""
    norms, out = abs(a) @ abs(b), abs(a @ b)
    return int((norms + out).max()) // 2


def summing_to(total: int, most: int) -> tuple[Matrix, Matrix]:
    """Give a row and a column of integers up to *most* whose product is *total*."""
    whole, rest = divmod(total, most * most)
    a = [most] * whole + [rest // most, rest % most]
    b = [most] * (whole + 1) + [1]
    return np.array([a], np.float64), np.array(b, np.float64)[:, None]


def spelled_out(core: Core, a: Matrix, b: Matrix, before: float) -> float:
    """Do one instruction of a *core* for one output, in exact fractions."""
    least = LEAST[core.operand]
    terms = [
        (Fraction(x) * Fraction(y), exponent(x, least) + exponent(y, least))
        for x, y in zip(a.tolist(), b.tolist(), strict=True)
    ]
    own = (Fraction(before), exponent(before, SMALLEST))
    top = max(e for _, e in terms)
    if core.apart is None:
        unit = Fraction(2) ** (max(top, own[1]) - core.aligned)
        total = sum(math.trunc(t / unit) * unit for t, _ in (*terms, own))
        return float(core.rounding(np.array(float(total))))
    unit = Fraction(2) ** (top - core.aligned)
    total = sum(math.trunc(t / unit) * unit for t, _ in terms)
    top = max(top, own[1])
    fine, coarse = (Fraction(2) ** (top - bits) for bits in (core.apart, core.aligned))
    total = math.floor(total / fine) * fine + math.floor(own[0] / coarse) * coarse
    return float(core.rounding(np.array(float(total))))


def exponent(x: float, least: int) -> int:
    return max(math.frexp(x)[1] - 1, least) if x else SMALLEST


def test_rounding_cuts_off_or_goes_to_the_nearest() -> None:
    assert towards_zero(13)(np.array([2.0**14 + 3, -(2.0**14) - 1])).tolist() == [
        2.0**14 + 2,
        -(2.0**14),
    ]
    assert to_nearest(np.array([2.0**24 + 3])).tolist() == [2.0**24 + 4]


@ALL
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_the_model_is_the_published_rule(core: Core, data: st.DataObject) -> None:
    most = HOLDS[core.operand]
    powers = st.integers(LEAST["fp8"], 4)
    value = st.builds(math.ldexp, st.integers(-most, most), powers)
    values = st.lists(value, min_size=core.products, max_size=core.products)
    a, b = (np.array(data.draw(values)) for _ in range(2))
    before = float(to_nearest(np.array(data.draw(st.floats(-1e6, 1e6)))))
    (instruction,) = core.instructions(a[None], b[:, None])
    found = core.step(*instruction, np.array([[before]]))
    assert found.item() == spelled_out(core, a, b, before)


@ALL
def test_all_plans_are_exact_at_the_depth_of_the_suites(core: Core) -> None:
    a, b, right = scaled(core.operand)
    assert np.array_equal(core.product(a, b), right)


@pytest.mark.parametrize("core", [c for c in CORES if c.operand == "fp8"])
def test_fp8_plans_are_exact_with_promotion_too(core: Core) -> None:
    a, b, right = scaled("fp8")
    assert np.array_equal(core.product(a, b, promote=128), right)


@pytest.mark.parametrize(("family", "dtype"), [("fp32", np.float32), ("fp64", np.float64)])
def test_all_plans_are_exact_one_fma_at_a_time(
    family: str, dtype: type[np.float32 | np.float64]
) -> None:
    a, b = stacked(family)
    assert np.array_equal(fma_chain(a, b, dtype), a @ b)


def test_int8_plans_never_leave_int32() -> None:
    for a, b in map(integers, planned("int8")):
        assert partial_sums(a, b) <= np.iinfo(np.int32).max


@ALL
def test_a_sum_at_the_limit_is_exact_and_one_beyond_is_not(core: Core) -> None:
    a, b = summing_to(limit(core), HOLDS[core.operand] - 1)
    assert core.product(a, b).item() == limit(core)
    a, b = summing_to(limit(core) + 2, HOLDS[core.operand] - 1)
    assert core.product(a, b).item() != limit(core) + 2


@pytest.mark.parametrize("core", FP32, ids=lambda c: f"{c.operand} on {c.name}")
def test_a_partial_sum_of_2_to_24_is_one_too_many_for_volta(core: Core) -> None:
    a, b = summing_to(2**24, HOLDS[core.operand] - 1)
    room = -a.shape[1] % core.products
    a = np.concatenate([a, np.zeros((1, room)), [[1]]], axis=1)
    b = np.concatenate([b, np.zeros((room, 1)), [[-1]]])
    assert (core.product(a, b).item() == 2**24 - 1) is (core.name != "Volta")


def test_fp8_beyond_its_limit_is_exact_only_if_it_is_promoted_in_time() -> None:
    hopper = next(c for c in CORES if (c.name, c.operand) == ("Hopper", "fp8"))
    a, b = np.full((1, 128), 11.0), np.full((128, 1), 11.0)
    deep = np.tile(a, 4), np.tile(b, (4, 1))
    assert hopper.product(*deep, promote=128).item() == 4 * 128 * 121
    assert hopper.product(*deep).item() != 4 * 128 * 121


@st.composite
def certified(draw: st.DrawFn, core: Core) -> tuple[Matrix, Matrix]:
    """Draw operands of which no partial sum passes the limit, some of them close."""
    most = HOLDS[core.operand] - 1
    depth = draw(st.integers(1, 80))
    bias = 2**23 if limit(core) > 2**23 and draw(st.booleans()) else 0
    each = (limit(core) - bias) // depth
    large = draw(st.integers(1, min(most, each)))
    other = min(most, each // large)
    a = draw(st.lists(st.integers(-large, large), min_size=depth, max_size=depth))
    b = draw(st.lists(st.integers(-other, other), min_size=depth, max_size=depth))
    if bias:
        a, b = [*a, 2**12], [*b, 2**11]
    return np.array([a], np.float64), np.array(b, np.float64)[:, None]


@ALL
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_certified_sums_are_the_same_in_any_order_split_or_grouping(
    core: Core, data: st.DataObject
) -> None:
    a, b = data.draw(certified(core))
    assert partial_sums(a, b) <= limit(core)
    order = np.array(data.draw(st.permutations(range(a.shape[1]))))
    cut = data.draw(st.integers(0, a.shape[1]))
    parts = [order[:cut], order[cut:]]
    split = sum(core.product(a[:, p], b[p]) for p in parts)
    assert core.product(a[:, order], b[order]).item() == (a @ b).item()
    assert to_nearest(np.asarray(split)).item() == (a @ b).item()


@ALL
def test_sums_past_the_limit_depend_on_their_order(core: Core) -> None:
    a, b = summing_to(limit(core) + 1, 128)
    one = np.zeros(core.products)
    one[0] = 1
    room = np.zeros(-a.shape[1] % core.products)
    a = np.concatenate([a, [[*room, *one, *one]]], axis=1)
    b = np.concatenate([b, np.ones((a.shape[1] - len(b), 1))])
    assert partial_sums(a, b) == limit(core) + 3
    backwards = core.product(a[:, ::-1], b[::-1])
    assert core.product(a, b).item() != backwards.item()
