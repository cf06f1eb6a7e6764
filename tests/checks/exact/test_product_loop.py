"""The hunt sees every wrong product, keeps it, and knows when it is blind."""

from __future__ import annotations

import os
from dataclasses import replace
from math import gcd
from pathlib import Path

import pytest
import torch

from hpcverify.check import Unable
from hpcverify.model import Cause, Remedy
from hpcverify_checks.exact import product_loop
from hpcverify_checks.exact.bits import view_integers, view_words
from hpcverify_checks.exact.families import FAMILIES
from hpcverify_checks.exact.product_loop import (
    CANARY_COPIES,
    CANARY_PRODUCTS,
    LANES,
    ProductBench,
    ProductJob,
    ProductSeams,
    count_outputs,
)
from hpcverify_checks.exact.products import PAD_DEPTH
from hpcverify_checks.sdc.faults import (
    CompareFault,
    drop_single_hits,
    flip,
    ignore_all,
    ignore_lane,
    ignore_low_bit,
    make_multiply_fault,
    skip_tile,
    stick,
)
from tests.checks.sdc.benches import a_bench, hunted, once, with_fault

CPU, META = torch.device("cpu"), torch.device("meta")


@pytest.fixture
def bench(tmp_path: Path) -> ProductBench:
    return a_bench(tmp_path)


def test_a_healthy_part_is_never_accused(bench: ProductBench) -> None:
    bag = hunted(bench, 600)
    assert bag.products >= 600
    assert not bag.wrong


@pytest.mark.parametrize("call", [0, 1, 7, 40])
def test_a_flip_is_found_in_the_product_in_which_it_happens(bench: ProductBench, call: int) -> None:
    (wrong,) = hunted(with_fault(bench, once(flip(9), call)), 48).wrong
    assert (wrong.number, wrong.words) == (call, 1)


def test_the_wrong_product_is_still_there(bench: ProductBench) -> None:
    (wrong,) = hunted(with_fault(bench, once(flip(9), 7))).wrong
    xor = view_integers(wrong.output) ^ view_integers(bench.get_job(7)[0].reference)
    assert xor.nonzero().tolist() == [[17, 33]]
    assert int(xor[17, 33]) == 1 << 9


def on_pages(bench: ProductBench) -> ProductBench:
    """Give *bench* the outputs that it has on a GPU."""
    count = count_outputs(len(bench.jobs), META)
    outputs = tuple(torch.empty_like(bench.outputs[0]) for _ in range(count))
    return replace(bench, outputs=outputs)


@pytest.mark.parametrize("call", range(0, 40, 3))
def test_it_is_still_there_too_when_the_host_looks_a_page_late(
    bench: ProductBench, call: int
) -> None:
    (wrong,) = hunted(with_fault(on_pages(bench), once(flip(9), call)), 60).wrong
    job, _ = bench.get_job(call)
    assert wrong.number == call
    assert int((view_words(wrong.output) != view_words(job.reference)).sum()) == 1


def test_a_healthy_part_with_many_outputs_is_not_accused(bench: ProductBench) -> None:
    assert not hunted(on_pages(bench), 300).wrong


@pytest.mark.parametrize("jobs", range(2, 9))
@pytest.mark.parametrize("device", [CPU, META])
def test_no_output_ever_holds_the_product_that_is_about_to_be_written(
    jobs: int, device: torch.device
) -> None:
    count = count_outputs(jobs, device)
    assert gcd(count, jobs) == 1
    assert all(number % jobs != (number + count) % jobs for number in range(99))


@pytest.mark.parametrize("pages", [False, True])
def test_a_tile_that_is_not_written_is_found(bench: ProductBench, *, pages: bool) -> None:
    this = on_pages(bench) if pages else bench
    assert hunted(with_fault(this, skip_tile), 40).wrong


def test_the_parts_own_first_answer_as_reference_would_miss_a_stuck_bit(
    bench: ProductBench,
) -> None:
    stuck = with_fault(bench, make_multiply_fault(stick(12, at=1)))
    own = []
    for number, job in enumerate(bench.jobs):
        stuck.compute_and_compare(number, torch.zeros((), dtype=torch.int64))
        own.append(replace(job, reference=stuck.get_output(number).clone()))
    assert not hunted(replace(stuck, jobs=tuple(own))).wrong
    assert hunted(stuck).wrong


def test_a_low_bit_stuck_at_zero_needs_the_biased_plans(bench: ProductBench) -> None:
    stuck = with_fault(bench, make_multiply_fault(stick(0, at=0)))
    plain, scaled = bench.jobs[0], bench.jobs[3]
    assert not hunted(replace(stuck, jobs=(plain, scaled))).wrong
    assert hunted(stuck).wrong


@pytest.mark.parametrize("blindness", [ignore_all, ignore_lane, ignore_low_bit, drop_single_hits])
def test_a_comparison_that_is_not_awake_is_reported(
    bench: ProductBench, blindness: CompareFault
) -> None:
    seams = ProductSeams(compare=blindness(product_loop.compare))
    with pytest.raises(Unable, match="did not notice flipped bits") as caught:
        hunted(replace(bench, seams=seams), 4 * CANARY_PRODUCTS)
    assert caught.value.cause is Cause.CHECKER


@pytest.mark.parametrize("lane", [0, 5, 63])
def test_a_lane_in_which_nothing_differs_for_the_comparison_is_found_by_the_first_canary(
    bench: ProductBench, lane: int
) -> None:
    # As `memcmp` with a vector unit that is blind there: one word elsewhere, and it counts.
    def blind(found: torch.Tensor, expected: torch.Tensor, count: torch.Tensor) -> None:
        product_loop.compare(found, expected, count)
        unequal = found != expected
        unequal[lane::LANES] = False
        if not bool(unequal.any()):
            count.zero_()

    with pytest.raises(Unable, match="did not notice flipped bits"):
        hunted(replace(bench, seams=ProductSeams(compare=blind)), 1)


def test_a_comparison_that_sees_what_is_not_there_accuses_and_is_seen_through(
    bench: ProductBench,
) -> None:
    def dreaming(_found: object, _expected: object, count: torch.Tensor) -> None:
        count.fill_(3)

    assert hunted(replace(bench, seams=ProductSeams(compare=dreaming))).wrong


def test_canaries_come_first_last_and_in_between(bench: ProductBench) -> None:
    compared = 0

    def counting(*args: torch.Tensor) -> None:
        nonlocal compared
        compared += 1
        product_loop.compare(*args)

    bag = hunted(replace(bench, seams=ProductSeams(compare=counting)), 2 * CANARY_PRODUCTS)
    assert compared - bag.products == (CANARY_COPIES - 1 + LANES) * 3


def zeroed(_a: torch.Tensor, _b: torch.Tensor, out: torch.Tensor) -> None:
    out.zero_()


@pytest.mark.system
@pytest.mark.parametrize("name", FAMILIES)
def test_nothing_in_the_loop_waits_for_the_device(name: str) -> None:
    # On the meta device any look at a value raises; shapes and types are the GPU's.
    family = FAMILIES[name]
    dtype, output = getattr(torch, family.operand), getattr(torch, family.output)
    a = torch.empty(4096, family.depth + PAD_DEPTH, dtype=dtype, device="meta")
    out = torch.empty(4096, 4096, dtype=output, device="meta")
    jobs = tuple(ProductJob(n, a, a.T, out, 0, lambda: (a, a)) for n in ("one", "other"))
    outputs = tuple(torch.empty_like(out) for _ in range(count_outputs(2, META)))
    # Of this one operation torch has no form for the meta device.
    seams = ProductSeams(multiply=zeroed) if name == "fp8" else ProductSeams()
    page = ProductBench("GPU-1", name, jobs, outputs, 1, seams).start_batch(0, canary=True)
    with pytest.raises(NotImplementedError, match="meta"):
        page.wait_for_counts()


@pytest.mark.parametrize(
    ("part_id", "remedy"), [("cpu0", Remedy.FIX_CHECKER), ("GPU-0", Remedy.INSPECT)]
)
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="no other core to ask")
def test_a_blind_comparison_is_only_called_a_fault_of_the_check_if_another_part_is_blind(
    tmp_path: Path, part_id: str, remedy: Remedy
) -> None:
    seams = ProductSeams(compare=ignore_all(product_loop.compare))
    with pytest.raises(Unable) as caught:
        hunted(replace(a_bench(tmp_path), part_id=part_id, seams=seams))
    assert caught.value.remedy is remedy
