"""References are proven outside of the part, and a host that errs is not trusted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from hpcverify.check import Unable
from hpcverify.model import Cause
from hpcverify_checks._benches import Library, prepare, proven
from hpcverify_checks._bits import integers_of
from hpcverify_checks._exact import Operands, Plan, Shape, prove
from hpcverify_checks._families import FAMILIES, SINGLE_LIMIT, bf16_plans, multiply
from hpcverify_checks._hunt import Seams
from hpcverify_checks._injections import flip, harmed, stick
from hpcverify_checks._universal import UNIVERSAL, known
from tests.checks.benches import SHAPE, a_task, once
from tests.checks.universal import line, right_product, shipped


def test_a_product_disproved_at_the_start_is_corruption(tmp_path: Path) -> None:
    seams = Seams(multiply=once(flip(2), 2)(multiply))
    prepared = prepare(a_task(tmp_path, seams=seams))
    (outcome,) = prepared.found
    assert outcome.mismatched == 1
    assert outcome.corruption is not None
    assert outcome.corruption.evidence["plan"] == "bias-"


def test_references_are_right_though_the_part_is_always_wrong(tmp_path: Path) -> None:
    seams = Seams(multiply=harmed(stick(12, at=1))(multiply))
    prepared = prepare(a_task(tmp_path, seams=seams))
    assert prepared.found[0].mismatched
    for plan, job in zip(bf16_plans(SHAPE.depth), prepared.jobs, strict=False):
        assert not prove(Operands(plan, SHAPE), job.reference, seed=3).wrong_rows


def test_types_that_share_a_plan_share_its_reference(tmp_path: Path) -> None:
    library = Library()
    jobs = [
        prepare(a_task(tmp_path, family=FAMILIES[name], library=library)).jobs
        for name in ("bf16", "fp16")
    ]
    assert len(library.shelf) == 6
    assert jobs[0][1].reference is jobs[1][1].reference
    assert jobs[0][1].a.dtype != jobs[1][1].a.dtype


def test_a_fresh_draw_is_proven_too(tmp_path: Path) -> None:
    prepared = prepare(a_task(tmp_path, draw=2**31 - 1))
    assert not prepared.found
    assert max(prepared.certificates) <= SINGLE_LIMIT
    assert {job.draw for job in prepared.jobs} == {2**31 - 1}


def test_a_host_that_contradicts_the_shipped_digest_is_not_trusted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = Operands(bf16_plans(2048)[0], Shape(512, 2048))
    product = made.exact_rows(range(512)).float()
    key = ("plain", 512, 2048)
    certificate, right = known(made) or (0, 0)
    monkeypatch.setitem(UNIVERSAL, key, (certificate, right ^ 1))
    with pytest.raises(Unable, match="contradicts its digest") as caught:
        proven(made, product, 1)
    assert caught.value.cause is Cause.CHECKER


def test_a_plan_that_is_not_exact_is_refused() -> None:
    shape = Shape(64, 2048)
    made = Operands(Plan("too large", 99, 2047, 2047, SINGLE_LIMIT), shape)
    with pytest.raises(Unable) as caught:
        proven(made, made.exact_rows(range(64)).float(), 1)
    assert caught.value.cause is Cause.CHECKER


def test_shipped_digests_are_what_the_committed_function_computes() -> None:
    for family, plan, shape in shipped():
        if shape.size == 512:
            made = Operands(plan, shape)
            certificate, digest = known(made) or (0, 0)
            spaced = f"{digest:016X}"
            printed = line(family, plan, shape).replace("_", "")
            assert f"({certificate}, 0x{spaced})" in printed


def test_shipped_digests_cover_the_shapes_that_suites_use() -> None:
    for _, plan, shape in shipped():
        assert known(Operands(plan, shape)), (plan.name, shape)


def test_a_shipped_digest_proves_and_a_changed_bit_disproves() -> None:
    family, plan, shape = next(s for s in shipped() if s[2].size == 512)
    product = right_product(family, plan, shape)
    spoiled = product.clone()
    integers_of(spoiled)[3, 4] ^= 1
    for given in (product, spoiled):
        mended, certificate = proven(Operands(plan, shape), given, 1)
        assert torch.equal(integers_of(mended), integers_of(product))
        assert certificate <= plan.limit


def test_a_draw_is_never_taken_for_what_is_shipped() -> None:
    made = Operands(bf16_plans(2048)[0], Shape(512, 2048))
    assert known(made)
    assert not known(replace(made, draw=1))
