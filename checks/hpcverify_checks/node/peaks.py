"""The peak of a part: from its data sheet, or from its clock and its units."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import hpcverify.check as hv
from hpcverify.telemetry import cpu
from hpcverify_checks.node.parts import look_up_spec

LANE_BITS = {"fp64": 64, "fp32": 32}
FMA_UNITS, OPERATIONS_OF_FMA = 2, 2
AMX_OPERATIONS = {"bf16": ("amx_bf16", 1024), "int8": ("amx_int8", 2048)}
"""The flag of a core with tiles for a type, and their operations per cycle: 16 x 16 sums of 32
or 64 products in 16 cycles (Intel 64 and IA-32 Architectures Optimization Reference Manual,
"Intel AMX")."""
VIRTUAL_FLAG = "hypervisor"
NO_CLOCK = (
    "no share of a peak: the highest clock of its cores is not known, as in a virtual machine"
)
"""The coverage of a CPU says so if its clock is a nominal one, or not known."""


@dataclass(frozen=True, slots=True)
class Peak:
    """The theoretical peak of a part (GFLOP/s), and where it comes from."""

    value: float
    derived: bool
    source: str


def find_peak(ctx: hv.Context, dtype: str) -> Peak | None:
    """Find the dense peak of the part: from its data sheet, or derived for a CPU."""
    if ctx.device.kind == "cpu":
        return derive_peak(cpu.describe_cpu().facts, cpu.read_cpuinfo(), dtype)
    spec = look_up_spec(ctx, ctx.device.part)
    if spec is None or dtype not in spec.peaks:
        return None
    return Peak(spec.peaks[dtype], False, f"the data sheet of {spec.name}")  # noqa: FBT003 - named in the class


def derive_peak(facts: Mapping[str, str], info: Mapping[str, str], dtype: str) -> Peak | None:
    """
    Multiply cores, clock and the width of vectors or tiles, where all are known.

    Assumes two FMA units per core, as most server cores have; some have one for their
    widest vectors. So the result is shown, but never used as a limit. The clock is the
    highest that the kernel's driver allows. A virtual machine has the nominal one, which
    its cores exceed, and /proc/cpuinfo that of the moment: a share of those says nothing.
    """
    flags, clock = cpu.list_flags(info), facts.get("max_mhz")
    if clock is None or "cores" not in facts or VIRTUAL_FLAG in flags:
        return None
    cores, mhz = int(facts["cores"]), float(clock)
    if dtype in LANE_BITS:
        lanes = int(facts["vector_bits"]) // LANE_BITS[dtype]
        per_cycle = lanes * FMA_UNITS * OPERATIONS_OF_FMA
        units = f"assuming {FMA_UNITS} FMA units of {lanes} lanes"
    elif dtype in AMX_OPERATIONS and AMX_OPERATIONS[dtype][0] in flags:
        per_cycle, units = AMX_OPERATIONS[dtype][1], "AMX"
    else:
        return None
    return Peak(
        cores * mhz * per_cycle / 1e3,
        True,  # noqa: FBT003 - named in the class
        f"{cores} cores x {mhz:.0f} MHz x {per_cycle} operations per cycle ({units})",
    )
