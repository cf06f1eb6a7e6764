"""
Lines of the kernel: those of faults, by the row that speaks for them, and ordinary ones.

They follow the format strings of several kernels, from 3.10 (RHEL 7) to 6.12, in the files
that the table names. `ORDINARY` are what healthy machines write that looks like a fault, and
what a user's program provokes outside of the libraries of NVIDIA.
"""

from __future__ import annotations

import csv
import random
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

HERE = Path(__file__).parent


def _read_faulty() -> dict[str, list[str]]:
    """Read `kernel_faulty.csv`: the lines of each code of `lines.csv`."""
    lines: dict[str, list[str]] = {}
    with (HERE / "kernel_faulty.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            lines.setdefault(row["code"], []).append(row["line"])
    return lines


FAULTY: Mapping[str, Sequence[str]] = _read_faulty()
ORDINARY = (HERE / "kernel_ordinary.log").read_text().splitlines()
COMMON = (HERE / "kernel_common.log").read_text().splitlines()
"""What machines write while they boot and work; each has two numbers."""


def compose_ordinary_log(rng: random.Random, count: int) -> list[str]:
    """Compose a log of *count* lines, half of them of `ORDINARY` with other numbers."""
    composed: list[str] = []
    while len(composed) < count:
        composed.append(rng.choice(COMMON).format(rng.randrange(64), rng.randrange(64)))
        composed.append(re.sub(r"\b7\b", str(rng.randrange(10, 99)), rng.choice(ORDINARY)))
    return composed[:count]
