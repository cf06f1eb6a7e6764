"""A checked product is held against the same product alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch import Tensor

from hpcverify_checks.exact.product_loop import LANES, WINDOW_WORDS, ProductSeams, compare
from hpcverify_checks.node.dtypes import multiply
from hpcverify_checks.qualification.comparison_cost import MIN_PRODUCTS, compare_in_pairs
from tests.checks.sdc.benches import a_bench


@pytest.mark.parametrize("cost", [0.0, 0.1, 1.0])
def test_the_ratio_is_that_of_the_time_of_the_comparison(tmp_path: Path, cost: float) -> None:
    now, words = 0.0, 1

    def multiply_in_a_second(a: Tensor, b: Tensor, out: Tensor) -> None:
        nonlocal now
        now += 1.0
        multiply(a, b, out)

    def compare_at_a_cost(found: Tensor, expected: Tensor, count: Tensor) -> None:
        nonlocal now, words
        words = max(words, len(found))  # those of a product come first, then parts of it
        now += cost * len(found) / words
        compare(found, expected, count)

    bench = a_bench(tmp_path, seams=ProductSeams(multiply_in_a_second, compare_at_a_cost))
    ratio, count = compare_in_pairs(bench, 0.0, lambda: now)

    assert count == MIN_PRODUCTS
    # The canaries at the beginning and at the end compare it three times each, and its lanes.
    spoiled = 2 * (3 + LANES * WINDOW_WORDS / words)
    assert 1 + cost <= ratio <= 1 + cost * (1 + spoiled / count)
