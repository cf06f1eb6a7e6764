"""A finding about a wrong product says where, which bits, whose fault, and how often."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from hpcverify.model import Finding
from hpcverify_checks.exact.bits import view_integers
from hpcverify_checks.exact.families import FAMILIES
from hpcverify_checks.exact.investigation import investigate_corruption
from hpcverify_checks.exact.product_loop import LANES, ProductBench
from hpcverify_checks.node.dtypes import multiply
from hpcverify_checks.sdc.faults import (
    MultiplyFault,
    corrupt_memory,
    flip,
    make_multiply_fault,
    skip_tile,
    stick,
)
from tests.checks.sdc.benches import a_bench, hunted, once, with_fault, with_multiply


@pytest.fixture
def bench(tmp_path: Path) -> ProductBench:
    return a_bench(tmp_path)


def accused(bench: ProductBench, fault: MultiplyFault | None = None) -> Finding:
    """Find out about the first wrong product of *bench*."""
    faulty = with_fault(bench, fault) if fault else bench
    return investigate_corruption(faulty, hunted(faulty).wrong[0])


def test_evidence_says_what_was_expected_and_found(bench: ProductBench) -> None:
    evidence = accused(bench, once(flip(4), 9)).evidence
    wanted, found = int(evidence["expected"], 16), int(evidence["found"], 16)
    assert wanted ^ found == 1 << 4 == int(evidence["xor"], 16)
    assert wanted == int(view_integers(bench.get_job(9)[0].reference)[17, 33]) % 2**32
    assert (evidence["plan"], evidence["shift"]) == ("bias+", "1")
    assert (evidence["row"], evidence["column"]) == ("17", "33")
    assert (evidence["bits"], evidence["wrong_elements"]) == ("4", "1")


@pytest.mark.parametrize("name", FAMILIES)
def test_the_highest_bit_of_every_type_is_named(tmp_path: Path, name: str) -> None:
    family = FAMILIES[name]
    width = 8 * getattr(torch, family.output).itemsize
    bench = a_bench(tmp_path, family=family)
    found = accused(bench, once(flip(width - 1), 3))
    assert found.evidence["bits"] == str(width - 1)
    assert len(found.evidence["expected"]) == 2 + width // 4


def test_a_single_flip_is_intermittent_and_compute(bench: ProductBench) -> None:
    evidence = accused(bench, once(flip(0), 7)).evidence
    assert evidence["place"] == "compute"
    assert evidence["reruns"] == "intermittent: 0 of 3 reruns wrong"


def test_a_stuck_bit_is_persistent_and_its_lanes_are_named(bench: ProductBench) -> None:
    found = accused(bench, make_multiply_fault(stick(12, at=1)))
    assert found.evidence["reruns"] == "persistent: 3 of 3 reruns wrong"
    assert "(3 of every 64)" in found.text
    assert "(5 of every 8)" in found.text


def test_a_tile_that_is_not_written_is_seen_as_a_tile(bench: ProductBench) -> None:
    found = accused(bench, skip_tile)
    assert found.evidence["reruns"] == "persistent: 3 of 3 reruns wrong"
    assert "rows 32 to 63, columns 32 to 63" in found.text


def test_a_flipped_operand_is_called_memory(bench: ProductBench) -> None:
    with corrupt_memory(bench.jobs[0].a):
        found = accused(bench)
    rows, depth = (length // 2 for length in bench.jobs[0].a.shape)
    assert found.evidence["place"] == f"memory (operand A changed at {rows}, {depth})"


def test_a_flipped_reference_is_called_memory(bench: ProductBench) -> None:
    with corrupt_memory(bench.jobs[2].reference):
        assert accused(bench).evidence["place"] == "memory (reference changed)"


def test_what_a_second_look_does_not_show_is_still_an_accusation(bench: ProductBench) -> None:
    # As where a word is read wrongly once, on its way to the comparison.
    reads = 0

    def misread(found: Tensor, expected: Tensor, count: Tensor) -> None:
        nonlocal reads
        reads += 1
        count.fill_(1 if reads == 9 + LANES else int((found != expected).sum()))

    faulty = replace(bench, seams=replace(bench.seams, compare=misread))
    found = accused(faulty)
    assert "read a second time, it is right" in found.text
    assert "row" not in found.evidence


def test_evidence_that_cannot_be_had_hides_no_fault(bench: ProductBench) -> None:
    made = 0

    def dying(a: Tensor, b: Tensor, out: Tensor) -> None:
        nonlocal made
        made += 1
        if made > 3:
            raise RuntimeError("CUDA error: unspecified launch failure")
        multiply(a, b, out)
        flip(3)(out)

    faulty = with_multiply(bench, dying)
    wrong = hunted(faulty).wrong[0]
    made = 3
    found = investigate_corruption(faulty, wrong)
    assert (found.code, found.evidence["bits"]) == ("corruption", "3")
    assert "no reruns: CUDA error: unspecified launch failure" in found.text


def test_an_output_that_cannot_be_read_again_is_still_an_accusation(bench: ProductBench) -> None:
    faulty = with_fault(bench, once(flip(3), 7))
    wrong = hunted(faulty).wrong[0]
    lost = wrong.output.to("meta")  # a tensor without memory: reading it raises
    found = investigate_corruption(faulty, replace(wrong, output=lost))
    assert found.code == "corruption"
    assert f"has {wrong.words} wrong word" in found.text
    assert "then NotImplementedError: " in found.evidence["incomplete"]


def test_the_same_wrong_bits_have_the_same_digest(bench: ProductBench) -> None:
    stuck = make_multiply_fault(stick(12, at=1))
    one, other = (accused(bench, stuck).evidence["digest"] for _ in range(2))
    assert one == other != accused(bench, make_multiply_fault(stick(13, at=1))).evidence["digest"]


def test_reruns_are_of_the_same_plan_and_shift(bench: ProductBench) -> None:
    def wrong_with_one_plan(a: Tensor, b: Tensor, out: Tensor) -> None:
        multiply(a, b, out)
        if a.data_ptr() == bench.jobs[3].a.data_ptr() + 4 * 16:
            flip(9)(out)

    evidence = accused(with_multiply(bench, wrong_with_one_plan)).evidence
    assert (evidence["plan"], evidence["shift"]) == ("scaled", "1")
    assert evidence["reruns"] == "persistent: 3 of 3 reruns wrong"


def test_a_row_that_is_written_late_does_not_break_the_evidence(bench: ProductBench) -> None:
    # As the last row of a product that arrives while it is looked at.
    wrong = hunted(with_fault(bench, once(flip(4), 8))).wrong[0]
    job, _ = bench.get_job(wrong.number)

    def arrive(*_: object) -> torch.Tensor:
        wrong.output.copy_(job.reference)
        return job.reference

    late = replace(job, reference=LateReference(job.reference, arrive))  # type: ignore[arg-type]
    jobs = tuple(late if one is job else one for one in bench.jobs)
    found = investigate_corruption(replace(bench, jobs=jobs), wrong)

    assert "incomplete" not in found.evidence
    assert found.evidence["bits"] == "4"


class LateReference:
    """A reference that is right, and read just when the rest of the product arrives."""

    def __init__(self, right: torch.Tensor, read: Callable[..., torch.Tensor]) -> None:
        """Be *right*, and read by the host like this."""
        self.right, self.cpu = right, read

    def __getattr__(self, name: str) -> Any:
        """Be as the right one in all else."""
        return getattr(self.right, name)
