"""What the estimates of several checks need to know of a part, from the inventory alone."""

from __future__ import annotations

import hpcverify.check as hv
from hpcverify.units import GIB
from hpcverify_checks.node.dtypes import DTYPES

LARGEST_GPU_GIB = 288
"""The most that a GPU in the data sheets has, assumed where a GPU does not say."""
SLOWEST_MEMORY_BYTES = 150e9
"""Bytes per second: half of what the slowest part in the data sheets (L4, 300 GB/s) has."""


def count_dtypes(ctx: hv.Context) -> int:
    """Count the types that the device of *ctx* may have units for, at most."""
    facts = _read_facts(ctx)
    if ctx.device.kind == "cpu":
        return len(facts["dtypes"].split()) if "dtypes" in facts else len(DTYPES)
    if "compute_capability" not in facts:
        return len(DTYPES)
    major, _, minor = facts["compute_capability"].partition(".")
    capability = (int(major), int(minor))
    return sum(capability >= dtype.capability for dtype in DTYPES.values())


def find_gpu_bytes(ctx: hv.Context) -> int:
    """Find how much memory the GPU of *ctx* has."""
    number, _, _ = _read_facts(ctx).get("memory", f"{LARGEST_GPU_GIB} GiB").partition(" ")
    return int(number) * GIB


def count_threads(ctx: hv.Context) -> int:
    """Count the hardware threads of the host; 0 if they are not known."""
    part = ctx.inventory.find_part("cpu")
    return int(part.facts.get("threads", "0")) if part else 0


def count_gpus(ctx: hv.Context) -> int:
    """Count the GPUs that can be computed on."""
    return sum(device.kind == "cuda" for device in ctx.inventory.devices)


def _read_facts(ctx: hv.Context) -> dict[str, str]:
    part = ctx.inventory.find_part(ctx.device.part)
    return part.facts if part else {}
