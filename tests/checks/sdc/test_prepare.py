"""References are proven outside of the part, and a host that errs is not trusted."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from hpcverify.check import Unable
from hpcverify.model import Cause, Device, Remedy
from hpcverify.testing import make_context
from hpcverify_checks.exact.bits import compute_digest, view_integers, view_words
from hpcverify_checks.exact.families import (
    CPU_FAMILIES,
    FAMILIES,
    SINGLE_LIMIT,
    Family,
    make_bf16_plans,
    make_narrow_plans,
)
from hpcverify_checks.exact.product_loop import ProductSeams
from hpcverify_checks.exact.products import (
    Operands,
    PlannedOperands,
    ProductPlan,
    Shape,
    prove_by_freivalds,
)
from hpcverify_checks.node.dtypes import multiply
from hpcverify_checks.sdc import prepare as benches
from hpcverify_checks.sdc.digests import SHIPPED_DIGESTS, find_shipped
from hpcverify_checks.sdc.faults import flip, make_multiply_fault, stick
from hpcverify_checks.sdc.prepare import (
    References,
    describe_dissent,
    prepare,
    prove_product,
    report_first_product,
)
from tests.checks.sdc.benches import SHAPE, a_task, once
from tests.checks.sdc.universal import line, right_product, shipped

CORES = sorted(os.sched_getaffinity(0))


def test_a_product_disproved_at_the_start_is_corruption(tmp_path: Path) -> None:
    seams = ProductSeams(multiply=once(flip(2), 2)(multiply))
    prepared = prepare(a_task(tmp_path, seams=seams))
    (outcome,) = prepared.failures
    assert outcome.mismatched_words == 1
    assert outcome.corruption is not None
    assert outcome.corruption.evidence["plan"] == "bias-"


class Glitch(TorchFunctionMode):
    """Make one call of a function of torch return a wrong result, on this thread."""

    def __init__(self, function: object, harm: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Do *harm* to what the first call of *function* returns."""
        super().__init__()
        self.function, self.harm = function, harm
        self.calls = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call what is called, and harm the first result of it."""
        result = func(*args, **(kwargs or {}))
        if func is not self.function:
            return result
        self.calls += 1
        return self.harm(result) if self.calls == 1 else result


def off_by_one(sums: torch.Tensor) -> torch.Tensor:
    return sums + torch.arange(sums.numel()).eq(min(3, sums.numel() - 1)).long().view(sums.shape)


def flipped(product: torch.Tensor) -> torch.Tensor:
    spoiled = product.clone()
    view_integers(spoiled)[3, 4] ^= 1
    return spoiled


@pytest.mark.parametrize("draw", [0, 5])
def test_a_wrong_sum_in_a_proof_is_the_hosts_and_fails_no_part(tmp_path: Path, draw: int) -> None:
    # Of a shape without a shipped digest, or of fresh operands.
    task = a_task(tmp_path, draw=draw)
    with (
        Glitch(torch.Tensor.sum, off_by_one) as glitch,
        pytest.raises(Unable, match="did not agree, and now they do") as caught,
    ):
        prepare(task)
    assert glitch.calls
    assert (caught.value.cause, caught.value.remedy) == (Cause.CHECKER, Remedy.INSPECT)


@pytest.mark.skipif(len(CORES) == 1, reason="one core agrees with itself")
def test_a_core_whose_proofs_differ_is_the_hosts_fault_and_not_the_checks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As a multiplier of 64 bits that errs: on one core, on which the main thread was, too.
    right = torch.Tensor.sum

    def err(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        made = right(self, *args, **kwargs)
        on_main = threading.current_thread() is threading.main_thread()
        bad = on_main or os.sched_getaffinity(0) == {CORES[-1]}
        return off_by_one(made) if bad and made.dtype == torch.int64 else made

    monkeypatch.setattr(torch.Tensor, "sum", err)
    with pytest.raises(Unable, match="run cpu_units and host_memory") as caught:
        prepare(a_task(tmp_path, draw=5))
    assert caught.value.remedy is Remedy.INSPECT


def test_the_core_that_differs_from_most_is_named() -> None:
    assert "core 7 of" in describe_dissent({0: (), 3: (), 7: (1,)})
    assert "cores 0,3 of" in describe_dissent({0: (), 3: (2,)})


def test_a_product_that_only_its_copy_on_the_host_has_wrong_accuses_no_part(tmp_path: Path) -> None:
    with (
        Glitch(torch.Tensor.cpu, flipped),
        pytest.raises(Unable, match="disproves a right product of plan plain") as caught,
    ):
        prepare(a_task(tmp_path))
    assert (caught.value.cause, caught.value.remedy) == (Cause.CHECKER, Remedy.INSPECT)


def test_a_digest_that_the_host_gets_wrong_fails_no_part(tmp_path: Path) -> None:
    task = a_task(tmp_path, family=CPU_FAMILIES["fp32"], shape=Shape(512, 2048))
    with (
        Glitch(torch.Tensor.sum, off_by_one) as glitch,
        pytest.raises(Unable, match="the digest of plan plain was wrong once") as caught,
    ):
        prepare(task)
    assert glitch.calls
    assert (caught.value.cause, caught.value.remedy) == (Cause.CHECKER, Remedy.INSPECT)


def test_a_first_product_accuses_the_core_that_made_it(tmp_path: Path) -> None:
    cores = sorted(os.sched_getaffinity(0))
    for rotation, core in enumerate(cores):
        seams = ProductSeams(multiply=make_multiply_fault(stick(12, at=1))(multiply))
        ctx = make_context(tmp_path, rotation=rotation)
        prepared = prepare(a_task(tmp_path, ctx=ctx, seams=seams))
        assert {outcome.part_id for outcome in prepared.failures} == {f"cpu{core}"}


def test_the_reruns_of_a_first_product_are_made_on_its_core(tmp_path: Path) -> None:
    pins: set[frozenset[int]] = set()

    def noting(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
        pins.add(frozenset(os.sched_getaffinity(0)))
        make_multiply_fault(stick(12, at=1))(multiply)(a, b, out)

    prepared = prepare(a_task(tmp_path, seams=ProductSeams(multiply=noting)))
    assert [set(cores) for cores in pins] == [{min(os.sched_getaffinity(0))}]
    found = prepared.failures[0].corruption
    assert found is not None
    assert found.evidence["reruns"] == "persistent: 3 of 3 reruns wrong"


def test_references_are_right_though_the_part_is_always_wrong(tmp_path: Path) -> None:
    seams = ProductSeams(multiply=make_multiply_fault(stick(12, at=1))(multiply))
    prepared = prepare(a_task(tmp_path, seams=seams))
    assert prepared.failures[0].mismatched_words
    for plan, job in zip(make_bf16_plans(SHAPE.depth), prepared.jobs, strict=False):
        assert not prove_by_freivalds(Operands(plan, SHAPE), job.reference, seed=3).wrong_rows


def test_types_that_share_a_plan_share_its_reference(tmp_path: Path) -> None:
    references = References()
    jobs = [
        prepare(a_task(tmp_path, family=FAMILIES[name], references=references)).jobs
        for name in ("bf16", "fp16")
    ]
    assert len(references) == 8  # six of integers, and each type's sparse one
    assert jobs[0][1].reference is jobs[1][1].reference
    assert jobs[0][1].a.dtype != jobs[1][1].a.dtype


def test_a_fresh_draw_is_proven_too(tmp_path: Path) -> None:
    task = a_task(tmp_path, draw=2**31 - 1)
    prepared = prepare(task)
    assert not prepared.failures
    assert max(known.certificate for known in task.references.values()) <= SINGLE_LIMIT
    assert {job.draw for job in prepared.jobs} == {2**31 - 1}


def test_a_host_that_contradicts_the_shipped_digest_is_not_trusted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = Operands(make_bf16_plans(2048)[0], Shape(512, 2048))
    product = made.compute_exact_rows(range(512)).float()
    certificate, right = find_shipped(made) or (0, 0)
    changed = (certificate, right ^ 1)
    monkeypatch.setitem(SHIPPED_DIGESTS, ("plain", 512, 2048), changed)
    with pytest.raises(Unable, match="contradicts its digest") as caught:
        prove_product(made, product, 1)
    assert (caught.value.cause, caught.value.remedy) == (Cause.CHECKER, Remedy.FIX_CHECKER)


def test_a_row_with_a_minus_zero_is_wrong() -> None:
    made = Operands(make_narrow_plans(128)[0], Shape(128, 128))
    product = made.compute_exact_rows(range(128)).bfloat16()
    zeros = (product == 0).any(dim=1)
    product[product == 0] = -0.0
    assert prove_product(made, product, 1).wrong_rows == tuple(zeros.nonzero().flatten().tolist())


def test_a_plan_that_is_not_exact_is_refused() -> None:
    # The larger integers of this plan are beyond what it says.
    made = Operands(ProductPlan("too large", 99, 2047, 127, SINGLE_LIMIT), Shape(64, 1024))
    product = made.compute_exact_rows(range(64)).float()
    assert prove_by_freivalds(made, product, 1).certificate > SINGLE_LIMIT
    with pytest.raises(Unable, match="is inexact") as caught:
        prove_product(made, product, 1)
    assert caught.value.cause is Cause.CHECKER


@pytest.mark.system
def test_shipped_digests_are_what_the_committed_function_computes() -> None:
    for family, made in shipped():
        if made.shape.size == 512:
            certificate, digest = find_shipped(made) or (0, 0)
            spaced = f"{digest:016X}"
            printed = line(family, made).replace("_", "")
            assert f"({certificate}, 0x{spaced})" in printed


def test_shipped_digests_cover_the_shapes_that_suites_use() -> None:
    for _, made in shipped():
        assert find_shipped(made), made


def test_no_bit_that_is_stuck_from_the_start_fits_a_shipped_digest() -> None:
    for family, made in shipped_for_cpus():
        right = right_product(family, made)
        assert fits(made, right)
        for bit, at in product(range(8 * right.element_size()), (0, 1)):
            found = right.clone()
            stick(bit, at=at)(found)
            assert fits(made, found) == torch.equal(found, right)


def fits(made: PlannedOperands, found: torch.Tensor) -> bool:
    _, shipped_digest = find_shipped(made) or (0, 0)
    return compute_digest(found) == shipped_digest


def test_a_product_that_fits_no_digest_is_proven_all_the_same() -> None:
    family, made = shipped_for_cpus()[0]
    found = right_product(family, made)
    flip(12)(found)
    proof = prove_product(made, found, 1)
    assert len(proof.wrong_rows) == 1


def shipped_for_cpus() -> list[tuple[Family, PlannedOperands]]:
    """List a few of the shipped plans that fp32 is examined with on a CPU."""
    few = ("plain", "bias+", "scaled", "sparse fp32 subnormal")
    return [s for s in shipped() if s[1].shape.size == 512 and s[1].name in few]


def test_a_product_that_is_wrong_in_many_rows_leaves_its_plan_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(benches, "MAX_REPAIRED_ROWS", 2)
    seams = ProductSeams(multiply=make_multiply_fault(stick(12, at=1))(multiply))
    prepared = prepare(a_task(tmp_path, seams=seams))
    assert not prepared.jobs
    assert [bool(o.corruption) for o in prepared.failures] == [True] + 7 * [False]
    assert all(outcome.mismatched_words for outcome in prepared.failures)


def test_what_a_copy_to_the_host_got_wrong_is_not_overlooked(tmp_path: Path) -> None:
    task = a_task(tmp_path)
    made = Operands(make_bf16_plans(SHAPE.depth)[0], SHAPE)
    host = made.compute_exact_rows(range(SHAPE.size)).float()
    view_integers(host)[3, 4] ^= 1
    assert prove_product(made, host, 1).wrong_rows == (3,)
    assert not prepare(task).failures


def test_a_draw_is_never_taken_for_what_is_shipped() -> None:
    made = Operands(make_bf16_plans(2048)[0], Shape(512, 2048))
    assert find_shipped(made)
    assert not find_shipped(replace(made, draw=1))


@pytest.mark.parametrize(("spoiled", "code"), [(True, "miscopied"), (False, "unwitnessed")])
def test_a_wrong_copy_of_a_right_first_product_accuses_the_gpu_if_other_cores_see_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, spoiled: bool, code: str
) -> None:
    gpu: Any = SimpleNamespace(type="cuda")
    move = torch.Tensor.to
    monkeypatch.setattr(
        torch.Tensor, "to", lambda x, *args: x if args[0] is gpu else move(x, *args)
    )
    (job, *_) = prepare(a_task(tmp_path)).jobs
    copied = job.reference.clone()
    view_words(copied)[3] ^= spoiled
    device = Device("cuda", "GPU-0", "GPU 0")
    task = replace(a_task(tmp_path, ctx=make_context(tmp_path, device=device)), device=gpu)
    found = report_first_product(task, job, copied, job.reference).corruption
    assert found is not None
    assert (found.code, found.part_id) == (code, "GPU-0")
