"""
Units of torch's vector kernels, which use the widest registers that the core has.

Random bits as they are make floats of all kinds: full significands, subnormals,
infinities. NaN has many encodings, of which any may come out, so it becomes zero.
Sums, products, quotients, roots and conversions have one right answer in IEEE 754;
transcendental functions have one for each library, which all cores must share. So has
torch's own square root: with MKL it is off by a bit in one of 80 doubles. Its reciprocal
root divides by the root that the hardware gives.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from hpcverify_checks.cpu_units.proofs import (
    is_exponential,
    is_logarithm,
    is_power,
    is_quotient,
    is_root,
)
from hpcverify_checks.cpu_units.units import DATA_BYTES, MODULUS, Unit

if TYPE_CHECKING:
    import torch
    from torch import Tensor

PROVEN = 4
"""Elements of each answer that are proven."""
SIGNIFICAND_BITS, ONE_EXPONENT = 52, 0x3FF
EXPONENT_BITS = 4
"""Random exponents make factors from 2^-8 to 2^7."""


def list_vector_units() -> Iterator[Unit]:
    """List the units of torch."""
    yield Unit("vector integers", compute_integers, proof=prove_integers)
    yield Unit("vector floats", compute_floats)
    yield Unit("quotients and roots", compute_quotients, proof=prove_quotients)
    yield Unit(
        "transcendental functions",
        compute_transcendentals,
        proof=prove_transcendentals,
        universal=False,
        size=DATA_BYTES // 2,
    )


def _view(data: bytes, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    import torch

    both = torch.frombuffer(bytearray(data), dtype=dtype)
    return both[: len(both) // 2], both[len(both) // 2 :]


def _unview(made: bytes, dtype: torch.dtype, count: int) -> tuple[Tensor, ...]:
    """View *made* as *count* vectors of one type: the first that were packed."""
    import torch

    every = torch.frombuffer(bytearray(made), dtype=dtype)
    return tuple(every.chunk(count))


def _pack(*vectors: Tensor) -> bytes:
    solid = [v.contiguous() for v in vectors]
    return b"".join(ctypes.string_at(v.data_ptr(), v.nbytes) for v in solid)


def compute_integers(data: bytes) -> bytes:
    """Compute with integers of 64, 32, 16 and 8 bits, modulo their size."""
    import torch

    out: list[Tensor] = []
    for dtype in (torch.int64, torch.int32, torch.int16, torch.uint8):
        a, b = _view(data, dtype)
        out += (a * b + a, (a ^ b) - (a & b), a << (b & 7), torch.minimum(a, b), a.cumsum(0))
    return _pack(*out)


def prove_integers(data: bytes, made: bytes) -> bool:
    """Prove some products of 64 bits with Python's integers."""
    import torch

    a, b = _view(data, torch.int64)
    (answers,) = _unview(made[: len(data) // 2], torch.int64, 1)
    return all(
        (x * y + x - answer) % MODULUS == 0
        for i in _choose(data, len(a))
        for x, y, answer in [(int(a[i]), int(b[i]), int(answers[i]))]
    )


def _choose(data: bytes, count: int) -> Iterator[int]:
    for k in range(PROVEN):
        yield int.from_bytes(data[4 * k : 4 * k + 4], "little") % count


def _drop_nan(values: Tensor) -> Tensor:
    import torch

    return torch.where(torch.isnan(values), torch.zeros_like(values), values)


def compute_floats(data: bytes) -> bytes:
    """Add, subtract, multiply and convert floats of any bits."""
    import torch

    out: list[Tensor] = []
    for dtype, narrow in ((torch.float64, torch.float32), (torch.float32, torch.bfloat16)):
        a, b = (_drop_nan(half) for half in _view(data, dtype))
        out += (_drop_nan(v) for v in (a + b, a - b, a * b))
        out += (_drop_nan(a.to(narrow)), _drop_nan(b.to(torch.float16)))
    return _pack(*out)


def compute_quotients(data: bytes) -> bytes:
    """Divide floats of any bits, and one by their roots."""
    import torch

    out: list[Tensor] = []
    for dtype in (torch.float64, torch.float32):
        a, b = (_drop_nan(half) for half in _view(data, dtype))
        out += (_drop_nan(a / b), _drop_nan(a.abs().rsqrt()))
    integers, divisors = _view(data, torch.int64)
    return _pack(*out, integers // (divisors | 1))


def prove_quotients(data: bytes, made: bytes) -> bool:
    """Prove some quotients and inverse roots of doubles."""
    import torch

    a, b = (_drop_nan(half) for half in _view(data, torch.float64))
    quotients, inverse_roots = _unview(made[: len(data)], torch.float64, 2)
    for i in _choose(data, len(a)):
        x, y = float(a[i]), float(b[i])
        if not (math.isfinite(x) and math.isfinite(y) and y):
            continue
        root = math.sqrt(abs(x))
        if not (is_quotient(x, y, float(quotients[i])) and is_root(abs(x), root)):
            return False
        if root and not is_quotient(1.0, root, float(inverse_roots[i])):
            return False
    return True


def _scale(bits: Tensor, *, spread: bool) -> Tensor:
    """Make doubles in [1, 2) of random *bits*; with *spread*, times a power of two."""
    import torch

    low = bits & (2**SIGNIFICAND_BITS - 1)
    high = (bits >> (64 - EXPONENT_BITS)) if spread else torch.zeros_like(bits)
    scaled: Tensor = (low | ((high + ONE_EXPONENT) << SIGNIFICAND_BITS)).view(torch.float64)
    return scaled


def _make_arguments(data: bytes) -> tuple[Tensor, Tensor]:
    """Make bases from 2^-8 to 2^8, and exponents within +-50."""
    import torch

    a, b = _view(data, torch.int64)
    return _scale(a, spread=True), (_scale(b, spread=False) - 1.5) * 100


def compute_transcendentals(data: bytes) -> bytes:
    """Compute transcendental functions of doubles and floats."""
    import torch

    base, exponent = _make_arguments(data)
    out: list[Tensor] = []
    for x, y in ((base, exponent), (base.float(), exponent.float())):
        out += (torch.pow(x, y), torch.exp(y), torch.log(x), torch.sin(y), torch.cos(y))
        out += (torch.tan(y), torch.tanh(x), torch.erf(x), torch.atan2(x, y), torch.sqrt(x))
    return _pack(*(_drop_nan(v) for v in out))


def prove_transcendentals(data: bytes, made: bytes) -> bool:
    """Prove some powers, exponentials and logarithms of doubles."""
    import torch

    base, exponent = _make_arguments(data)
    size = 3 * base.nbytes
    powers, exponentials, logarithms = _unview(made[:size], torch.float64, 3)
    for i in _choose(data, len(base)):
        x, y = float(base[i]), float(exponent[i])
        power, exponential = float(powers[i]), float(exponentials[i])
        if not (is_power(x, y, power) and is_exponential(y, exponential)):
            return False
        if not is_logarithm(x, float(logarithms[i])):
            return False
    return True
