"""
A comparison in one kernel, where Triton can compile one.

torch's own operations write a mask of the differences and read it again; our kernel reads
both sides once and writes nothing. Triton comes with the CUDA builds of torch, but also
needs a C compiler and a writable directory: where one is missing, torch's operations do
the work in a little more time.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from functools import cache, partial
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any

from hpcverify_checks.common.product_loop import Compare, compare

if TYPE_CHECKING:
    import torch
    from torch import Tensor

READ_WORDS, READ_COUNT = 2048, 4
"""Words that a program reads at a time, and how often: 64 KiB of each side, so that a
product of 4096 x 4096 makes a thousand programs."""


def choose_comparison(device: torch.device) -> Compare:
    """Choose the fastest comparison that runs on *device*."""
    return compare if load_kernels(device) is None else compare_fused


def compare_fused(found: Tensor, expected: Tensor, count: Tensor) -> None:
    """
    Compare rows of words bit by bit on the current GPU, without waiting for it.

    Writes the number of words that differ into *count*, an int64 scalar.
    """
    from hpcverify_checks.common import triton_kernels

    kernel: Any = triton_kernels.count_unequal
    length = found.numel()
    programs = -(-length // (READ_WORDS * READ_COUNT))
    count.zero_()
    kernel[(programs,)](found, expected, count, length, width=READ_WORDS, reads=READ_COUNT)


@cache
def load_kernels(device: torch.device) -> ModuleType | None:
    """Load the kernels if they can be compiled for *device* and run there, else None."""
    import torch

    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
    if device.type != "cuda" or compiler is None or find_spec("triton") is None:
        return None
    if torch.version.hip is not None:  # nobody has run our kernels on an AMD GPU
        return None
    if not can_launch(partial(_launch_one, device)):
        return None
    from hpcverify_checks.common import triton_kernels

    return triton_kernels


def can_launch(launch: Callable[[], object]) -> bool:
    """Whether Triton can *launch* a kernel here."""
    from triton.errors import TritonError

    try:
        launch()
    # Python's headers, a writable directory or Triton's support for a new GPU may be
    # missing. A broken GPU will fail again later.
    except (OSError, RuntimeError, subprocess.SubprocessError, TritonError):
        return False
    return True


def _launch_one(device: torch.device) -> None:
    import torch

    words = torch.zeros(1, dtype=torch.int64, device=device)
    compare_fused(words, words, torch.empty_like(words[0]))
    torch.cuda.synchronize(device)
