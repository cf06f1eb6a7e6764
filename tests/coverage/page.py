"""
Writes docs/coverage.md, and the classes that suites are judged by, from the tables:
``python -m tests.coverage.page``.
"""

from __future__ import annotations

import csv
import io
from pathlib import Path

from hpcverify.selection.suites import FAULT_CLASSES_PATH
from tests.coverage.injections import INJECTIONS, Injection
from tests.coverage.tables import FAULT_COUNT, MATCHERS, TRACE, WISHES, FaultClass, Matcher, Wish

PAGE = Path(__file__).parents[2] / "docs/coverage.md"
HEAD = """\
# What is seen of real faults

`make faults` writes this page from the tables in `tests/coverage/`, and a test holds them:
each check and each test that is named exists, and each line is read.
What each fault leads to is in [faults.md](faults.md).

## The faults of a real cluster

Of {all} faults of an LLM cluster (400 GPU servers, 348 days) the trace names the cause of
{named}. {seen} of these are of a class that a check is shown to find, by a fault that a test
injects into simulated GPUs and BMCs, or into the files of a node; no broken part was at hand.
{stress} more failed a stress test that is not described. Of the rest nobody wrote down what failed.
The trace is [InfiniteHBD-Trace](https://github.com/stepfun-ai/InfiniteHBD-Trace)
(commit 7aacdc8, Apache-2.0); components and words are its own.

| component | fault | count | checks | test | what is missing |
|---|---|---|---|---|---|
"""
MATCHERS_HEAD = """
## What other tools look for

| tool | rule | here | note |
|---|---|---|---|
"""
NHC_TEXT = """
NHC's 46 built-in checks are in [host.md](host.md#for-people-who-come-from-nhc), each with its
counterpart or the reason that it has none; `tests/plan/nhc/test_nhc.py` holds the list.
"""
WISHES_HEAD = """
## What users of other tools ask for

From public issue trackers, with one thread for each.

| wish | thread | here |
|---|---|---|
"""
INJECTIONS_HEAD = """
## Silent data corruption that was injected

Each fault is put under torch, torch.distributed or the C library, below all code of
hpcverify, into memory, or into what the host computes to prove results. Tests of many lines
take verdict and accused part from this table, and hold that nothing else is accused. The
ranks of a CPU are one part, and the text names the rank.

| fault | check | verdict | accused | test | note |
|---|---|---|---|---|---|
"""
STRESS = "Stress Test Failure"
UNNAMED = frozenset(
    {STRESS, "Unknown Error", "Other Failures", "Training Task Troubleshooting", "Test"}
)
"""The components with which the trace says only that it does not say what failed."""


def page() -> str:
    named = [row for row in TRACE if row.component not in UNNAMED]
    seen = sum(row.count for row in named if row.tests)
    count = sum(row.count for row in named)
    stress = sum(row.count for row in TRACE if row.component == STRESS)
    head = HEAD.format(all=FAULT_COUNT, named=count, seen=seen, stress=stress)
    rows = "\n".join(map(_format_class, TRACE))
    matchers = "\n".join(map(_format_matcher, MATCHERS))
    wishes = "\n".join(map(_format_wish, WISHES))
    injections = "\n".join(map(_format_injection, INJECTIONS))
    return (
        f"{head}{rows}\n{INJECTIONS_HEAD}{injections}\n"
        f"{MATCHERS_HEAD}{matchers}\n{NHC_TEXT}{WISHES_HEAD}{wishes}\n"
    )


def fault_classes() -> str:
    """Write the classes that a check finds, as a table of the package."""
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    writer.writerow(("component", "fault", "count", "checks"))
    for row in TRACE:
        if row.checks:
            writer.writerow((row.component, row.what, row.count, " ".join(row.checks)))
    return written.getvalue()


def _format_class(row: FaultClass) -> str:
    checks = ", ".join(f"`{check}`" for check in row.checks)
    tests = "; ".join(map(_name_test, row.tests))
    cells = (row.component, row.what, str(row.count), checks, tests, row.missing)
    return f"| {' | '.join(cells)} |"


def _format_injection(row: Injection) -> str:
    tests = "; ".join(_name_function(test) for test in row.tests)
    told = (row.verdict.value.upper(), row.part, tests, row.note)
    return f"| {' | '.join((row.fault, f'`{row.check}`', *told))} |"


def _name_test(test: str) -> str:
    """Name the case, or the test where it has none."""
    _, _, case = test.partition("[")
    return case.removesuffix("]").partition("-")[0] if " " in case else _name_function(test)


def _name_function(test: str) -> str:
    return test.partition("[")[0].rpartition("::")[2].removeprefix("test_").replace("_", " ")


def _format_matcher(row: Matcher) -> str:
    code = f" `{row.code}`" if row.code else ""
    here = f"`{row.check}`{code}" if row.check else "no"
    return f"| {row.tool} | {row.name} | {here} | {row.note} |"


def _format_wish(row: Wish) -> str:
    return f"| {row.wish} | {row.thread} | {row.here} |"


if __name__ == "__main__":
    PAGE.write_text(page())
    FAULT_CLASSES_PATH.write_text(fault_classes())
