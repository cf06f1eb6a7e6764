"""Writes docs/reference/faults.md from the table: ``python -m tests.faults.page``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from string import Template

from hpcverify.model import Verdict
from hpcverify.telemetry.cuda_errors import CudaError, load_rows
from hpcverify_checks.kernel_log import lines
from tests.checks import chassis_faults
from tests.checks.chassis_faults import CHASSIS_FAULTS, ChassisFault
from tests.checks.nic_faults import HUNG, PORT_FAULTS, PortFault
from tests.faults.table import LOADED, PASSIVE, Fault
from tests.rehearsal.table import REHEARSED, Rehearsed

PAGE = Path(__file__).parents[2] / "docs/reference/faults.md"
SECTIONS = (
    ("Before and after a job (suites `prolog` and `epilog`)", PASSIVE),
    ("Under load (the other suites)", LOADED),
)


def page() -> str:
    """Fill `page.md.in`, which has all but the rows."""
    ports = (*PORT_FAULTS, HUNG)
    chassis = (*CHASSIS_FAULTS, chassis_faults.FULL, chassis_faults.HUNG)
    rows = {
        "faults": (line for s in SECTIONS for line in _section(*s)),
        "ports": map(_format_fault, ports),
        "chassis": map(_format_fault, chassis),
        "rehearsed": (line for fault in REHEARSED for line in _format_rehearsed(fault)),
        "kernel": (_format_line(row) for row in lines.ROWS.values() if not row.ends),
        "cuda": map(_format_error, load_rows()),
    }
    template = Template(Path(__file__).with_suffix(".md.in").read_text())
    return template.substitute({name: "\n".join(table) for name, table in rows.items()})


def _format_rehearsed(fault: Rehearsed) -> Iterator[str]:
    """Give a line for each outcome, with the checks that have it."""
    outcomes: dict[tuple[str, str, str], list[str]] = {}
    for one in fault.expected:
        remedy = one.remedy.value.replace("_", " ")
        outcome = (one.verdict.name, one.cause.value, remedy)
        outcomes.setdefault(outcome, []).append(f"`{one.check}`")
    for outcome, checks in outcomes.items():
        yield f"| {fault.name} | {', '.join(checks)} | {' | '.join(outcome)} |"


def _format_line(row: lines.LineRow) -> str:
    remedy = row.remedy.value.replace("_", " ") if row.verdict is not Verdict.PASS else ""
    conclusive = "yes" if row.conclusive else ""
    return f"| {row.meaning} | `{row.code}` | {row.verdict.name} | {remedy} | {conclusive} |"


def _format_error(row: CudaError) -> str:
    name = f"{row.number} {row.name}" if row.number else row.name
    told = row.message or ", ".join(row.phrases)
    remedy = row.remedy.value.replace("_", " ")
    software = "yes" if row.verdict is Verdict.FAIL and row.software else ""
    return f"| {name} | {told} | {row.verdict.name} | {row.cause} | {remedy} | {software} |"


def _section(title: str, faults: Sequence[Fault]) -> Iterator[str]:
    yield f"## {title}\n"
    for check, rows in groupby(sorted(faults, key=_by_check), key=_by_check):
        yield f"### `{check}`\n"
        yield "| fault | verdict | cause | remedy |"
        yield "|---|---|---|---|"
        for fault in rows:
            yield _format_fault(fault)
        yield ""


def _format_fault(fault: Fault | PortFault | ChassisFault) -> str:
    remedy = fault.remedy.value.replace("_", " ")
    return f"| {fault.name} | {fault.verdict.name} | {fault.cause} | {remedy} |"


def _by_check(fault: Fault) -> str:
    return fault.check


if __name__ == "__main__":
    PAGE.write_text(page())
