"""An exact product has one right result, and what proves it cannot be fooled."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import Tensor

from hpcverify_checks.exact.bits import view_integers
from hpcverify_checks.exact.families import (
    DOUBLE_LIMIT,
    FAMILIES,
    SINGLE_LIMIT,
    make_bf16_plans,
    make_fp64_plans,
)
from hpcverify_checks.exact.products import (
    MISS_BITS,
    PAD_DEPTH,
    SHIFT_COUNT,
    Operands,
    ProductPlan,
    Shape,
    count_vectors,
    find_constant_bits,
    prove_by_freivalds,
    view_shifted,
)

SHAPE = Shape(64, 256)
EVERY = [(f, plan) for f in FAMILIES.values() for plan in f.make_plans(SHAPE.depth)]
"""Plans with the types that they are used with."""


def right(made: Operands, dtype: torch.dtype = torch.float32) -> Tensor:
    return made.compute_exact_rows(range(made.shape.size)).to(dtype)


def tightest(made: Operands) -> int:
    """Give the largest sum of all positive, or of all negative, products."""
    a = made.make_a(range(made.shape.size), "cpu").double()
    b = made.make_b(range(made.shape.depth), "cpu").double()
    return int(((a.abs() @ b.abs() + (a @ b).abs()) / 2).max())


@pytest.mark.parametrize("place", range(len(EVERY)))
def test_the_certificate_bounds_every_partial_sum(place: int) -> None:
    family, plan = EVERY[place]
    made = Operands(plan, SHAPE)
    proof = prove_by_freivalds(made, right(made, getattr(torch, family.output)), seed=1)
    assert tightest(made) <= proof.certificate <= plan.limit
    assert not proof.wrong_rows


def test_operands_are_exact_in_the_types_that_store_them() -> None:
    for family, plan in EVERY:
        made = Operands(plan, SHAPE)
        stored, _ = made.store(getattr(torch, family.operand), "cpu")
        rows, _ = made.make_factors("cpu")
        whole = made.make_a(range(SHAPE.size), "cpu") * rows
        assert torch.equal(stored[:, :-PAD_DEPTH].double(), whole.double())


def test_every_shift_gives_the_same_product() -> None:
    made = Operands(make_bf16_plans(SHAPE.depth)[3], SHAPE)
    a, b = made.store(torch.float32, "cpu")
    for shift in range(SHIFT_COUNT):
        found = torch.mm(*view_shifted(a, b, shift))
        assert torch.equal(view_integers(found), view_integers(right(made)))


def test_no_order_and_no_grouping_changes_a_bit() -> None:
    made = Operands(make_bf16_plans(SHAPE.depth)[1], SHAPE)
    a, b = view_shifted(*made.store(torch.float32, "cpu"), 0)
    order = torch.randperm(SHAPE.depth, generator=torch.Generator().manual_seed(1))
    halves = a[:, :128] @ b[:128] + a[:, 128:] @ b[128:]
    for found in (a[:, order] @ b[order], a.flip(1) @ b.flip(0), halves):
        assert torch.equal(view_integers(found), view_integers(right(made)))


def test_by_columns_is_the_same_matrix_stored_otherwise() -> None:
    made = Operands(make_bf16_plans(SHAPE.depth)[0], SHAPE)
    _, plain = made.store(torch.bfloat16, "cpu")
    _, turned = made.store(torch.bfloat16, "cpu", by_columns=True)
    assert torch.equal(plain, turned)
    assert turned.stride() == (1, SHAPE.depth + PAD_DEPTH)


def test_every_draw_has_operands_of_its_own() -> None:
    plan, rows = make_bf16_plans(SHAPE.depth)[0], range(4)
    made = [Operands(plan, SHAPE, draw).make_a(rows, "cpu") for draw in (0, 1, 2**31 - 1)]
    for one, other in product(made, made):
        assert (one is other) or (one != other).float().mean() > 0.9


def test_freivalds_names_the_rows_that_are_wrong() -> None:
    made = Operands(make_bf16_plans(SHAPE.depth)[3], SHAPE)
    found = right(made)
    found[5, 6] = torch.nan
    found[9] *= 2
    view_integers(found)[11, 12].bitwise_xor_(1)
    found[13, [3, 4]] = found[13, [4, 3]]
    assert prove_by_freivalds(made, found, seed=1).wrong_rows == (5, 9, 11, 13)


def test_freivalds_sees_every_bit_of_an_element() -> None:
    made = Operands(make_bf16_plans(SHAPE.depth)[1], SHAPE)
    for bit in range(32):
        found = right(made)
        mask = 1 << bit if bit < 31 else -(1 << 31)
        view_integers(found)[7, 8].bitwise_xor_(mask)
        assert prove_by_freivalds(made, found, seed=1).wrong_rows == (7,), bit


def test_two_errors_with_many_low_zeros_are_found_as_surely_as_promised() -> None:
    # 2^52 twice in a row of fp64 escapes one vector once in 2^11: v = 52, and the sum of two
    # odd numbers must be divisible by 2^12.
    vectors = count_vectors(DOUBLE_LIMIT)
    largest = (2 * DOUBLE_LIMIT).bit_length() - 1
    assert vectors * (63 - largest) >= MISS_BITS
    made = Operands(make_fp64_plans(SHAPE.depth)[1], Shape(512, 256))
    found = right(made, torch.float64)
    found[:, 3] -= 2.0**52
    found[:, 7] -= 2.0**52
    assert prove_by_freivalds(made, found, seed=1).wrong_rows == tuple(range(512))


def test_narrow_sums_need_no_more_vectors_than_before() -> None:
    assert [count_vectors(limit) for limit in (SINGLE_LIMIT, 2**31 - 1)] == [2, 2]


def test_a_plan_that_is_too_large_has_a_certificate_that_says_so() -> None:
    shape = Shape(64, 2048)
    made = Operands(ProductPlan("too large", 99, 2047, 2047, SINGLE_LIMIT), shape)
    assert prove_by_freivalds(made, right(made, torch.float64), seed=1).certificate > SINGLE_LIMIT


def test_the_plans_of_a_type_leave_no_bit_of_its_products_constant() -> None:
    for name in ("bf16", "fp16", "tf32", "fp32", "fp64", "int8"):
        family = FAMILIES[name]
        made = [Operands(plan, Shape(64, 2048)) for plan in family.make_plans(2048)]
        products = [right(m, getattr(torch, family.output)) for m in made]
        assert find_constant_bits(products) == (), name


def test_without_bias_the_low_bits_of_sums_are_constant() -> None:
    plain = Operands(make_bf16_plans(2048)[0], Shape(64, 2048))
    assert {0, 1} <= set(find_constant_bits([right(plain)]))
