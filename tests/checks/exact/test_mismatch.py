"""Tests of what all checks report of wrong data."""

from __future__ import annotations

import pytest
import torch

from hpcverify_checks.exact.mismatch import Mismatch, compare_bytes, find_mismatch


def test_all_wrong_words_are_counted_and_the_first_is_shown() -> None:
    right = torch.arange(100)
    wrong = right.clone()
    wrong[[40, 70]] = -1
    mismatch = find_mismatch(wrong, right)
    assert mismatch is not None
    assert mismatch == Mismatch(count=2, index=40, found=-1, expected=40)
    assert mismatch.describe() == (
        "the first at byte 0x140 is 0xffffffffffffffff, not 0x0000000000000028"
    )
    evidence = mismatch.to_evidence()
    assert (evidence["wrong_words"], evidence["index"], evidence["offset"]) == ("2", "40", "0x140")
    assert int(evidence["found"], 16) ^ int(evidence["expected"], 16) == int(evidence["xor"], 16)
    assert len(evidence["bits"].split()) == 62
    assert find_mismatch(right.clone(), right) is None


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.int8])
def test_elements_of_every_type_are_compared_by_their_bits(dtype: torch.dtype) -> None:
    right = torch.zeros(8, 6, dtype=dtype)
    wrong = right.clone()
    width = 8 * dtype.itemsize
    wrong.view(torch.uint8)[2, 4 * dtype.itemsize - 1] ^= 0x80  # the sign of one zero
    mismatch = find_mismatch(wrong, right)
    assert mismatch is not None
    assert (mismatch.count, mismatch.index) == (1, 15)
    evidence = mismatch.to_evidence("element")
    assert (evidence["wrong_elements"], evidence["bits"]) == ("1", str(width - 1))
    assert len(evidence["found"]) == 2 + width // 4


def test_matrices_that_are_stored_by_columns_are_compared_by_rows() -> None:
    right = torch.arange(12).reshape(3, 4)
    wrong = right.T.clone().T
    wrong[1, 2] = 7
    mismatch = find_mismatch(wrong, right)
    assert mismatch is not None
    assert divmod(mismatch.index, 4) == (1, 2)


def test_words_are_shown_in_hexadecimal_and_floats_as_numbers() -> None:
    assert Mismatch(1, 0, -1, 0, width=32).values == ("0xffffffff", "0x00000000")
    mismatch = Mismatch(1, 3, 0x40400000, -0x80000000, width=32, is_float=True)
    assert mismatch.values == ("3", "-0")
    assert mismatch.describe() == "the first at byte 0xc is 3, not -0"
    assert mismatch.to_evidence()["xor"] == "0xc0400000"


def test_bytes_are_compared_without_torch() -> None:
    mismatch = compare_bytes(b"abxdy", b"abcde")
    assert mismatch == Mismatch(2, 2, ord("x"), ord("c"), width=8)
    assert mismatch.describe() == "the first at byte 0x2 is 0x78, not 0x63"
