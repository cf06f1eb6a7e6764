"""
The fault coverage of a suite: the share of real faults that its checks can see, for its minutes.

The faults are those of InfiniteHBD-Trace whose class is named, and those that a stress test
found: `fault_classes.csv`, which `make faults` writes from `tests/coverage/trace.csv`,
where each class has the test that shows its checks finding it.
"""

from __future__ import annotations

import csv
from collections.abc import Collection, Iterable
from functools import cache
from pathlib import Path

from msgspec import Struct

FAULT_CLASSES_PATH = Path(__file__).with_name("fault_classes.csv")
FAULT_SOURCE = "InfiniteHBD-Trace"


class SeenFault(Struct, frozen=True):
    """A class of faults that some check finds."""

    component: str
    fault: str
    count: int
    checks: frozenset[str]
    """Any of them finds it."""


class SuiteFaultCoverage(Struct, frozen=True, kw_only=True):
    """The share of faults that a suite can see, and its cost."""

    suite: str
    minutes: float
    """Its budget for a node."""
    loads: bool
    """Whether it loads the node: only that is a full pass."""
    share: float
    """The share of the faults of known classes that its checks can see."""


@cache
def read_seen_faults() -> tuple[SeenFault, ...]:
    """Read the classes of faults that checks find."""
    with FAULT_CLASSES_PATH.open(newline="", encoding="utf-8") as file:
        return tuple(
            SeenFault(
                row["component"], row["fault"], int(row["count"]), frozenset(row["checks"].split())
            )
            for row in csv.DictReader(file)
        )


def compute_fault_coverage(
    suite: str, minutes: float, checks: Collection[str], *, loads: bool
) -> SuiteFaultCoverage:
    """Compute the fault coverage of *suite* with its *checks*."""
    faults = read_seen_faults()
    seen = sum(fault.count for fault in faults if not fault.checks.isdisjoint(checks))
    share = seen / sum(fault.count for fault in faults)
    return SuiteFaultCoverage(suite=suite, minutes=minutes, loads=loads, share=share)


def choose_suite(suites: Iterable[SuiteFaultCoverage], minutes: float) -> SuiteFaultCoverage | None:
    """Choose the suite that detects most within *minutes* of a node, and loads it."""
    fitting = [suite for suite in suites if suite.loads and suite.minutes <= minutes]
    return max(fitting, key=lambda suite: (suite.share, -suite.minutes), default=None)
