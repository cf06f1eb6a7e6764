"""The peak of a part: from its data sheet, or from its clock and its units."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hpcverify.check import Context
from hpcverify.telemetry import cpu
from hpcverify_checks.common.parts import look_up_spec

LANE_BITS = {"fp64": 64, "fp32": 32}
FMA_UNITS, OPERATIONS_OF_FMA = 2, 2


@dataclass(frozen=True, slots=True)
class Peak:
    """The theoretical peak of a part (GFLOP/s), and where it comes from."""

    value: float
    derived: bool
    source: str


def find_peak(ctx: Context, dtype: str) -> Peak | None:
    """Find the dense peak of the part: from its data sheet, or derived for a CPU."""
    if ctx.device.kind == "cpu":
        return derive_peak(cpu.describe_cpu().facts, cpu.read_cpuinfo(), dtype)
    spec = look_up_spec(ctx, ctx.device.part)
    if spec is None or dtype not in spec.peaks:
        return None
    return Peak(spec.peaks[dtype], False, f"the data sheet of {spec.name}")  # noqa: FBT003 - named in the class


def derive_peak(facts: Mapping[str, str], info: Mapping[str, str], dtype: str) -> Peak | None:
    """
    Multiply cores, clock and vector width, where all are known (fp32 and fp64).

    Assumes two FMA units per core, as most server cores have; some have one for their
    widest vectors, and a virtual machine may report the wrong clock or cores. So the
    result is shown, but never used as a limit.
    """
    clock = facts.get("max_mhz") or info.get("cpu MHz")
    if dtype not in LANE_BITS or clock is None or "cores" not in facts:
        return None
    lanes = int(facts["vector_bits"]) // LANE_BITS[dtype]
    per_cycle = lanes * FMA_UNITS * OPERATIONS_OF_FMA
    cores, mhz = int(facts["cores"]), float(clock)
    return Peak(
        cores * mhz * per_cycle / 1e3,
        True,  # noqa: FBT003 - named in the class
        f"{cores} cores x {mhz:.0f} MHz x {per_cycle} operations per cycle "
        f"(assuming {FMA_UNITS} FMA units of {lanes} lanes)",
    )
