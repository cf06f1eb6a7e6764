"""Writes docs/faults.md from the table: ``python -m tests.faults.page``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

from tests.faults.table import LOADED, PASSIVE, Fault

PAGE = Path(__file__).parents[2] / "docs/faults.md"
HEAD = """\
# What becomes of each fault

Every fault that our NVML double can inject into a board of eight healthy H100, and
what hpcverify makes of it. Each row is held by a test in `tests/faults/`: a scenario
of `tests/nvml_lab/`, met by the real `nvidia-ml-py`, must come to this verdict, for
the right reason, with this remedy. `make faults` writes this page.

The other way round, nothing is said against the healthy boards of every part in the
spec sheet, and of some that are on none: idle and at work, with counters that move as
they do in health (`tests/faults/test_health.py`).

What the double cannot inject (a wrong product, a slow kernel, a corrupted copy) has
its tests beside each check. Xids have a row each in
`checks/hpcverify_checks/xids.csv`.

FAIL says that the hardware is bad, ERROR that we could not tell; WARN keeps the node
in service.
"""
SECTIONS = (
    ("Before and after a job (suites `prolog` and `epilog`)", PASSIVE),
    ("Under load (the other suites)", LOADED),
)


def page() -> str:
    """Write the page."""
    return "\n".join([HEAD, *(line for s in SECTIONS for line in _section(*s))])


def _section(title: str, faults: Sequence[Fault]) -> Iterator[str]:
    yield f"## {title}\n"
    for check, rows in groupby(sorted(faults, key=_by_check), key=_by_check):
        yield f"### `{check}`\n"
        yield "| fault | verdict | cause | remedy |"
        yield "|---|---|---|---|"
        for fault in rows:
            remedy = fault.remedy.value.replace("_", " ")
            yield f"| {fault.name} | {fault.verdict.name} | {fault.cause} | {remedy} |"
        yield ""


def _by_check(fault: Fault) -> str:
    return fault.check


if __name__ == "__main__":
    PAGE.write_text(page())
