"""Each injected fault does what its name says, and nothing else."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from hpcverify_checks.exact.bits import view_integers
from hpcverify_checks.exact.product_loop import compare
from hpcverify_checks.sdc import faults

SIZE = 128
TYPES = (
    *(torch.float64, torch.float32, torch.bfloat16, torch.float16),
    *(torch.float8_e4m3fn, torch.int32, torch.int8),
)


def numbered() -> Tensor:
    """Make a product in which no two elements are alike."""
    return torch.arange(1, SIZE * SIZE + 1, dtype=torch.float32).view(SIZE, SIZE)


def multiply(_a: Tensor, _b: Tensor, out: Tensor) -> None:
    out.copy_(numbered())


def changed(out: Tensor) -> Tensor:
    """Say in which elements *out* is not as it should be."""
    return view_integers(out) != view_integers(numbered())


def after(harm: faults.OutputFault) -> Tensor:
    out = numbered()
    harm(out)
    return out


@pytest.mark.parametrize("dtype", TYPES)
def test_a_mask_has_one_bit_of_the_width_of_the_type(dtype: torch.dtype) -> None:
    like = torch.zeros(1, dtype=dtype)
    width = 8 * like.element_size()
    masks = [faults.make_bit_mask(bit, like) for bit in range(width)]
    flipped = torch.zeros_like(view_integers(like))
    for mask in masks:
        flipped ^= mask

    assert len(set(masks)) == width
    assert (~flipped).tolist() == [0]


def test_a_flip_changes_one_bit_of_one_element() -> None:
    out = after(faults.flip(4, 1, 2))

    assert changed(out).nonzero().tolist() == [[1, 2]]
    assert int(view_integers(out)[1, 2] ^ view_integers(numbered())[1, 2]) == 1 << 4


@pytest.mark.parametrize("at", [0, 1])
def test_a_stuck_bit_holds_in_one_lane_of_every_fragment(at: int) -> None:
    lane = view_integers(after(faults.stick(12, at=at)))[3::64, 5::8]

    assert set(((lane >> 12) & 1).flatten().tolist()) == {at}
    assert int(changed(after(faults.stick(12, at=at))).sum()) <= lane.numel()


def test_paired_flips_leave_the_xor_of_the_row_as_it_is() -> None:
    out, xor = after(faults.flip_pair(0)), torch.zeros(SIZE, dtype=torch.int32)
    for column in range(SIZE):
        xor ^= (view_integers(out) ^ view_integers(numbered()))[:, column]

    assert int(changed(out).sum()) == 2
    assert not xor.any()


def test_warp_flips_come_every_eighth_element() -> None:
    places = changed(after(faults.flip_periodic(0))).nonzero()

    assert set(places.diff(dim=0)[:, 1].tolist()) == {8}


def test_swapped_tiles_hold_each_others_numbers() -> None:
    out = after(faults.swap_tiles)

    assert torch.equal(out[:32, :32], numbered()[:32, 32:64])
    assert torch.equal(out[:32, 32:64], numbered()[:32, :32])
    assert int(changed(out).sum()) == 2 * 32 * 32


def test_a_duplicated_tile_is_there_twice() -> None:
    out = after(faults.duplicate_tile)

    assert torch.equal(out[32:64, :32], out[:32, :32])
    assert int(changed(out).sum()) == 32 * 32


def test_an_unwritten_tile_keeps_what_was_there() -> None:
    out = torch.full((SIZE, SIZE), -7.0)
    faults.skip_tile(multiply)(out, out, out)

    assert changed(out).nonzero().tolist() == (out == -7).nonzero().tolist()
    assert int((out == -7).sum()) == 32 * 32


def test_a_negated_zero_is_the_same_number_and_not_the_same_bits() -> None:
    out = torch.zeros(2, 2)
    faults.negate_zeros(out)

    assert torch.equal(out, torch.zeros(2, 2))
    assert view_integers(out).all()


def test_a_fault_now_and_then_happens_in_its_calls_only() -> None:
    rare = faults.limit_to_calls(faults.make_multiply_fault(faults.put_nan), faults.ALL_CALLS[2::3])
    unit, out, seen = rare(multiply), numbered(), list[bool]()
    for _ in range(7):
        unit(out, out, out)
        seen.append(bool(out.isnan().any()))

    assert seen == [False, False, True, False, False, True, False]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("value", [0, 1, -1, 3])
def test_a_changed_element_is_another_number_and_is_put_right(
    dtype: torch.dtype, value: int
) -> None:
    tensor = torch.full((4, 6), value, dtype=torch.float32).to(dtype).T
    with faults.corrupt_memory(tensor):
        (row, column), *others = (tensor.float() != value).nonzero().tolist()

    assert ((row, column), others) == ((3, 2), [])
    assert torch.equal(tensor.float(), torch.full((6, 4), float(value)))


@pytest.mark.parametrize(
    ("blindness", "differences", "counted"),
    [
        (faults.ignore_all, 64, 0),
        (faults.ignore_lane, 64, 62),
        (faults.ignore_low_bit, 64, 0),
        (faults.drop_single_hits, 1, 0),
        (faults.drop_single_hits, 2, 2),
    ],
)
def test_a_blind_comparison_counts_too_little(
    blindness: faults.CompareFault, differences: int, counted: int
) -> None:
    expected, count = torch.zeros(64, dtype=torch.int64), torch.ones(()).long()
    found = expected.clone()
    found[:differences] ^= 1
    blindness(compare)(found, expected, count)

    assert int(count) == counted
