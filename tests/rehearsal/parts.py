"""What GPUs that are not there are like, when they are well."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

INTEGRATED = "REHEARSAL_INTEGRATED"
"""The environment variable that is 1 where the GPUs share the memory of their host."""


@dataclass(frozen=True, slots=True)
class Part:
    """A GPU as torch describes it, and how fast a good one is."""

    key: str
    """Of its data sheet."""
    name: str
    capability: tuple[int, int]
    sms: int
    memory: float
    """Bandwidth, in GB/s."""
    peer: float
    """Bandwidth to another GPU of its node, in GB/s."""
    pcie: float
    """Bandwidth to the host, in GB/s."""
    rates: Mapping[str, float]
    """10^12 operations per second that it sustains, by torch's type of operands; ``tf32``
    is that of float32 with less precision."""
    architecture: str = ""
    """Of a GPU of AMD, as HIP names it: torch is then a build for ROCm."""


PARTS = {
    "h100": Part(
        "h100-sxm5-80gb",
        "NVIDIA H100 80GB HBM3",
        (9, 0),
        132,
        memory=2900,
        peer=390,
        pcie=55,
        rates={
            "float64": 58,
            "float32": 52,
            "tf32": 400,
            "float16": 720,
            "bfloat16": 720,
            "float8_e4m3fn": 1300,
            "int8": 1400,
        },
    ),
    "h200": Part(
        "h200-sxm",
        "NVIDIA H200",
        (9, 0),
        132,
        memory=4200,
        peer=396,
        pcie=55,
        rates={
            "float64": 58,
            "float32": 52,
            "tf32": 400,
            "float16": 720,
            "bfloat16": 720,
            "float8_e4m3fn": 1300,
            "int8": 1400,
        },
    ),
    "a100": Part(
        "a100-sxm4-80gb",
        "NVIDIA A100-SXM4-80GB",
        (8, 0),
        108,
        memory=1800,
        peer=274,
        pcie=25,
        rates={
            "float64": 18,
            "float32": 18.5,
            "tf32": 130,
            "float16": 268,
            "bfloat16": 268,
            "int8": 500,
        },
    ),
    "l40s": Part(
        "l40s",
        "NVIDIA L40S",
        (8, 9),
        142,
        memory=780,
        peer=25,
        pcie=25,
        rates={
            "float64": 1.3,
            "float32": 60,
            "tf32": 120,
            "float16": 240,
            "bfloat16": 240,
            "float8_e4m3fn": 480,
            "int8": 480,
        },
    ),
    "b200": Part(
        "b200-sxm",
        "NVIDIA B200",
        (10, 0),
        148,
        memory=7000,
        peer=746,
        pcie=55,
        rates={
            "float64": 34,
            "float32": 70,
            "tf32": 800,
            "float16": 1550,
            "bfloat16": 1550,
            "float8_e4m3fn": 3000,
            "int8": 3000,
        },
    ),
    # Two thirds of its sheet's peaks (AMD CDNA 3 white paper; MI300X data sheet).
    "mi300x": Part(
        "",
        "AMD Instinct MI300X",
        (9, 4),
        304,
        memory=3500,
        peer=43,
        pcie=42,
        rates={
            "float64": 109,
            "float32": 109,
            "float16": 870,
            "bfloat16": 870,
            "int8": 1740,
        },
        architecture="gfx942",
    ),
}
"""By the name that a rehearsal gives them."""
