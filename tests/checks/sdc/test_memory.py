"""What the host's memory did, or whoever filled it, is not called a wrong core."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from hpcverify.model import CheckItem, Finding, Measurement, Remedy, Verdict
from hpcverify.testing import INVENTORY, judge_items, make_context
from hpcverify_checks import sdc
from hpcverify_checks.exact.bits import view_integers
from hpcverify_checks.exact.product_loop import ProductSeams, compare
from hpcverify_checks.exact.vote import HOST_MEMORY, MEMORY_CODE, reconcile
from hpcverify_checks.node.dtypes import multiply
from tests.checks.sdc.work_clock import WorkClock

QUICK = sdc.SdcParams(seconds=1.0, size=128, depth=256)
LATER = 12
"""Products before the fault, so that all operands have been proven."""


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Go by the work that is done: a busy machine makes as many products as a quiet one."""
    WorkClock(product_seconds=0.002, plan_seconds=0.001).put_into(monkeypatch)


def measured(tmp_path: Path, seams: ProductSeams | None = None) -> list[CheckItem]:
    return list(sdc.measure(make_context(tmp_path), QUICK, seams))


def require_memory_alone_is_accused(items: list[CheckItem]) -> None:
    known = [i for i in items if isinstance(i, (Finding, Measurement))]
    left = list(reconcile(known, INVENTORY))
    accused = [f for f in left if isinstance(f, Finding) and f.code != "answer"]
    counts = (i for i in left if isinstance(i, Measurement) and "mismatched" in i.name)
    wrong = [i.name for i in counts if i.value]
    judgement = judge_items(sdc.CHECK, items)

    assert [(f.code, f.part_id) for f in accused] == [(MEMORY_CODE, HOST_MEMORY)]
    assert not wrong
    assert (judgement.verdict, judgement.remedy) == (Verdict.FAIL, Remedy.INSPECT)
    assert not sdc.CHECK.finding_rules[MEMORY_CODE].conclusive


def flip_element(tensor: Tensor) -> None:
    view_integers(tensor)[1, 40].bitwise_xor_(1 << 6)


@pytest.mark.parametrize("operand", [0, 1])
def test_an_operand_that_changes_in_memory_accuses_no_core(tmp_path: Path, operand: int) -> None:
    made = 0

    def lose(a: Tensor, b: Tensor, out: Tensor) -> None:
        nonlocal made
        if a.dtype == torch.float32:
            made += 1
            if made == LATER:
                flip_element((a, b)[operand])
        multiply(a, b, out)

    require_memory_alone_is_accused(measured(tmp_path, ProductSeams(multiply=lose)))


@pytest.mark.parametrize("when", [1, LATER])
def test_a_reference_that_changes_in_memory_is_neither_a_wrong_core_nor_a_blind_one(
    tmp_path: Path, when: int
) -> None:
    # The first comparison is followed by a canary, the others are not.
    compared = 0

    def lose(found: Tensor, expected: Tensor, count: Tensor) -> None:
        nonlocal compared
        compare(found, expected, count)
        compared += 1
        if compared == when:
            expected[77].bitwise_xor_(1 << 20)

    require_memory_alone_is_accused(measured(tmp_path, ProductSeams(compare=lose)))


class Slip(TorchFunctionMode):
    """Store one element of one operand wrongly, on the thread that makes them."""

    def __init__(self, number: int) -> None:
        """Do so in the store of this *number*."""
        super().__init__()
        self.left = number

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Store what is stored, and one wrong element with it."""
        result = func(*args, **(kwargs or {}))
        if func is torch.Tensor.__setitem__ and args[0].dim() == 2:
            self.left -= 1
            if not self.left:
                flip_element(args[0])
        return result


@pytest.mark.parametrize("number", [1, 2, 5])
def test_an_operand_that_was_made_wrong_once_accuses_no_core(tmp_path: Path, number: int) -> None:
    with Slip(number) as slip:
        items = measured(tmp_path)
    assert slip.left <= 0
    require_memory_alone_is_accused(items)
