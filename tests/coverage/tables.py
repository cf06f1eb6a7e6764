"""
What is seen of real faults, and what other tools and their users look for: three tables.

`trace.csv` has every class of the 584 faults of 400 GPU servers in 348 days
(stepfun-ai/InfiniteHBD-Trace, commit 7aacdc8, Apache-2.0), as their operators wrote them;
those that no check can be shown to find come last.

`rules.csv` has the rules of leptonai/gpud (commit 4a8de33, components/*/kmsg_matcher.go and
log_matcher.go), kubernetes/node-problem-detector (config/kernel-monitor.json,
readonly-monitor.json, disk-log-message-filelog.json), NVIDIA/NVSentinel (syslog health
monitor) and Azure/azurehpc-health-checks (customTests). The lines are those that the rules
are for, as the kernel writes them; where a rule has a line, a test reads it.

`wishes.csv` has what users of other tools ask for in public, and whether it is here.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.tables import read_table

HERE = Path(__file__).parent
FAULT_COUNT = 584
GPUD = "gpud"


@dataclass(frozen=True, slots=True)
class FaultClass:
    """
    A class of faults: in the words of the trace, and how often it is there.

    Each of *tests* injects the fault below the check; *missing* is what remains unseen.
    """

    component: str
    what: str
    count: int
    checks: tuple[str, ...] = ()
    tests: tuple[str, ...] = ()
    missing: str = ""


@dataclass(frozen=True, slots=True)
class Matcher:
    """
    A rule of another tool, by the name that the tool gives it.

    Of a *line* the *check* makes a finding *code*; without a line, *check* is what measures the
    same. Where *check* is empty, *note* is the reason.
    """

    tool: str
    name: str
    check: str = ""
    code: str = ""
    line: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Wish:
    """A wish, one public *thread* with it, and what there is of it *here*."""

    wish: str
    thread: str
    here: str


STRESS = "Stress Test Failure"
UNNAMED = frozenset(
    {STRESS, "Unknown Error", "Other Failures", "Training Task Troubleshooting", "Test"}
)
"""The components with which the trace says only that it does not say what failed."""

TRACE = read_table(HERE / "trace.csv", FaultClass)
MATCHERS = read_table(HERE / "rules.csv", Matcher)
WISHES = read_table(HERE / "wishes.csv", Wish)
