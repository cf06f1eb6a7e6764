"""Bits are the same on every machine, and no change of them goes unseen."""

from __future__ import annotations

import pytest
import torch

from hpcverify_checks.exact import bits


def splitmix64(x: int) -> int:
    """Mix as the paper does, in integers of any length."""
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
    return x ^ (x >> 31)


def test_hashes_are_those_of_splitmix64() -> None:
    values = [0, 1, 2**63, 2**64 - 1, 0x0123456789ABCDEF]
    tensor = torch.tensor([bits.wrap_int64(v) for v in values])
    assert [h % 2**64 for h in bits.mix_bits(tensor).tolist()] == list(map(splitmix64, values))


def test_a_hash_depends_on_the_place_and_not_on_what_is_asked_for_with_it() -> None:
    whole = bits.hash_places(7, range(8), 5, "cpu")
    assert torch.equal(whole[3:6], bits.hash_places(7, range(3, 6), 5, "cpu"))
    assert len(set(whole.flatten().tolist())) == whole.numel()


def test_keys_give_other_hashes() -> None:
    one, other = (bits.hash_places(key, range(1), 64, "cpu") for key in (1, 2))
    assert not set(one.flatten().tolist()) & set(other.flatten().tolist())


def test_integers_stay_within_their_bound_and_reach_it() -> None:
    made = bits.make_integers(3, range(64), 64, 5, "cpu")
    assert set(made.flatten().tolist()) == set(range(-5, 6))


def test_a_digest_sees_one_bit_and_a_swap() -> None:
    tensor = torch.arange(64, dtype=torch.float32)
    before = bits.compute_digest(tensor)
    flipped = tensor.clone()
    bits.view_integers(flipped)[9].bitwise_xor_(1)
    swapped = tensor.clone()
    swapped[[4, 6]] = swapped[[6, 4]]
    for changed in (flipped, swapped, tensor.flip(0)):
        assert bits.compute_digest(changed) != before
    assert bits.compute_digest(tensor.clone()) == before


def test_a_digest_sees_the_same_bit_flipped_in_two_words() -> None:
    tensor = torch.zeros(1024, dtype=torch.int64)
    before = bits.compute_digest(tensor)
    for other in range(1, 1024, 31):
        changed = tensor.clone()
        changed[[0, other]] ^= 1 << 17
        assert bits.compute_digest(changed) != before


def test_the_bits_of_every_type_can_be_seen_as_integers() -> None:
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float8_e4m3fn):
        one = torch.ones(2).to(dtype)
        assert bits.view_integers(one).element_size() == one.element_size()
        assert not bits.view_integers(one).is_floating_point()


@pytest.mark.parametrize("bit", range(32))
def test_a_digest_sees_any_bit_flipped_in_an_even_number_of_elements(bit: int) -> None:
    tensor = torch.arange(1, 4097, dtype=torch.float32)
    before = bits.compute_digest(tensor)
    mask = 1 << bit if bit < 31 else -(1 << 31)
    for step in (2, 8, 64, 1024, 2048):
        for first in range(step // 2):
            changed = tensor.clone()
            bits.view_integers(changed)[first::step] ^= mask
            assert bits.compute_digest(changed) != before
            if first == 16:
                break


def test_a_digest_sees_signs_that_are_all_turned() -> None:
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        tensor = torch.arange(1, 1025).to(dtype)
        assert bits.compute_digest(-tensor) != bits.compute_digest(tensor)
