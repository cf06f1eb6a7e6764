"""The data of a collective fill every bit, differ wherever they may, and add up exactly."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from hpcverify_checks.ranks.step_data import CHUNK_WORDS, PERIODS, SUM_BITS, StepData, Words

CPU = torch.device("cpu")
COUNT = 2000
ROWS = Words.make(7, COUNT, CPU)


def share(step: int, rank: int, world: int, *, floats: bool) -> Tensor:
    data = StepData(7, step, world, floats)
    return ROWS.build(data, data.weigh_share(rank), 0, COUNT)


def total(step: int, world: int, *, floats: bool) -> Tensor:
    data = StepData(7, step, world, floats)
    return ROWS.build(data, data.weigh_sum(), 0, COUNT)


@pytest.mark.parametrize("world", [2, 3, 8, 17])
@pytest.mark.parametrize("step", range(4))
def test_words_of_all_ranks_add_up_modulo_two_to_the_32(world: int, step: int) -> None:
    shares = torch.stack([share(step, rank, world, floats=False) for rank in range(world)])

    assert torch.equal(shares.sum(0, dtype=torch.int32), total(step, world, floats=False))


@pytest.mark.parametrize("world", [2, 3, 8, 1856])
def test_floats_add_up_exactly_in_any_order(world: int) -> None:
    ranks = range(world)
    shares = torch.stack([share(1, rank, world, floats=True) for rank in ranks])
    right = total(1, world, floats=True).view(torch.float32)
    values = shares.view(torch.float32)
    for order in (values, values.flip(0)):
        summed = torch.zeros(COUNT)
        for row in order:
            summed += row  # in float32, one after the other
        assert torch.equal(summed, right)
    assert (values.double().abs().sum(0) <= 2**24).all()  # so any partial sum is exact
    assert values.abs().min() > 0  # so that a share that is left out shows


@pytest.mark.parametrize("world", [2, 3, 8])
@pytest.mark.parametrize("step", range(4))
def test_every_bit_of_words_changes_from_word_to_word(world: int, step: int) -> None:
    for words in (
        *(share(step, r, world, floats=False) for r in range(world)),
        total(step, world, floats=False),
    ):
        for bit in range(32):
            ones = int((words >> bit & 1).sum())
            assert 0.4 * COUNT < ones < 0.6 * COUNT


@pytest.mark.parametrize("world", [2, 3, 8, 1856])
def test_sums_of_floats_use_the_lowest_bit_of_the_significand_and_the_sign(world: int) -> None:
    for step in (1, 3):
        sums = total(step, world, floats=True)
        values = sums.view(torch.float32)
        assert (values.abs() >= 2**SUM_BITS).all()
        for ones in (int((sums & 1).sum()), int((values < 0).sum())):
            assert 0.4 * COUNT < ones < 0.6 * COUNT


def test_a_chunk_that_came_to_any_other_place_has_other_words() -> None:
    data = StepData(7, 0, 2, floats=False)
    weights = data.weigh_share(1)
    rows = Words.make(7, sum(PERIODS) + COUNT, CPU)
    first = rows.build(data, weights, 0, COUNT)
    for start in (*PERIODS, 2 * PERIODS[0], sum(PERIODS), CHUNK_WORDS, 97):
        other = rows.build(data, weights, start, start + COUNT)
        assert (other == first).float().mean() < 0.01


@pytest.mark.parametrize("floats", [False, True])
@pytest.mark.parametrize("count", [1, 3 * CHUNK_WORDS])
def test_the_host_computes_every_word_by_itself(count: int, *, floats: bool) -> None:
    data = StepData(5, 9, 3, floats)
    rows = Words.make(5, count, CPU)
    message = torch.empty(count, dtype=torch.int32)
    for weights in (data.weigh_sum(), data.weigh_share(2)):
        rows.fill(message, data, weights)
        for place in {0, count // 3, *(p for p in PERIODS if p < count), count - 1}:
            assert int(message[place]) == data.compute_word(weights, place)


@pytest.mark.parametrize("step", [8, 9])
def test_a_wrong_word_is_told_from_what_it_would_be_right_for(step: int) -> None:
    data, place = StepData.make_for_sum(7, step, 3), 12
    whole, share = data.weigh_sum(), data.weigh_share(1)
    before = StepData.make_for_sum(7, step - 2, 3)
    words = {
        "it is the share of rank 1": data.compute_word(share, place),
        "the share of rank 1 is missing": data.compute_word(whole - share, place),
        "the share of rank 1 was counted twice": data.compute_word(whole + share, place),
        f"it is the sum of step {step - 2}": before.compute_word(before.weigh_sum(), place),
        "": data.compute_word(whole, place) ^ 1 << 7,
    }
    assert {text: data.explain_word(word, place) for text, word in words.items()} == {
        text: text for text in words
    }


@pytest.mark.parametrize("floats", [False, True])
def test_no_step_no_rank_and_no_place_has_the_data_of_another(*, floats: bool) -> None:
    steps = range(1, 12, 2)
    rows = [share(step, rank, 8, floats=floats) for step in steps for rank in range(8)]
    sums = [total(step, 8, floats=floats) for step in steps]
    for one, other in [*pairwise(rows), *pairwise(sums)]:
        assert (one == other).float().mean() < 0.01
    for row in (*rows, *sums):
        assert (row[1:] == row[:-1]).float().mean() < 0.01


@pytest.mark.parametrize("floats", [False, True])
@pytest.mark.parametrize("place", [0, 1000, COUNT - 1])
def test_one_wrong_word_is_found_where_it_is(place: int, *, floats: bool) -> None:
    data = StepData(7, 1, 3, floats)
    weights = data.weigh_sum()
    found, log = total(1, 3, floats=floats), torch.zeros(4, dtype=torch.int64)
    right = int(found[place])
    ROWS.compare(found, data, (weights, 0, 50), log)
    assert log.tolist() == [0, 0, 0, 0]

    found[place] ^= 1
    ROWS.compare(found, data, (weights, 0, 50), log)
    ROWS.compare(torch.zeros_like(found), data, (weights, 0, 9000), log)  # a later piece
    assert log[1:].tolist() == [50 + place, right ^ 1, right]


def test_a_value_that_is_not_a_number_is_wrong() -> None:
    data, log = StepData(7, 1, 3, floats=True), torch.zeros(4, dtype=torch.int64)
    found = total(1, 3, floats=True)
    found.view(torch.float32)[3] = float("nan")
    ROWS.compare(found, data, (data.weigh_sum(), 0, 0), log)
    assert log[:2].tolist() == [1, 3]
