"""What GPUs that are not there are like, when they are well."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

INTEGRATED = "REHEARSAL_INTEGRATED"
"""The environment variable that is 1 where the GPUs share the memory of their host."""


TYPES = ("float64", "float32", "tf32", "float16", "bfloat16", "float8_e4m3fn", "int8")


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


def _read_parts() -> dict[str, Part]:
    with Path(__file__).with_suffix(".csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    return {
        row["part"]: Part(
            key=row["key"],
            name=row["name"],
            capability=(int(row["major"]), int(row["minor"])),
            sms=int(row["sms"]),
            memory=float(row["memory"]),
            peer=float(row["peer"]),
            pcie=float(row["pcie"]),
            rates={name: float(row[name]) for name in TYPES if row[name]},
            architecture=row["architecture"],
        )
        for row in rows
    }


PARTS = _read_parts()
"""
By the name that a rehearsal gives them. Those of an MI300X are two thirds of its sheet's peaks
(AMD CDNA 3 white paper; MI300X data sheet).
"""
