"""
Faults of GPUs that only CUDA tells of, and what hpcverify must make of each.

A fault is one of the stand-in's (see `faults`) on a node that is healthy but for it. Each
has a node of its own, which runs all the checks that can meet the fault. `rehearsed.csv` has
a line for each outcome of a fault, the cheap faults first: those whose first call fails are
what one GPU does to every process, and NVML may name it (`test_cuda_errors`). Where only one
GPU has the fault it is GPU 1. A GPU needs three siblings to stand out. `p2p`, with one worker
for all GPUs, says of none what concerns all, and `gemm` only looks at the speed. The soak of
`thermal` is under way after 400 kernels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any

from hpcverify.model import Cause, Remedy, Verdict
from tests.tables import read_table

PARAMS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "": {},
    "short soak": {"thermal": {"seconds": 1.0, "recovery_seconds": 0}},
    "impatient": {"training": {"timeout_seconds": 24}, "allreduce": {"timeout_seconds": 24}},
}
"""Parameters of the checks, by the name that the table has for them."""


@dataclass(frozen=True, slots=True)
class Expected:
    """What a check must make of a fault; *says* are words that the reason must hold."""

    check: str
    verdict: Verdict
    remedy: Remedy
    says: str
    cause: Cause
    accused: tuple[int, ...]
    """The GPUs that the reason names."""


@dataclass(frozen=True, slots=True)
class Rehearsed:
    """A fault, on a node of its own."""

    name: str
    faults: str
    expected: tuple[Expected, ...]
    gpus: int
    part: str
    params: Mapping[str, Mapping[str, Any]]
    haste: float
    """
    How many seconds pass in one, for what hangs: its worker is ended after minutes. Less where
    ranks that are well must find each other meanwhile.
    """


@dataclass(frozen=True, slots=True)
class _Line:
    """What several checks must make of a fault alike."""

    name: str
    faults: str
    checks: tuple[str, ...]
    verdict: Verdict
    remedy: Remedy
    gpus: int = 2
    part: str = "h100"
    params: str = ""
    haste: float = 1.0
    says: str = ""
    cause: Cause = Cause.NONE
    accused: tuple[int, ...] = ()


def _read_faults() -> tuple[Rehearsed, ...]:
    """Read the table; all that a fault's lines say of its node is in the first of them."""
    lines = read_table(Path(__file__).with_name("rehearsed.csv"), _Line)
    faults: list[Rehearsed] = []
    for _, group in groupby(lines, key=attrgetter("name")):
        first, *others = group
        expected = tuple(
            Expected(check, line.verdict, line.remedy, line.says, line.cause, line.accused)
            for line in (first, *others)
            for check in line.checks
        )
        node = (first.gpus, first.part, PARAMS[first.params], first.haste)
        faults.append(Rehearsed(first.name, first.faults, expected, *node))
    return tuple(faults)


REHEARSED = _read_faults()
"""Every fault, the cheap ones first."""
