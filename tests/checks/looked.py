"""Looks at tiles on an invented multiprocessor; imported where Triton interprets."""

from __future__ import annotations

from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import torch
import triton
import triton.language as tl

from hpcverify_checks.common.locate import Tile, make_tile, run_tile
from hpcverify_checks.common.triton_kernels import check_tile


@triton.jit  # type: ignore[untyped-decorator] # Triton has no types
def number() -> Any:
    """Call the first program's multiprocessor 40."""
    return tl.program_id(0) + 40


KERNELS = cast("ModuleType", SimpleNamespace(check_tile=check_tile, sm_id=number))


EDGE = 32
"""Less than on a GPU, which is quicker at it."""


def looked(plan: tuple[int, int], row: int = 0, mask: int = 0) -> list[list[int]]:
    """Have two programs look twice at a tile whose right answer is spoiled in a row."""
    made = make_tile(*plan)
    # As fp16: the interpreter multiplies the bits of bf16 as if they were integers.
    a, b = made.a[:EDGE].half(), made.b[:, :EDGE].half().contiguous()
    expected = made.expected[:EDGE, :EDGE].contiguous()
    expected.view(torch.int32)[row].bitwise_xor_(mask)
    run = partial(run_tile, KERNELS, torch.device("cpu"), 2)
    return cast("list[list[int]]", run(Tile(a, b, expected), 2).tolist())
