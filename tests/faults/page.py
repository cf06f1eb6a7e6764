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
the verdict that hpcverify gives.
A test in `tests/faults/` holds each row: the real `nvidia-ml-py` reads a scenario of
`tests/nvml_lab/`, and the run must end in this verdict, for the right reason, with
this remedy. `make faults` writes this page.

The reverse is tested too: a healthy board of any part in the data sheets gets no
complaint, idle or under load, while its counters move as they do on healthy boards.
The same holds for some parts that are in no data sheet (`tests/faults/test_health.py`).

Faults that the double cannot inject (a wrong product, a slow kernel, a corrupted
copy) are tested with the check that finds them. Xids have one row each in
`xids.csv`, beside the check `xid`.

FAIL: the hardware is bad. ERROR: hpcverify could not tell. WARN: the node stays in
service.
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
