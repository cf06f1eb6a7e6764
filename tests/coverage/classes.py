"""Writes the classes of faults that suites are judged by: ``python -m tests.coverage.classes``."""

from __future__ import annotations

import csv
import io

from hpcverify.selection.suites import FAULT_CLASSES_PATH
from tests.coverage.tables import TRACE


def fault_classes() -> str:
    """Write the classes that a check finds, as a table of the package."""
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    writer.writerow(("component", "fault", "count", "checks"))
    for row in TRACE:
        if row.checks:
            writer.writerow((row.component, row.what, row.count, " ".join(row.checks)))
    return written.getvalue()


if __name__ == "__main__":
    FAULT_CLASSES_PATH.write_text(fault_classes())
