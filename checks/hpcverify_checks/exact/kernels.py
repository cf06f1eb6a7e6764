"""
A comparison in one kernel, where Triton can compile one.

torch's own operations write a mask of the differences and read it again; our kernel reads
both sides once and writes nothing. Triton comes with the CUDA builds of torch, but also
needs libcuda where ldconfig knows it, a C compiler, and a directory that it may write to
and load libraries from: where one is missing, torch's operations do the work in a little
more time, and the coverage says why.
"""

from __future__ import annotations

import subprocess
import textwrap
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import hpcverify.check as hv
from hpcverify_checks.exact.product_loop import Compare, compare
from hpcverify_checks.node.device import wait_for_device

if TYPE_CHECKING:
    import torch
    from torch import Tensor

READ_WORDS, READ_COUNT = 2048, 4
"""Words that a program reads at a time, and how often: 64 KiB of each side, so that a
product of 4096 x 4096 makes a thousand programs."""
MAX_REASON_CHARACTERS = 300

TRITON_FAILURES = (
    AssertionError,  # "libcuda.so cannot found!", as in containers that ldconfig does not know
    ImportError,  # it is not installed, or what it compiled lies on a noexec mount
    OSError,  # its directory cannot be written, or is full; there is no ldconfig
    RuntimeError,  # no C compiler; no support for a new GPU
    ValueError,  # a damaged file in its cache; a setting in the environment
    subprocess.SubprocessError,  # the C compiler failed, as without Python's headers
)
"""What Triton 3.7 raises where it cannot compile or load a kernel, besides its own
`TritonError`. A TypeError or the like is a mistake of ours."""


def compare_fused(found: Tensor, expected: Tensor, count: Tensor) -> None:
    """
    Compare rows of words bit by bit on the current GPU, without waiting for it.

    Writes the number of words that differ into *count*, an int64 scalar.
    """
    from hpcverify_checks.exact import triton_kernels

    kernel: Any = triton_kernels.count_unequal
    length = found.numel()
    programs = -(-length // (READ_WORDS * READ_COUNT))
    count.zero_()
    kernel[(programs,)](found, expected, count, length, width=READ_WORDS, reads=READ_COUNT)


@cache
def load_comparison(device: torch.device) -> tuple[Compare, str]:
    """
    Load the fastest comparison that runs on *device*, and why it is not Triton's.

    Raises:
        RuntimeError: What CUDA raised: a broken GPU is no missing compiler.

    """
    import torch

    # Nobody has run our kernel on an AMD GPU.
    if device.type != "cuda" or torch.version.hip is not None:
        return compare, ""
    failure = try_launch(prepare_comparison(device), device)
    return (compare, failure) if failure else (compare_fused, "")


def report_comparison(ctx: hv.Context, device: torch.device) -> Iterator[hv.Coverage]:
    """Load the comparison for *device* before it is needed; report if Triton compiles none."""
    if failure := load_comparison(device)[1]:
        text = f"products are compared by torch, since Triton compiles no kernel here: {failure}"
        yield hv.Coverage(ctx.device.part, text)


def prepare_comparison(device: torch.device) -> Callable[[], None]:
    """Prepare a comparison of words in the memory of *device*, as of a product's."""
    import torch

    # Triton compiles again for a length that is 1, or no multiple of 16.
    words = torch.zeros(READ_WORDS, dtype=torch.int64, device=device)
    return partial(compare_fused, words, words, torch.empty_like(words[0]))


def try_launch(launch: Callable[[], object], device: torch.device) -> str:
    """
    Let Triton *launch* a kernel on *device*, and wait for it; say why it cannot.

    Raises:
        RuntimeError: What CUDA raised: a broken GPU is no missing compiler.

    """
    import torch

    failures: tuple[type[Exception], ...] = TRITON_FAILURES
    with suppress(*TRITON_FAILURES):
        from triton.errors import TritonError

        failures = (*TRITON_FAILURES, TritonError)
    try:
        launch()
    except (torch.AcceleratorError, torch.OutOfMemoryError):
        raise
    except failures as exc:
        # Triton reports CUDA's errors as a RuntimeError of its own; those that last
        # are raised again here, by torch.
        wait_for_device(device)
        return textwrap.shorten(f"{type(exc).__name__}: {exc}", MAX_REASON_CHARACTERS)
    wait_for_device(device)
    return ""
