"""Every type has plans that are exact with it, and products that torch can make."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from hpcverify.limits import specs
from hpcverify_checks.exact import families
from hpcverify_checks.exact.bits import view_integers
from hpcverify_checks.exact.families import CPU_FAMILIES, FAMILIES, Family, choose_partner_bound
from hpcverify_checks.exact.products import Operands, Shape, find_constant_bits, view_shifted
from hpcverify_checks.node.dtypes import multiply

PAIRED = """
import torch
from hpcverify_checks.exact.families import EVEN_INT8_BOUND as EVEN_INT8
from hpcverify_checks.exact.families import INT8_BOUND as INT8

torch.set_num_threads(1)
for a, b in ((EVEN_INT8, EVEN_INT8), (INT8, 1), (1, INT8)):
    for sign in (1, -1):
        left = torch.full((64, 256), a, dtype=torch.int8)
        right = torch.full((64, 256), sign * b, dtype=torch.int8).T
        exact = left.long() @ right.long()
        assert torch.equal(torch._int_mm(left, right).long(), exact), (a, sign * b)
"""
EVERY = [*FAMILIES.values(), CPU_FAMILIES["bf16"]]


@pytest.mark.parametrize("family", EVERY, ids=lambda f: f"{f.name}-{f.output}")
def test_the_device_makes_the_product_that_the_host_makes(family: Family) -> None:
    shape = Shape(32, 128)
    dtype = getattr(torch, family.operand)
    for plan in family.make_plans(shape.depth):
        made = Operands(plan, shape)
        out = torch.empty(32, 32, dtype=getattr(torch, family.output))
        a, b = made.store(dtype, "cpu", by_columns=family.by_columns)
        multiply(*view_shifted(a, b, 3), out)
        expected = made.compute_exact_rows(range(32)).to(out.dtype)
        assert torch.equal(view_integers(out), view_integers(expected))


class Calls(TorchFunctionMode):
    """Notes what torch is asked for, and lets it be done."""

    names: tuple[str, ...] = ()

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> object:
        """Note the name of what is asked for."""
        del types
        self.names += (func.__name__,)
        return func(*args, **(kwargs or {}))


def test_a_cpu_multiplies_fp8_as_fp32_and_by_no_kernel_for_fp8() -> None:
    # Where a CPU has AVX512-FP16 or AMX, torch's own takes seconds for a product.
    integers = torch.arange(-8.0, 8.0).repeat(16, 1)
    a = integers.to(torch.float8_e4m3fn)
    out = torch.empty(16, 16)
    with Calls() as calls:
        multiply(a, a.t(), out)

    assert "mm" in calls.names
    assert not [name for name in calls.names if "scaled_mm" in name]
    assert torch.equal(out, integers @ integers.t())


def test_plans_have_names_and_keys_of_their_own() -> None:
    plans = {plan for f in EVERY for plan in f.make_plans(64)}
    assert len({p.name for p in plans}) == len({p.key for p in plans}) == len(plans)


def test_every_type_has_two_plans_or_more_that_can_take_turns() -> None:
    assert all(len(family.make_plans(family.depth)) > 1 for family in EVERY)


def test_a_depth_that_leaves_no_room_is_refused() -> None:
    with pytest.raises(ValueError, match="no product of depth 8192 is exact"):
        families.make_fp8_plans(8192)


def test_the_partner_is_the_largest_that_is_expected_to_fit() -> None:
    room = families.SINGLE_LIMIT
    b = choose_partner_bound(32768, 255, room, 255)
    assert families.estimate_certificate(32768, 255, b) <= room
    assert families.estimate_certificate(32768, 255, b + 1) > room


def test_16_bit_operands_reach_all_bits_of_their_mantissa() -> None:
    for name, used in (("bf16", 8), ("fp16", 11)):
        plans = FAMILIES[name].make_plans(512)
        assert max(p.a for p in plans).bit_length() == used
        assert max(p.b for p in plans).bit_length() == used


def fits_pairs(a: int, b: int) -> bool:
    """Whether two products of int8 operands within +-a and +-b sum in 16 bits, one unsigned."""
    return 2 * max((128 + a) * b, (128 + b) * a) < 2**15


def test_pairs_of_int8_products_fit_into_16_bits_whichever_operand_is_unsigned() -> None:
    assert all(fits_pairs(p.a, p.b) for p in FAMILIES["int8"].make_plans(2048))
    assert not fits_pairs(families.EVEN_INT8_BOUND + 1, families.EVEN_INT8_BOUND + 1)
    assert not fits_pairs(families.INT8_BOUND, 2)
    assert not fits_pairs(2, families.INT8_BOUND)


@pytest.mark.system
@pytest.mark.parametrize("isa", ["SSE41", "AVX2", "AVX512_CORE"])
def test_the_largest_int8_operands_are_exact_on_a_cpu_without_vnni(isa: str) -> None:
    # The library must act as such a CPU's before our own code can set it otherwise.
    command = [sys.executable, "-c", PAIRED]
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": isa}
    done = subprocess.run(command, env=environment, capture_output=True, timeout=300, check=False)
    assert (done.returncode, done.stderr.decode()[-500:]) == (0, "")


def test_int8_operands_reach_all_their_bits() -> None:
    both = [Operands(p, Shape(64, 256)) for p in FAMILIES["int8"].make_plans(256)]
    for matrices in (
        [m.make_a(range(64), "cpu") for m in both],
        [m.make_b(range(256), "cpu") for m in both],
    ):
        assert find_constant_bits(m.to(torch.int8) for m in matrices) == ()


def test_the_table_has_every_type_of_the_data_sheets() -> None:
    assert set(FAMILIES) == set(specs.DTYPES)
