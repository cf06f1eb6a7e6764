"""
Run ``all_reduce_perf`` of nccl-tests, and read its table.

It counts 2 (n - 1) / n of a message as its bus traffic, as we do, and gives the mean time
of a step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite

from msgspec import Struct

import hpcverify.check as hv
from hpcverify.processes import run_tool

PROGRAM = "all_reduce_perf"
INSTALL_FIX = (
    "git clone https://github.com/NVIDIA/nccl-tests, make there, and put its build folder into PATH"
)
ROW_FIELDS = 12
"""A row without a root has size, count, type, operation, and four fields for each of the two
ways. Newer versions have a root in between."""
COLUMNS_PER_WAY = 4
"""Time, algorithm bandwidth, bus bandwidth, errors."""
NOT_CHECKED = "N/A"
"""Printed in place of the errors, where results are not checked."""


class BusRow(Struct, frozen=True):
    """One row of the table: the size in bytes, in-place time (µs) and bus bandwidth (GB/s)."""

    size: int
    time_us: float
    busbw: float
    wrong: float | None
    """Wrong elements, or in old versions the largest error, which is below 1; None if it was
    not checked."""

    @property
    def has_wrong(self) -> bool:
        """Whether it counts a wrong element."""
        return self.wrong is not None and self.wrong >= 1


def run_all_reduce(
    arguments: Sequence[str], *, timeout: float, env: Mapping[str, str] | None = None
) -> list[BusRow]:
    """Run it for up to *timeout* seconds, and return the rows of its table."""
    command = [PROGRAM, *arguments]
    try:
        done = run_tool(command, timeout=timeout, env=env)
    except OSError as exc:  # as when it was built for other processors
        text = f"{PROGRAM} cannot be started: {exc.strerror}: build it on this node"
        raise hv.Unable(text, hv.Cause.MISCONFIGURED) from exc
    text = done.stdout.decode(errors="replace")
    rows = parse_rows(text)
    # It also ends with 1 if it counted wrong elements (common.cu, at its end).
    is_whole = done.returncode == 0 or any(row.has_wrong for row in rows)
    if not rows or not is_whole:
        lines = [*text.splitlines(), *done.stderr.decode(errors="replace").splitlines()]
        last = next((line.strip() for line in reversed(lines) if line.strip()), "nothing")
        raise hv.Unable(
            f"{PROGRAM} ended with {done.returncode}; its last line: {last}: run it by hand: "
            f"{' '.join(command)}",
            hv.Cause.CRASHED,
        )
    return rows


def parse_rows(text: str) -> list[BusRow]:
    """
    Read the table of nccl-tests, of any version; rows of other text are left out.

    The last eight fields of a row are time, algbw, busbw and errors: out of place, then in
    place. Versions before 2.12 print no root, and the largest error in place of a count.
    """
    rows = (_parse_row(line.split()) for line in text.splitlines())
    return [row for row in rows if row]


def _parse_row(fields: list[str]) -> BusRow | None:
    if len(fields) < ROW_FIELDS or not fields[0].isdecimal() or not fields[1].isdecimal():
        return None
    time, _, busbw, wrong = fields[-COLUMNS_PER_WAY:]
    try:
        error = None if wrong == NOT_CHECKED else float(wrong)
        row = BusRow(int(fields[0]), float(time), float(busbw), error)
    except ValueError:  # a line of a log that begins with two numbers
        return None
    is_number = isfinite(row.time_us) and isfinite(row.busbw) and isfinite(row.wrong or 0)
    return row if is_number else None
