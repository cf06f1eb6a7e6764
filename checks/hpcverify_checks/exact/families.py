"""
The types of operands, and the plans whose products are exact with each.

Every type has an accumulator that holds integers exactly up to some magnitude, and
operands that hold integers up to another. Both limit the plans; the certificate of a
plan's actual operands proves that it stayed within them (see `exact`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, replace
from math import sqrt
from typing import Any

from hpcverify_checks.exact.products import Operands, PlannedOperands, ProductPlan, Shape
from hpcverify_checks.exact.sparse import BF16, E4M3, FP16, FP32, FP64, SparseOperands, SparsePlan
from hpcverify_checks.node.dtypes import DTYPES, Dtype

SINGLE_LIMIT = 2**24 - 1
"""fp32 holds every integer up to one more than this, and tensor cores sum bf16, fp16 and
tf32 in fp32 registers without loss up to here; one more is too many for Volta, which
aligns to 23 bits (arXiv 2511.10909 for Volta to Blackwell)."""
DOUBLE_LIMIT = 2**53
FP8_LIMIT = 2**14 - 1
"""Hopper and Ada keep 13 fractional bits of a sum of fp8 products until it is moved to
fp32; the library chooses when (arXiv 2511.10909)."""
INT_LIMIT = 2**31 - 1
NARROW_LIMIT = 2**8
"""bf16 holds every integer up to here, so that even sums that a CPU's library rounds to
bf16 on the way are exact."""

BYTE_BOUND, FINE_BOUND = 255, 2047
"""The largest odd integers before which bf16 (8 bits), fp16 and tf32 (11) hold all."""
FP8_BOUND, INT8_BOUND, DOUBLE_BOUND = 15, 127, 2**20 - 1
EVEN_INT8_BOUND = 79
"""The largest bound that both operands of int8 may have. A CPU without VNNI sums pairs of
products in 16 bits, which saturate, and adds 128 to one operand to make it unsigned
(vpmaddubsw; oneDNN does so below AVX2_VNNI and AVX512_CORE_VNNI). The library chooses which
operand, so that two products of operands within +-a and +-b sum to 2 (128 + a) b at most."""
SMALL_FP8_BOUND, FP8_BIAS = 7, 2**13
"""The bound that leaves room for a bias in 14 bits, and the bias."""
SINGLE_POWERS = range(-14, 9)
"""Powers of two that scale rows and columns: 1 to 255 stay normal numbers of fp16."""
FP8_POWERS = range(-6, 5)
"""1 to 15 stay normal numbers of e4m3, whose largest is 448."""
DOUBLE_POWERS = range(-60, 61)
MAX_SIGMAS = 6
"""The most standard deviations between the largest output and zero."""
NORM_SPREAD = 4.0
"""The largest norm exceeds the mean by this times the root of the depth."""

PlanMaker = Callable[[int], tuple[ProductPlan, ...]]
"""Makes the plans for products of a depth."""


def make_bf16_plans(depth: int) -> tuple[ProductPlan, ...]:
    """Make the plans that are exact with 8-bit operands and an fp32 accumulator."""
    names = "plain", "bias+", "bias-", "scaled"
    return _make_four_plans(depth, names, 1, BYTE_BOUND, SINGLE_LIMIT, SINGLE_POWERS)


def _make_four_plans(  # noqa: PLR0917 - as they follow in `ProductPlan`
    depth: int, names: Sequence[str], key: int, bound: int, limit: int, powers: range
) -> tuple[ProductPlan, ...]:
    wide = choose_partner_bound(depth, bound, limit, bound)
    half = choose_partner_bound(depth, bound, limit // 2, bound)
    bias = (limit + 1) // 2
    plain, more, less, scaled = names
    return (
        ProductPlan(plain, key, bound, wide, limit),
        ProductPlan(more, key + 1, bound, half, limit, bias=bias),
        ProductPlan(less, key + 2, half, bound, limit, bias=-bias),
        ProductPlan(scaled, key + 3, wide, bound, limit, powers=powers),
    )


def make_fp32_plans(depth: int) -> tuple[ProductPlan, ...]:
    """Add plans that use the 11 bits of fp16 and tf32, first in A and then in B."""
    wide = choose_partner_bound(depth, FINE_BOUND, SINGLE_LIMIT, FINE_BOUND)
    return (
        *make_bf16_plans(depth),
        ProductPlan("fine a", 5, FINE_BOUND, wide, SINGLE_LIMIT),
        ProductPlan("fine b", 6, wide, FINE_BOUND, SINGLE_LIMIT),
    )


def make_fp64_plans(depth: int) -> tuple[ProductPlan, ...]:
    """Make the plans for an fp64 accumulator."""
    names = "double", "double+", "double-", "double scaled"
    return _make_four_plans(depth, names, 7, DOUBLE_BOUND, DOUBLE_LIMIT, DOUBLE_POWERS)


def make_fp8_plans(depth: int) -> tuple[ProductPlan, ...]:
    """Make the plans for e4m3 operands and Hopper's 14-bit accumulator."""
    wide = choose_partner_bound(depth, FP8_BOUND, FP8_LIMIT, FP8_BOUND)
    half = choose_partner_bound(depth, SMALL_FP8_BOUND, FP8_LIMIT - FP8_BIAS, SMALL_FP8_BOUND)
    return (
        ProductPlan("fp8 a", 11, FP8_BOUND, wide, FP8_LIMIT),
        ProductPlan("fp8 b", 12, wide, FP8_BOUND, FP8_LIMIT),
        ProductPlan("fp8 scaled", 13, FP8_BOUND, wide, FP8_LIMIT, powers=FP8_POWERS),
        ProductPlan("fp8 bias", 18, SMALL_FP8_BOUND, half, FP8_LIMIT, bias=FP8_BIAS),
    )


def make_int8_plans(_depth: int) -> tuple[ProductPlan, ...]:
    """Make the plans for int8 operands and sums of pairs that fit into 16 bits."""
    return (
        ProductPlan("int8", 20, EVEN_INT8_BOUND, EVEN_INT8_BOUND, INT_LIMIT),
        ProductPlan("int8 a", 21, INT8_BOUND, 1, INT_LIMIT),
        ProductPlan("int8 b", 22, 1, INT8_BOUND, INT_LIMIT),
    )


def make_narrow_plans(depth: int) -> tuple[ProductPlan, ...]:
    """Make the plans whose sums bf16 itself holds."""
    wide = choose_partner_bound(depth, 1, NARROW_LIMIT, BYTE_BOUND)
    half = choose_partner_bound(depth, 1, NARROW_LIMIT // 2, BYTE_BOUND)
    return (
        ProductPlan("narrow", 16, 1, wide, NARROW_LIMIT),
        ProductPlan("narrow scaled", 17, wide, 1, NARROW_LIMIT, powers=SINGLE_POWERS),
        ProductPlan("narrow bias", 19, 1, half, NARROW_LIMIT, bias=NARROW_LIMIT // 2),
    )


def choose_partner_bound(depth: int, a: int, limit: int, max_bound: int) -> int:
    """
    Choose the largest bound of B, up to *max_bound*, that is exact with the bound *a* of A.

    Raises:
        ValueError: no bound keeps products of this *depth* within *limit*.

    """
    low, high = 0, max_bound
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (
            (middle, high) if estimate_certificate(depth, a, middle) <= limit else (low, middle - 1)
        )
    if not low:
        raise ValueError(f"no product of depth {depth} is exact with operands of {a}")
    return low


def estimate_certificate(depth: int, a: int, b: int) -> float:
    """Estimate the certificate of a plan: half of the norms' product and the output."""
    power = sqrt(a * (a + 1) * b * (b + 1)) / 3
    norms = depth * power * (1 + NORM_SPREAD / sqrt(depth))
    return (norms + MAX_SIGMAS * sqrt(depth) * power) / 2 + 2


SMALL_FACTORS, USUAL_FP32, LARGE_FP32 = range(-18, 11), range(-80, 110), range(119, 128)
"""Exponents of fp32: of the full operand, and of the thin one where products are normal and
where many are infinite."""
SPARSE_BF16 = SparsePlan("sparse bf16", 23, BF16, FP32, thin=range(-30, 91), full=range(-30, 31))
SPARSE_HALF = SparsePlan("sparse half", 24, FP16, FP32, thin=range(16), full=range(-7, 8))
SPARSE_FP8 = SparsePlan("sparse fp8", 25, E4M3, FP32, thin=range(8), full=range(-3, 4))
"""Tensor cores multiply these exactly. They align products to the largest exponent, and a
zero may count as the smallest of its type: times the largest of B it outranks no product."""
SPARSE_FP32 = SparsePlan("sparse fp32", 26, FP32, FP32, USUAL_FP32, SMALL_FACTORS, (LARGE_FP32,))
"""Without subnormal numbers: CUDA code may be compiled to flush them in fp32 (-ftz), and
cuBLAS does not say what it does."""
SPARSE_SUBNORMAL = SparsePlan(
    "sparse fp32 subnormal",
    27,
    FP32,
    FP32,
    USUAL_FP32,
    SMALL_FACTORS,
    bands=(range(-130, -118), LARGE_FP32),
)
SPARSE_FP64 = SparsePlan(
    "sparse fp64",
    28,
    FP64,
    FP64,
    thin=range(-900, 1000),
    full=range(-47, 11),
    bands=(range(-1026, -996), range(1015, 1024)),
)
"""It has subnormal numbers: no GPU flushes them in fp64 (PTX ISA: there is no .ftz for it)."""
SPARSE_NARROW = SparsePlan(
    "sparse narrow", 29, BF16, BF16, USUAL_FP32, SMALL_FACTORS, (LARGE_FP32,)
)
"""Without subnormal numbers: a CPU's instructions for bf16 flush them (VDPBF16PS)."""


MAX_DEPTH = 2**15
"""The cost of comparing does not grow with the depth: here it is a fortieth of a
product in bf16 on an H100."""


@dataclass(frozen=True, slots=True)
class Family(Dtype):
    """A type of operands, and the plans that are exact with it."""

    make_plans: PlanMaker = make_bf16_plans
    sparse: SparsePlan | None = None
    """The plan with one product in each output; None where no product can be rounded."""
    depth: int = MAX_DEPTH
    """The depth of products on a GPU."""
    precision: str = "highest"
    wider: str = ""
    """Holds the sum of n equal values exactly, up to 2^16 of them in bf16 and 2^29 in
    fp32. In the type itself even three times a value is rounded."""

    def list_operands(self, shape: Shape, draw: int) -> list[PlannedOperands]:
        """List the operands of all plans for products of *shape*."""
        plans = self.make_plans(shape.depth)
        made: list[PlannedOperands] = [Operands(plan, shape, draw) for plan in plans]
        return [*made, *(SparseOperands(plan, shape, draw) for plan in self.list_sparse())]

    def list_sparse(self) -> list[SparsePlan]:
        """List the sparse plans: two if integers lack some significands of the operands."""
        if self.sparse is None:
            return []
        wide = self.sparse.operand.precision > FINE_BOUND.bit_length()
        return [self.sparse, self.sparse.turned] if wide else [self.sparse]

    def list_unmade(self, plans: Collection[str]) -> list[str]:
        """List what products of this type by *plans* do not exercise, in words."""
        if self.sparse is None:
            return ["sums that fill the accumulator"]
        made = self.sparse.name in plans
        exercised = {
            "rounded outputs": made and self.sparse.rounds,
            "subnormal numbers": made and self.sparse.makes_subnormals,
            "infinity": made and self.sparse.makes_infinity,
            f"outputs in {self.job_output}": self.output == self.job_output,
        }
        return [
            *(what for what, here in exercised.items() if not here),
            "sums that round",
            "infinite operands",
            "NaN",
        ]


def make_family(dtype: str, make_plans: PlanMaker, **settings: Any) -> Family:
    """Make the family of *dtype*: its plans, and other *settings* than the defaults."""
    return Family(**asdict(DTYPES[dtype]), make_plans=make_plans, **settings)


FAMILIES = {
    family.name: family
    for family in (
        make_family("bf16", make_bf16_plans, sparse=SPARSE_BF16, wider="float32"),
        make_family("fp16", make_fp32_plans, sparse=SPARSE_HALF),
        make_family("tf32", make_fp32_plans, sparse=SPARSE_HALF, precision="high"),
        make_family("fp32", make_fp32_plans, sparse=SPARSE_FP32, wider="float64"),
        make_family("fp64", make_fp64_plans, sparse=SPARSE_FP64, depth=2**12),
        make_family("fp8", make_fp8_plans, sparse=SPARSE_FP8, depth=2**11),
        make_family("int8", make_int8_plans),
    )
}
CPU_DEPTH, NARROW_DEPTH = 2048, 128
CPU_FAMILIES = {
    "fp32": replace(FAMILIES["fp32"], sparse=SPARSE_SUBNORMAL),
    "fp64": FAMILIES["fp64"],
    "int8": FAMILIES["int8"],
    "bf16": replace(
        FAMILIES["bf16"],
        make_plans=make_narrow_plans,
        sparse=SPARSE_NARROW,
        depth=NARROW_DEPTH,
        output="bfloat16",
    ),
}
"""The types that a CPU multiplies if it has units for them. There torch rounds products of
16-bit operands to 16 bits, and does not promise to do so only once."""
