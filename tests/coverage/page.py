"""
Writes docs/reference/coverage.md, and the classes that suites are judged by, from the tables:
``python -m tests.coverage.page``.
"""

from __future__ import annotations

import csv
import io
from pathlib import Path
from string import Template

from hpcverify.selection.suites import FAULT_CLASSES_PATH
from tests.coverage.injections import INJECTIONS, Injection
from tests.coverage.tables import FAULT_COUNT, MATCHERS, TRACE, WISHES, FaultClass, Matcher, Wish

PAGE = Path(__file__).parents[2] / "docs/reference/coverage.md"
STRESS = "Stress Test Failure"
UNNAMED = frozenset(
    {STRESS, "Unknown Error", "Other Failures", "Training Task Troubleshooting", "Test"}
)
"""The components with which the trace says only that it does not say what failed."""


def page() -> str:
    """Fill `page.md.in`, which has all but the numbers and the rows."""
    named = [row for row in TRACE if row.component not in UNNAMED]
    template = Template(Path(__file__).with_suffix(".md.in").read_text())
    return template.substitute(
        all=FAULT_COUNT,
        named=sum(row.count for row in named),
        seen=sum(row.count for row in named if row.tests),
        stress=sum(row.count for row in TRACE if row.component == STRESS),
        classes="\n".join(map(_format_class, TRACE)),
        injections="\n".join(map(_format_injection, INJECTIONS)),
        matchers="\n".join(map(_format_matcher, MATCHERS)),
        wishes="\n".join(map(_format_wish, WISHES)),
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
