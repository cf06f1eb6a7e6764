"""Plans that are not exact here, and offsets that a library refuses, are counted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from torch import Tensor

from hpcverify.check import CheckItem, Finding, Measurement, Skip
from hpcverify.testing import make_context
from hpcverify_checks.exact.families import FAMILIES
from hpcverify_checks.exact.product_loop import ProductSeams
from hpcverify_checks.exact.products import SHIFT_STEP, Shape
from hpcverify_checks.node.dtypes import multiply
from hpcverify_checks.qualification.exactness import measure, try_plans
from hpcverify_checks.sdc import SdcParams
from hpcverify_checks.sdc.faults import flip, make_multiply_fault
from tests.checks.sdc.benches import a_task


def count(found: list[CheckItem]) -> dict[str, float | None]:
    return {item.name: item.value for item in found if isinstance(item, Measurement)}


def test_a_part_that_multiplies_exactly_has_no_wrong_product(tmp_path: Path) -> None:
    found = list(try_plans(a_task(tmp_path)))

    assert count(found) == {"fp32.refused_offsets": 0, "fp32.wrong_products": 0}
    assert not [item for item in found if isinstance(item, Finding)]


def test_a_product_that_is_wrong_after_the_proof_is_named_by_plan_and_offset(
    tmp_path: Path,
) -> None:
    faulty, healthy = make_multiply_fault(flip(3))(multiply), multiply
    plans = len(FAMILIES["fp32"].list_operands(Shape(256, 512), 0))
    calls = 0

    def multiply_twice(a: Tensor, b: Tensor, out: Tensor) -> None:
        nonlocal calls
        calls += 1  # the first product of each plan is proven, the next is at offset 0
        (faulty if calls == plans + 1 else healthy)(a, b, out)

    task = a_task(tmp_path, seams=ProductSeams(multiply=multiply_twice))
    found = list(try_plans(task))

    assert count(found)["fp32.wrong_products"] == 1
    (named,) = [item for item in found if isinstance(item, Finding)]
    assert (named.code, named.text.partition(":")[0]) == ("product_differs", "fp32")
    assert "plan plain at offset 0: 1 words differ" in named.text


def test_an_offset_that_the_library_refuses_is_counted_and_left_out(tmp_path: Path) -> None:
    def refuse_odd(a: Tensor, b: Tensor, out: Tensor) -> None:
        if a.storage_offset() == SHIFT_STEP:
            raise RuntimeError("CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling cublasLt")
        multiply(a, b, out)

    task = a_task(tmp_path, FAMILIES["int8"], seams=ProductSeams(multiply=refuse_odd))
    found = list(try_plans(task))

    assert count(found) == {"int8.refused_offsets": 1, "int8.wrong_products": 0}
    assert [item.code for item in found if isinstance(item, Finding)] == ["offset_refused"]


def test_the_cpu_is_left_out(tmp_path: Path) -> None:
    with pytest.raises(Skip):
        list(measure(make_context(tmp_path), SdcParams()))


def test_a_task_keeps_its_own_offsets(tmp_path: Path) -> None:
    task = replace(a_task(tmp_path), shifts=(0, 2))
    found = list(try_plans(task))

    assert any("at 2 offsets" in getattr(item, "text", "") for item in found)
