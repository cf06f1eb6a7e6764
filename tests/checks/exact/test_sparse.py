"""An output that is one product is rounded once, and the host knows how without a float."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hpcverify_checks.exact.bits import view_integers
from hpcverify_checks.exact.families import CPU_FAMILIES, FAMILIES, Family
from hpcverify_checks.exact.products import Shape, find_constant_bits, view_shifted
from hpcverify_checks.exact.sparse import (
    BAND_ROWS,
    BF16,
    FP32,
    FP64,
    LONG,
    FloatFormat,
    Numbers,
    SparseOperands,
    SparsePlan,
    encode_double,
    round_products,
)
from hpcverify_checks.node.dtypes import multiply

EVERY = {
    plan: family
    for family in (*FAMILIES.values(), CPU_FAMILIES["fp32"], CPU_FAMILIES["bf16"])
    for plan in family.list_sparse()
}
"""Each sparse plan, with a type that is multiplied by it."""
each_plan = pytest.mark.parametrize(("plan", "family"), EVERY.items(), ids=lambda x: x.name)
SHAPE = Shape(64, 256)
SEEDS = range(60)
SIGNIFICANDS = st.integers(2 ** (LONG - 1), 2**LONG - 1)


def sparse(family: Family, shape: Shape = SHAPE) -> SparseOperands:
    assert family.sparse
    return SparseOperands(family.sparse, shape)


def number(significand: int, exponent: int, negative: int = 0) -> Numbers:
    return Numbers(torch.tensor(negative), torch.tensor(exponent), torch.tensor(significand))


def value(of: Numbers) -> Fraction:
    scale = Fraction(2) ** (int(of.exponent) - LONG + 1)
    size = int(of.significand) * scale
    return -size if of.negative else size


def nearest(exact: Fraction, kind: FloatFormat) -> int:
    """Round by fractions: the bits in the format *kind*."""
    size, exponent = abs(exact), kind.min_exponent
    while size >= Fraction(2) ** (exponent + 1):
        exponent += 1
    unit = Fraction(2) ** (exponent - kind.precision + 1)
    steps = round(size / unit)  # ties to even
    bits = (exponent - kind.min_exponent << kind.precision - 1) + steps
    return min(bits, kind.infinity) | int(exact < 0) << kind.width - 1


@given(
    SIGNIFICANDS,
    SIGNIFICANDS,
    st.sampled_from([BF16, FP32, FP64]),
    st.integers(0, 90),
    st.integers(0, 1),
)
def test_a_product_is_rounded_to_nearest_and_ties_to_even(
    a: int, b: int, kind: FloatFormat, above: int, negative: int
) -> None:
    # From the smallest subnormal on, and about the largest number.
    smallest = kind.min_exponent - kind.precision + 1
    for exponent in (smallest + above, 1 - kind.min_exponent - 45 + above):
        half = exponent // 2
        one, other = number(a, half, negative), number(b, exponent - half)
        found = int(round_products(one, other, kind)) % 2**kind.width
        assert found == nearest(value(one) * value(other), kind)


@given(st.integers(2**23, 2**24 - 1), st.integers(2**23, 2**24 - 1), st.integers(-148, 130))
def test_what_the_host_rounds_is_what_numpy_rounds(a: int, b: int, exponent: int) -> None:
    shift = LONG - FP32.precision
    one, other = number(a << shift, exponent // 2), number(b << shift, exponent - exponent // 2)
    with np.errstate(over="ignore", under="ignore"):
        right = np.float32(float(value(one))) * np.float32(float(value(other)))
    assert int(round_products(one, other, FP32)) == int(right.view(np.uint32))


@given(SIGNIFICANDS, st.integers(-1022, 1023), st.integers(0, 1))
def test_numbers_are_encoded_as_they_are(significand: int, exponent: int, negative: int) -> None:
    encoded = encode_double(number(significand, exponent, negative))
    assert Fraction(float(encoded)) == value(number(significand, exponent, negative))


@each_plan
def test_the_part_makes_the_product_that_the_host_makes_whatever_the_seed(
    plan: SparsePlan, family: Family
) -> None:
    out = torch.empty(SHAPE.size, SHAPE.size, dtype=getattr(torch, family.output))
    for draw in SEEDS:
        made = SparseOperands(plan, SHAPE, draw)
        stored = made.store(getattr(torch, family.operand), "cpu", by_columns=family.by_columns)
        multiply(*view_shifted(*stored, draw % 9), out)
        assert made.prove(out, draw).wrong_rows == ()


@each_plan
def test_one_wrong_bit_is_one_wrong_row(plan: SparsePlan, family: Family) -> None:
    made, dtype = SparseOperands(plan, SHAPE), getattr(torch, family.output)
    found = made.compute_rows(range(SHAPE.size), dtype)
    view_integers(found)[40, 3] ^= 1
    assert made.prove(found, 1).wrong_rows == (40,)
    assert made.compute_rows([40, 2], dtype).equal(made.compute_rows(range(64), dtype)[[40, 2]])


@each_plan
def test_a_thin_operand_has_one_number_for_each_output_and_none_is_zero(
    plan: SparsePlan, family: Family
) -> None:
    made = SparseOperands(plan, SHAPE)
    thin, full = made.make_a_values(range(64), "cpu"), made.make_b_values(range(256), "cpu")
    if plan.full_a:
        thin, full = full.T, thin
    assert ((thin != 0).sum(dim=1) == 1).all()
    assert (full != 0).all()
    assert (made.compute_rows(range(64), getattr(torch, family.output)) != 0).all()


@each_plan
def test_a_zero_outranks_no_product_where_the_smallest_exponent_counts_for_it(
    plan: SparsePlan, family: Family
) -> None:
    if family.capability > (0, 0):  # tensor cores, which align products
        assert plan.operand.min_exponent + plan.full[-1] <= plan.thin.start + plan.full.start


def test_operands_and_outputs_use_every_bit_of_a_significand() -> None:
    for family in (CPU_FAMILIES["fp32"], CPU_FAMILIES["fp64"], CPU_FAMILIES["bf16"]):
        made, dtype = sparse(family, shape=Shape(512, 256)), getattr(torch, family.output)
        low = range(made.plan.output.precision)
        a, b = made.store(dtype, "cpu")
        for matrix in (a, b, made.compute_rows(range(512), dtype)):
            assert not set(low) & set(find_constant_bits([matrix])), family.name


def test_rows_of_every_band_are_what_their_plan_says() -> None:
    for name, tiny in (("fp32", 2.0**-126), ("fp64", 2.0**-1022)):
        family = CPU_FAMILIES[name]
        out = sparse(family).compute_rows(range(64), getattr(torch, family.output)).abs()
        small, large, usual = out[:BAND_ROWS], out[BAND_ROWS:][:BAND_ROWS], out[2 * BAND_ROWS :]
        assert 0.3 < (small < tiny).double().mean() < 0.9
        assert large.isinf().any()
        assert large.isfinite().any()
        assert usual.isfinite().all()
        assert (usual >= tiny).all()


@each_plan
def test_blocks_of_rows_join_to_the_whole(plan: SparsePlan, family: Family) -> None:
    del family
    made = SparseOperands(plan, SHAPE)
    for make, rows in ((made.make_a_values, 64), (made.make_b_values, 256)):
        parts = [make(range(at, at + 8), "cpu") for at in range(0, rows, 8)]
        assert torch.cat(parts).equal(make(range(rows), "cpu"))


def test_what_is_special_is_counted_for_the_coverage() -> None:
    made = sparse(CPU_FAMILIES["fp32"])
    out = made.compute_rows(range(64), torch.float32)
    subnormal = int((out.abs() < 2.0**-126).sum())
    text = made.describe(0, out)
    assert f"{subnormal} subnormal, {int(out.isinf().sum())} infinite" in text
    assert "rounded once, 24 bits by 24" in text


def test_a_type_says_what_it_does_not_make() -> None:
    unmade = {n: f.list_unmade({f.sparse.name} if f.sparse else ()) for n, f in FAMILIES.items()}
    assert unmade["fp64"] == ["sums that round", "infinite operands", "NaN"]
    assert unmade["fp32"] == ["subnormal numbers", "sums that round", "infinite operands", "NaN"]
    assert "rounded outputs" in unmade["bf16"]
    assert "outputs in bfloat16" in unmade["bf16"]
    assert CPU_FAMILIES["bf16"].list_unmade({"sparse narrow"})[0] == "subnormal numbers"
    assert CPU_FAMILIES["fp32"].list_unmade({"plain"})[0] == "rounded outputs"
