"""Sums of gradients are exact in any order, unlike any other, and what is wrong is counted."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from hpcverify.model import Coverage, Finding, Remedy, Verdict
from hpcverify.testing import judge_by, make_context
from hpcverify_checks import training
from hpcverify_checks.exact.bits import view_integers
from hpcverify_checks.ranks.rendezvous import RankGroup
from hpcverify_checks.training.gradient_sums import GradientSum, draw_weights
from hpcverify_checks.training.shape import ModelShape
from tests.checks.collectives.every_rank import put_under_every_rank
from tests.checks.collectives.faulty.sitecustomize import ANY, BAD_RANK, FOLDER

TINY = ModelShape(hidden=8, layers=1, heads=2, sequence=4, batch=2, vocabulary=16)
COUNT, PART = 4000, slice(1000, 2000)
WIDE = {torch.bfloat16: torch.float32, torch.float32: torch.float64}
DTYPES = pytest.mark.parametrize("dtype", WIDE, ids=str)


def make_gradients(dtype: torch.dtype) -> Tensor:
    drawn = torch.randn(COUNT, generator=torch.Generator().manual_seed(1))
    return (drawn * 1e-3).to(dtype)


def make_sums(dtype: torch.dtype, world: int, number: int) -> list[GradientSum]:
    """Make a sum as each rank has it."""
    group, gradients = RankGroup("", world, "gloo", 1.0), make_gradients(dtype)
    return [
        GradientSum.draw(group, rank, 5, number, (gradients, torch.zeros(COUNT, dtype=WIDE[dtype])))
        for rank in range(world)
    ]


def list_shares(sums: list[GradientSum], *, floats: bool) -> list[Tensor]:
    made = (one.fill_floats() if floats else one.fill_integers(PART) for one in sums)
    return [share.clone() for share in made]  # they are in memory that the sum gets


def count_wrong(one: GradientSum, summed: Tensor, *, floats: bool) -> int:
    """Count what is wrong in what a rank got."""
    if not floats:
        return int(one.count_wrong_integers(summed, PART))
    one.total.copy_(summed)
    return int(one.count_wrong_floats([PART, slice(0, 1000), slice(2000, COUNT)]))


@DTYPES
@pytest.mark.parametrize("floats", [True, False])
@pytest.mark.parametrize("world", [2, 3, 4, 8, 9])
def test_a_sum_is_exact_in_any_order(dtype: torch.dtype, world: int, *, floats: bool) -> None:
    for number in range(4):
        sums = make_sums(dtype, world, number)
        shares = list_shares(sums, floats=floats)
        for order in (shares, shares[::-1]):
            summed = torch.zeros_like(shares[0])
            for share in order:
                summed += share
            for one in sums:
                assert count_wrong(one, summed, floats=floats) == 0


def add_up(sums: list[GradientSum], *, floats: bool) -> Tensor:
    return torch.stack(list_shares(sums, floats=floats)).sum(
        0, dtype=None if floats else torch.int32
    )


FAULTS: dict[str, Callable[[list[Tensor], Tensor, Tensor], Tensor]] = {
    "the sum of the step before": lambda _shares, _right, before: before,
    "the neighbour's share": lambda shares, _right, _before: shares[1].clone(),
    "a share is missing": lambda shares, right, _before: right - shares[1],
    "a share counts twice": lambda shares, right, _before: right + shares[1],
    "one share in place of another": lambda s, right, _before: right - s[1] + s[2],
    "a displaced chunk": lambda _shares, right, _before: right.roll(1),
    "the lowest bit is lost": lambda _shares, right, _before: (
        view_integers(right).bitwise_and(~1).view(right.dtype)
    ),
}


@DTYPES
@pytest.mark.parametrize("floats", [True, False])
@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_wrong_is_counted(dtype: torch.dtype, fault: str, *, floats: bool) -> None:
    for number in range(1, 5):
        before = add_up(make_sums(dtype, 3, number - 1), floats=floats)
        sums = make_sums(dtype, 3, number)
        shares = list_shares(sums, floats=floats)
        right = add_up(sums, floats=floats)
        wrong = count_wrong(sums[0], FAULTS[fault](shares, right, before), floats=floats)
        assert wrong > len(right) / 10


@DTYPES
@pytest.mark.parametrize("bit", [0, 13, 31])
@pytest.mark.parametrize("floats", [True, False])
def test_one_flipped_bit_is_one_wrong_sum(dtype: torch.dtype, bit: int, *, floats: bool) -> None:
    sums = make_sums(dtype, 3, 1)
    right = add_up(sums, floats=floats)
    view_integers(right)[17] ^= -(2**31) if bit == 31 else 1 << bit
    assert count_wrong(sums[2], right, floats=floats) == 1


@DTYPES
def test_sums_of_what_is_not_a_number_are_right_whatever_their_bits(dtype: torch.dtype) -> None:
    one, _ = made = make_sums(dtype, 2, 1)
    one.gradients[1500] = torch.nan
    made[1].gradients.copy_(one.gradients)
    right = add_up(made, floats=True)
    view_integers(right)[1500] ^= 1 << 3
    assert count_wrong(one, right, floats=True) == 0
    right[1500] = 0.0
    assert count_wrong(one, right, floats=True) == 1


@pytest.mark.parametrize("bits", [16, 29])
@pytest.mark.parametrize("world", [2, 3, 8, 72])
def test_weights_are_positive_and_their_sum_is_odd_and_full(bits: int, world: int) -> None:
    sums = set()
    for number in range(100):
        weights = draw_weights(3, number, world, bits)
        assert min(weights) > 0
        assert sum(weights) % 2 == 1
        assert sum(weights).bit_length() == bits
        sums.add(sum(weights))
    assert len(sums) > 95


WRONG = (
    *("stale", "stale_peer", "lacks_own", "has_own_twice"),
    *("low_bit", "low_byte", "displaced", "flip"),
)


@pytest.mark.system
@pytest.mark.parametrize(
    ("fault", "ranks"), [*((fault, {BAD_RANK}) for fault in WRONG), ("sends_nothing", {0, 1})]
)
def test_whatever_ranks_get_wrong_fails_and_names_them_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str, ranks: set[int]
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(FOLDER))
    monkeypatch.setenv("FAULTS", json.dumps({ANY: fault}))
    params = training.TrainingParams(seconds=0.1, steps=2, ranks=2, shape=TINY)
    ctx = make_context(tmp_path)

    found = [f for f in training.measure(ctx, params) if isinstance(f, Finding)]

    wrong = [f for f in found if f.code == "sum_of_wrong"]
    assert {f.evidence["rank"] for f in wrong} == set(map(str, ranks))
    together = [f for f in training.reconcile(found, ctx.inventory) if isinstance(f, Finding)]
    judgement = judge_by(together, [], training.CHECK.finding_rules)
    assert (judgement.verdict, judgement.remedy) == (Verdict.FAIL, Remedy.INSPECT)
    assert any(f"rank {rank} of 2 got" in judgement.reason for rank in ranks)


@pytest.mark.system
def test_bits_that_all_ranks_lose_are_found_on_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_under_every_rank(monkeypatch, "low_byte")
    params = training.TrainingParams(seconds=0.1, steps=2, ranks=2, shape=TINY)

    ctx = make_context(tmp_path)

    found = [f for f in training.measure(ctx, params) if isinstance(f, Finding)]

    together = [f for f in training.reconcile(found, ctx.inventory) if isinstance(f, Finding)]
    wrong = [f for f in together if f.code == "wrong_sum"]
    assert {f.evidence["rank"] for f in wrong} == {"0", "1"}
    assert judge_by(wrong, [], training.CHECK.finding_rules).verdict is Verdict.FAIL


@pytest.mark.system
def test_healthy_ranks_pass(tmp_path: Path) -> None:
    params = training.TrainingParams(seconds=0.05, steps=2, ranks=3, shape=TINY)
    found = list(training.measure(make_context(tmp_path), params))
    findings = [f for f in found if isinstance(f, Finding)]
    assert judge_by(findings, [], training.CHECK.finding_rules).verdict is Verdict.PASS
    told = [f.text for f in found if isinstance(f, Coverage)]
    assert any("3 ranks by gloo, every sum verified" in text for text in told)
