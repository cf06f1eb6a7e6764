"""The figures of docs/reference/coverage.md, from the tables of tests/coverage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from hpcverify.model import Verdict
from tests.coverage.injections import INJECTIONS
from tests.coverage.tables import FAULT_COUNT, MATCHERS, STRESS, TRACE, UNNAMED
from tests.docs.markdown import format_code, write_table

TRACE_ADDRESS = "https://github.com/stepfun-ai/InfiniteHBD-Trace"


def write_coverage() -> Iterator[str]:
    """Yield how many faults of the trace are of a class that a check is shown to find."""
    named = [row for row in TRACE if row.component not in UNNAMED]
    total, seen = Counter[str](), Counter[str]()
    checks: dict[str, dict[str, None]] = {}
    for row in named:
        total[row.component] += row.count
        seen[row.component] += row.count if row.tests else 0
        checks.setdefault(row.component, {}).update(dict.fromkeys(row.checks))
    stress = sum(row.count for row in TRACE if row.component == STRESS)
    yield (
        f"A trace of an LLM cluster (400 GPU servers, 348 days) has {FAULT_COUNT} faults, and "
        f"names the cause of {total.total()}. {seen.total()} of these are of a class that a check "
        "is shown to find, by a fault that a test injects into simulated GPUs and BMCs, or into "
        f"the files of a node; no broken part was at hand. {stress} more failed a stress test that "
        f"is not described. The trace is [InfiniteHBD-Trace]({TRACE_ADDRESS}) (commit 7aacdc8, "
        "Apache-2.0)."
    )
    yield ""
    yield from write_table(
        ("component", "faults", "found", "checks"),
        [
            (name, str(count), str(seen[name]), ", ".join(map(format_code, checks[name])))
            for name, count in total.items()
        ],
    )


def write_injections() -> Iterator[str]:
    """Yield how many of the injected faults are found, by check."""
    total = Counter(row.check for row in INJECTIONS)
    found = Counter(row.check for row in INJECTIONS if row.verdict is not Verdict.PASS)
    yield (
        f"{found.total()} of {total.total()} faults are found that tests put under torch, "
        "torch.distributed or the C library, into memory, or into what the host computes to prove "
        "results. The tests hold that the right part fails and no other part."
    )
    yield ""
    rows = [(format_code(check), str(found[check]), str(total[check])) for check in total]
    yield from write_table(("check", "found", "injected"), rows)


def write_rules() -> Iterator[str]:
    """Yield how many rules of each other tool have a counterpart."""
    total = Counter(row.tool for row in MATCHERS)
    here = Counter(row.tool for row in MATCHERS if row.check)
    rows = [(tool, str(total[tool]), str(here[tool])) for tool in total]
    yield from write_table(("tool", "rules", "with a counterpart"), rows)
