"""Products of matrices as CUDA makes them, and refuses to: a CPU has fewer, and other rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from tests.rehearsal.faults import MISALIGNED, find_faults, strike
from tests.rehearsal.gpu import Gpu

if TYPE_CHECKING:
    from torch import Tensor

NAMES = frozenset({"mm", "matmul", "__matmul__", "bmm"})
SCALED_CAPABILITY = (8, 9)
ALIGNMENT, PICKY_ALIGNMENT = 16, 32
"""Of operands of one byte, in bytes: of a library, and of a picky one."""
INT8_MIN_ROWS = 17
HALVES = (torch.float16, torch.bfloat16)
INTEGERS = (torch.int8, torch.int32, torch.int64)
WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Integers by their size in bytes."""
MAX_KEPT = 256
DEFAULT_RATE = 10.0
"""10^12 operations per second, of types that no check measures."""


class Multiplier:
    """Multiplies, and remembers: the same product of the same operands has the same bits."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], tuple[Any, Any, Tensor]] = {}

    def multiply(
        self, func: Any, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], gpu: Gpu
    ) -> Tensor | None:
        """
        Multiply as *func* does on *gpu*; None if it is no product.

        Raises:
            RuntimeError: CUDA has no such product.

        """
        text = str(func)
        out: Tensor | None = kwargs.get("out")
        if "_int_mm" in text:
            a, b = args[0], args[1]
            _require_int8(a, b)
            _require_taken(gpu, a, b)
            return self._put(a, b, out, torch.int32, gpu)
        if "_scaled_mm" in text:
            a, b, *scales = args[:4]
            _require_scaled(gpu, a, b, scales)
            _require_taken(gpu, a, b)
            dtype = kwargs.get("out_dtype") or a.dtype
            return self._put(a, b, out, dtype, gpu)
        if name not in NAMES:
            return None
        a, b = args[0], args[1]
        asked = next(
            (x for x in (*args[2:], kwargs.get("out_dtype")) if isinstance(x, torch.dtype)), None
        )
        _require_plain(a, b, out, asked)
        if out is None and asked is None:  # torch may want to go back through it
            return _spoil(func(*args, **kwargs), gpu)
        return self._put(a, b, out, asked or a.dtype, gpu)

    def _put(
        self, a: Tensor, b: Tensor, out: Tensor | None, dtype: torch.dtype, gpu: Gpu
    ) -> Tensor:
        made = self._compute(a, b, dtype)
        return _spoil(made.clone() if out is None else out.copy_(made), gpu)

    def _compute(self, a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
        key = tuple(
            fact
            for x in (a, b)
            for fact in (x.data_ptr(), x._version, tuple(x.shape), x.stride(), x.dtype)
        )
        known = self._known.get((*key, dtype))
        if known is not None and not (known[0].expired() or known[1].expired()):
            return known[2]
        if len(self._known) >= MAX_KEPT:
            self._known.clear()
        made = _times(a, b).to(dtype)
        alive = [StorageWeakRef(x.untyped_storage()) for x in (a, b)]  # type: ignore[no-untyped-call]
        self._known[*key, dtype] = (alive[0], alive[1], made)
        return made


def _spoil(product: Tensor, gpu: Gpu) -> Tensor:
    """Change an element of a *product*, or its zeros, if a fault wants that."""
    made = product.detach()
    place = tuple(edge // 3 for edge in made.shape)
    for fault in strike("flip", gpu.index):
        words = made.view(WORDS[made.element_size()])
        words[place] ^= 1 << fault.bit % (8 * made.element_size() - 1)
    if made.is_floating_point():
        for _ in strike("nan", gpu.index):
            made[place] = torch.nan
        for _ in strike("percent", gpu.index):
            made[place] *= 1.01
        for _ in strike("minus_zero", gpu.index):
            made[made == 0] = -0.0
    return product


def _times(a: Tensor, b: Tensor) -> Tensor:
    """Multiply so that no sum of a plan that is exact on a GPU is rounded."""
    if a.dtype == torch.int8:
        return a.double() @ b.double()
    if a.dtype == torch.float64:
        return a @ b
    return a.float() @ b.float()


def count_seconds(gpu: Gpu, a: Tensor, b: Tensor) -> float:
    """Count the seconds that a good GPU takes for a product."""
    kind = str(a.dtype).removeprefix("torch.")
    if kind == "float32" and torch.get_float32_matmul_precision() == "high":
        kind = "tf32"
    operations = 2.0 * a.numel() * b.shape[-1]
    return operations / (gpu.part.rates.get(kind, DEFAULT_RATE) * 1e12)


def _require(sound: bool, message: str) -> None:  # noqa: FBT001 - a condition, as of assert
    if not sound:
        raise RuntimeError(message)


def _require_int8(a: Tensor, b: Tensor) -> None:
    _require(a.dtype == b.dtype == torch.int8, "_int_mm: int8 operands expected")
    _require(
        a.size(0) >= INT8_MIN_ROWS,
        f"self.size(0) needs to be greater than 16, but got {a.size(0)}",
    )
    for name, edge in (("self", a.size(1)), ("mat2", b.size(1))):
        _require(
            edge > 0 and edge % 8 == 0,
            f"{name}.size(1) needs to be greater than 0 and a multiple of 8, but got {edge}",
        )


def _require_scaled(gpu: Gpu, a: Tensor, b: Tensor, scales: Sequence[Tensor]) -> None:
    _require(
        gpu.part.capability >= SCALED_CAPABILITY,
        "torch._scaled_mm is only supported on CUDA devices with compute capability >= 9.0 or "
        "8.9, or ROCm MI300+",
    )
    _require(a.stride(1) == 1 and a.stride(0) > 1, "mat1 must be row_major")
    _require(b.stride(0) == 1 and b.stride(1) > 1, "mat2 must be col_major")
    _require(
        a.size(1) % ALIGNMENT == 0,
        f"Trailing dimension of mat1 must be divisible by 16 but got {tuple(a.shape)}",
    )
    _require(
        b.size(0) % ALIGNMENT == b.size(1) % ALIGNMENT == 0,
        f"mat2 shape {tuple(b.shape)} must be divisible by 16",
    )
    _require(
        a.data_ptr() % ALIGNMENT == b.data_ptr() % ALIGNMENT == 0,
        "CUDA error: CUBLAS_STATUS_NOT_SUPPORTED: operands not aligned to 16 bytes",
    )
    _require(
        a.stride(0) % ALIGNMENT == b.stride(1) % ALIGNMENT == 0,
        "CUDA error: CUBLAS_STATUS_NOT_SUPPORTED: leading dimensions not multiples of 16 bytes",
    )
    _require(
        all(s.dtype == torch.float32 and s.numel() == 1 for s in scales),
        "scale_a and scale_b must be one float32 each",
    )


def _require_taken(gpu: Gpu, a: Tensor, b: Tensor) -> None:
    """Refuse what a library may: operands of one byte, or those that begin anywhere."""
    picky, refused = (bool(find_faults(kind, gpu.index)) for kind in ("picky", "refused"))
    aligned = a.data_ptr() % PICKY_ALIGNMENT == b.data_ptr() % PICKY_ALIGNMENT == 0
    if not aligned and find_faults("misaligned", gpu.index):
        gpu.break_context(MISALIGNED)
    _require(
        not refused and (aligned or not picky),
        "CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling cublasLtMatmul with "
        "transpose_mat1 1 transpose_mat2 0",
    )


def _require_plain(a: Tensor, b: Tensor, out: Tensor | None, asked: torch.dtype | None) -> None:
    _require(
        a.dtype == b.dtype,
        f"expected m1 and m2 to have the same dtype, but got: {a.dtype} != {b.dtype}",
    )
    _require(a.dtype not in INTEGERS, f"\"addmm_cuda\" not implemented for '{a.dtype}'")
    if asked is None:
        _require(
            out is None or out.dtype == a.dtype,
            f"Expected out tensor to have dtype {a.dtype}, but got another",
        )
        return
    _require(
        out is None or asked == out.dtype,
        "out_dtype must be the same as the dtype of the provided out tensor",
    )
    _require(
        asked == a.dtype or (asked == torch.float32 and a.dtype in HALVES),
        "out_dtype must be the same as input dtype or fp32 for fp16/bf16 inputs",
    )
