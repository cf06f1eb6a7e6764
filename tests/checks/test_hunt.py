"""The hunt sees every wrong product, keeps it, and knows when it is blind."""

from __future__ import annotations

from dataclasses import replace
from math import gcd
from pathlib import Path

import pytest
import torch

from hpcverify.check import Unable
from hpcverify.model import Cause
from hpcverify_checks import _hunt as hunting
from hpcverify_checks._bits import integers_of, words
from hpcverify_checks._exact import PAD
from hpcverify_checks._families import FAMILIES
from hpcverify_checks._hunt import CANARY_EVERY, Bench, Job, Seams, outputs_for
from hpcverify_checks._injections import (
    Blindness,
    blind,
    blind_in_a_lane,
    blind_to_a_bit,
    blind_to_one,
    flip,
    harmed,
    stick,
    unwritten,
)
from tests.checks.benches import a_bench, hunted, once, with_fault

CPU, META = torch.device("cpu"), torch.device("meta")


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return a_bench(tmp_path)


def test_a_healthy_part_is_never_accused(bench: Bench) -> None:
    bag = hunted(bench, 600)
    assert bag.products >= 600
    assert not bag.wrong


@pytest.mark.parametrize("call", [0, 1, 7, 40])
def test_a_flip_is_found_in_the_product_in_which_it_happens(
    bench: Bench, call: int
) -> None:
    (wrong,) = hunted(with_fault(bench, once(flip(9), call)), 48).wrong
    assert (wrong.number, wrong.words) == (call, 1)


def test_the_wrong_product_is_still_there(bench: Bench) -> None:
    (wrong,) = hunted(with_fault(bench, once(flip(9), 7))).wrong
    xor = integers_of(wrong.output) ^ integers_of(bench.turn(7)[0].reference)
    assert xor.nonzero().tolist() == [[17, 33]]
    assert int(xor[17, 33]) == 1 << 9


def on_pages(bench: Bench) -> Bench:
    """Give *bench* the outputs that it has on a GPU."""
    count = outputs_for(len(bench.jobs), META)
    outputs = tuple(torch.empty_like(bench.outputs[0]) for _ in range(count))
    return replace(bench, outputs=outputs)


@pytest.mark.parametrize("call", range(0, 40, 3))
def test_it_is_still_there_too_when_the_host_looks_a_page_late(
    bench: Bench, call: int
) -> None:
    (wrong,) = hunted(with_fault(on_pages(bench), once(flip(9), call)), 60).wrong
    job, _ = bench.turn(call)
    assert wrong.number == call
    assert int((words(wrong.output) != words(job.reference)).sum()) == 1


def test_a_healthy_part_with_many_outputs_is_not_accused(bench: Bench) -> None:
    assert not hunted(on_pages(bench), 300).wrong


@pytest.mark.parametrize("jobs", range(2, 9))
@pytest.mark.parametrize("device", [CPU, META])
def test_no_output_ever_holds_the_product_that_is_about_to_be_written(
    jobs: int, device: torch.device
) -> None:
    count = outputs_for(jobs, device)
    assert gcd(count, jobs) == 1
    assert all(number % jobs != (number + count) % jobs for number in range(99))


@pytest.mark.parametrize("pages", [False, True])
def test_a_tile_that_is_not_written_is_found(bench: Bench, *, pages: bool) -> None:
    this = on_pages(bench) if pages else bench
    assert hunted(with_fault(this, unwritten), 40).wrong


def test_the_parts_own_first_answer_as_reference_would_miss_a_stuck_bit(
    bench: Bench,
) -> None:
    stuck = with_fault(bench, harmed(stick(12, at=1)))
    own = []
    for number, job in enumerate(bench.jobs):
        stuck.step(number, torch.zeros((), dtype=torch.int64))
        own.append(replace(job, reference=stuck.output(number).clone()))
    assert not hunted(replace(stuck, jobs=tuple(own))).wrong
    assert hunted(stuck).wrong


def test_a_low_bit_stuck_at_zero_needs_the_biased_plans(bench: Bench) -> None:
    stuck = with_fault(bench, harmed(stick(0, at=0)))
    plain, scaled = bench.jobs[0], bench.jobs[3]
    assert not hunted(replace(stuck, jobs=(plain, scaled))).wrong
    assert hunted(stuck).wrong


@pytest.mark.parametrize(
    "blindness", [blind, blind_in_a_lane, blind_to_a_bit, blind_to_one]
)
def test_a_comparison_that_is_not_awake_is_reported(
    bench: Bench, blindness: Blindness
) -> None:
    seams = Seams(compare=blindness(hunting.compare))
    with pytest.raises(Unable, match="did not notice flipped bits") as caught:
        hunted(replace(bench, seams=seams), 4 * CANARY_EVERY)
    assert caught.value.cause is Cause.CHECKER


def test_a_comparison_that_sees_what_is_not_there_accuses_and_is_seen_through(
    bench: Bench,
) -> None:
    def dreaming(_found: object, _expected: object, count: torch.Tensor) -> None:
        count.fill_(3)

    assert hunted(replace(bench, seams=Seams(compare=dreaming))).wrong


def test_canaries_come_first_last_and_in_between(bench: Bench) -> None:
    compared = 0

    def counting(*args: torch.Tensor) -> None:
        nonlocal compared
        compared += 1
        hunting.compare(*args)

    bag = hunted(replace(bench, seams=Seams(compare=counting)), 2 * CANARY_EVERY)
    assert compared - bag.products == 2 * 3


def zeroed(_a: torch.Tensor, _b: torch.Tensor, out: torch.Tensor) -> None:
    out.zero_()


@pytest.mark.parametrize("name", FAMILIES)
def test_nothing_in_the_loop_waits_for_the_device(name: str) -> None:
    # On the meta device any look at a value raises; shapes and types are the GPU's.
    family = FAMILIES[name]
    dtype, output = getattr(torch, family.operand), getattr(torch, family.output)
    a = torch.empty(4096, family.depth + PAD, dtype=dtype, device="meta")
    out = torch.empty(4096, 4096, dtype=output, device="meta")
    jobs = tuple(Job(n, a, a.T, out, 0, lambda: (a, a)) for n in ("one", "other"))
    outputs = tuple(torch.empty_like(out) for _ in range(outputs_for(2, META)))
    # Of this one operation torch has no form for the meta device.
    seams = Seams(multiply=zeroed) if name == "fp8" else Seams()
    page = Bench("GPU-1", name, jobs, outputs, 1, seams).turned(0, canary=True)
    with pytest.raises(NotImplementedError, match="meta"):
        page.counts()
