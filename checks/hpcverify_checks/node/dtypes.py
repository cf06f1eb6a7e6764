"""The types that parts multiply: their units, and the product of each by torch."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import hpcverify.check as hv

if TYPE_CHECKING:
    from torch import Tensor

Multiply = Callable[["Tensor", "Tensor", "Tensor"], None]
"""Writes the product of the first two into the third: the operation under test."""


@dataclass(frozen=True, slots=True)
class Dtype:
    """A type of operands, the units for it, and the types of its outputs."""

    name: str
    operand: str
    """torch's name, as for all types below."""
    job_output: str
    """The output type that jobs use."""
    capability: tuple[int, int]
    """The first with units for it (for all but fp32 and fp64: tensor cores; CUDA C++
    programming guide, arithmetic instructions)."""
    output: str = "float32"
    """Holds every sum of exact products."""
    by_columns: bool = False
    """Whether the library wants B stored by columns."""


DTYPES = {
    dtype.name: dtype
    for dtype in (
        Dtype("bf16", "bfloat16", "bfloat16", (8, 0)),
        Dtype("fp16", "float16", "float16", (7, 0)),
        Dtype("tf32", "float32", "float32", (8, 0)),
        Dtype("fp32", "float32", "float32", (0, 0)),
        Dtype("fp64", "float64", "float64", (0, 0), output="float64"),
        Dtype("fp8", "float8_e4m3fn", "bfloat16", (8, 9), by_columns=True),
        Dtype("int8", "int8", "int32", (7, 5), output="int32", by_columns=True),
    )
}
MI200_DTYPES = frozenset({"fp64", "fp32", "fp16", "bf16", "int8"})
AMD_DTYPES = {
    "gfx90a": MI200_DTYPES,
    "gfx942": MI200_DTYPES,
    "gfx950": frozenset({"fp64", "fp32", "int8"}),
}
"""The types that are used on AMD's GPUs (MI200, MI300, MI350), by architecture: those with
units whose sums are known to be exact within our limits (arXiv 2511.10909 and its code,
microsoft/MMA-Sim: MI200 rounds each sum of two to fp32, MI300 keeps 24 fractional bits; of
MI350 it tells nothing). fp8 of MI300 is another format than ours (e4m3fnuz, without the
infinities of e4m3fn: hipBLASLt, data type support)."""
OTHER_AMD_DTYPES = frozenset({"fp64", "fp32"})
"""The types of an architecture that is not in the table: plain IEEE arithmetic."""


def multiply(a: Tensor, b: Tensor, out: Tensor) -> None:
    """
    Multiply on the device, into the type of *out*.

    A CPU multiplies operands of fp8 and of 16 bits as fp32: torch has no product of 16-bit
    operands with an fp32 output there, and on some CPUs multiplies fp8 by a reference
    kernel, thousands of times slower. fp32 holds each of their products, and each sum up
    to 2^24, so an exact product keeps every bit.
    """
    import torch

    if a.dtype == torch.int8:
        torch.ops.aten._int_mm.out(a, b, out=out)  # noqa: SLF001 - torch has no public one
    elif a.dtype == out.dtype:
        torch.mm(a, b, out=out)
    elif a.device.type == "cpu":
        torch.mm(a.to(out.dtype), b.to(out.dtype), out=out)
    elif a.dtype == torch.float8_e4m3fn:
        one = torch.ones((), device=a.device)
        torch.ops.aten._scaled_mm.out(  # noqa: SLF001 - torch has no public one
            a, b, one, one, out_dtype=out.dtype, use_fast_accum=False, out=out
        )
    else:  # a 16-bit output would hide the low bits of the sums
        torch.mm(a, b, out.dtype, out=out)


REFUSAL = re.compile(r"\w*BLAS\w*_STATUS_(?:NOT_SUPPORTED|INVALID_VALUE|ARCH_MISMATCH)\b")
"""The statuses with which cuBLAS and hipBLAS decline a product before they run it (cuBLAS
guide, "cublasStatus_t"). torch raises them as a RuntimeError that names them."""


def find_refusal(exc: RuntimeError) -> str:
    """Find the status with which the library declined a product; "" if it did not."""
    match = REFUSAL.search(str(exc))
    return match.group() if match else ""


DTYPE_REFUSED_CODE = "dtype_refused"
DTYPE_REFUSED_RULE = hv.FindingRule(hv.Verdict.WARN, hv.Remedy.FIX_CONFIGURATION)
"""A type that the library declines is left out: it says nothing of the part."""


def report_refused_dtype(part_id: str, dtype: str, status: str, undone: str) -> hv.Finding:
    """Report that *dtype* is *undone*, as in "not verified", for the library's *status*."""
    text = (
        f"{dtype} is {undone}: the library refuses its products ({status}): install a torch "
        "whose CUDA libraries support this GPU"
    )
    return hv.Finding(DTYPE_REFUSED_CODE, part_id, text, {"dtype": dtype, "status": status})
