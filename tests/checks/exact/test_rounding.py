"""What another order of a sum explains is told from what is wrong."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch

from hpcverify_checks.exact.bits import view_integers
from hpcverify_checks.exact.rounding import enclose_sum, find_share, is_of_order, list_apart
from hpcverify_checks.node.dtypes import multiply

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)


def make_pair(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    drawn = torch.randn(2, 64, 64, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return drawn[0].to(dtype), drawn[1].to(dtype)


@DTYPES
@pytest.mark.parametrize("bit", [0, 4])
def test_another_order_of_the_sums_explains_other_low_bits(dtype: torch.dtype, bit: int) -> None:
    a, b = make_pair(dtype)
    order = torch.randperm(64, generator=torch.Generator().manual_seed(2))
    product = a @ b
    assert is_of_order(a, b, a[:, order] @ b[order], product)
    view_integers(product)[3, 4] ^= 1 << bit
    assert is_of_order(a, b, a @ b, product)


@DTYPES
@pytest.mark.parametrize("wrong", [torch.nan, torch.inf, 1.0])
def test_no_order_explains_what_is_further_off(dtype: torch.dtype, wrong: float) -> None:
    a, b = make_pair(dtype)
    product = a @ b
    product[3, 4] += wrong
    assert not is_of_order(a, b, product, a @ b)


def test_integers_have_one_sum_in_any_order() -> None:
    a, b = (torch.randint(-99, 99, (32, 32), dtype=torch.int8) for _ in range(2))
    product = torch.empty(32, 32, dtype=torch.int32)
    multiply(a, b, product)
    changed = product.clone()
    product[3, 4] = 2**30  # where a float32 does not tell it from the next one
    changed[3, 4] = 2**30 + 1
    assert not is_of_order(a, b, changed, product)


@DTYPES
def test_every_product_is_within_the_bounds_of_its_sum(dtype: torch.dtype) -> None:
    a, b = make_pair(dtype)
    product = a @ b
    for row, column in ((0, 0), (3, 4), (63, 63)):
        share = find_share(a, product)
        low, high = enclose_sum(a[row].tolist(), b[:, column].tolist(), share)
        assert low < Fraction(float(product[row, column])) < high
        assert high - low < Fraction(float(a[row].abs() @ b[:, column].abs())) * Fraction(3 * share)


def test_places_come_in_the_order_of_how_far_products_are_apart() -> None:
    one, two, three = (torch.zeros(8, 8) for _ in range(3))
    two[1, 2], three[3, 4], two[5, 6] = 1.0, -2.0, torch.nan
    assert list_apart([one, two, three], 4) == [(5, 6), (3, 4), (1, 2)]
    assert list_apart([one], 4) == []
