"""
Writes constants.csv: the NVML constants that hpcverify uses, by release of nvidia-ml-py.

``python -m tests.telemetry.nvml.constants`` downloads the wheels from PyPI, which takes a
minute. To add a release, name it in `RELEASES`.
"""

from __future__ import annotations

import ast
import csv
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from zipfile import ZipFile

import pynvml

ROOM = Path(__file__).parents[3] / "hpcverify/telemetry/nvml"
TABLE = Path(__file__).with_name("constants.csv")
RELEASES = (
    *("12.535.133", "12.535.161", "12.550.52", "12.550.89", "12.555.43", "12.560.30"),
    *("12.570.86", "12.570.172", "12.575.51", "13.580.65", "13.580.82", "13.580.126"),
    *("13.590.44", "13.590.48", "13.595.45", "13.610.43", "13.615.71"),
)
FIELD_PREFIX = "NVML_FI_"
SLOWDOWN_COUNTERS = (
    "NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN",
    "NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN",
    "NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN",
)
"""Constants whose numbers moved: `find_slowdown_counters` has them by driver."""


def list_used_constants() -> Iterator[str]:
    """List the names of ``nv`` in the room that calls NVML that are numbers."""
    for path in sorted(ROOM.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                found = getattr(pynvml, node.attr, None) if node.value.id == "nv" else None
                if isinstance(found, int):
                    yield node.attr


def main() -> None:
    """Write the table."""
    columns: list[dict[str, int]] = []
    with tempfile.TemporaryDirectory() as folder:
        for release in RELEASES:
            pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", folder]
            subprocess.run([*pip, f"nvidia-ml-py=={release}"], check=True)
            (wheel,) = Path(folder).glob(f"nvidia_ml_py-{release}-*.whl")
            names: dict[str, object] = {"__name__": "pynvml"}
            exec(ZipFile(wheel).read("pynvml.py"), names)  # noqa: S102 - a release of NVIDIA's
            columns.append({k: v for k, v in names.items() if isinstance(v, int)})
    with TABLE.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["constant", *RELEASES])
        for name in sorted({*list_used_constants(), *SLOWDOWN_COUNTERS}):
            number = columns[-1][name]
            writer.writerow([name, *(describe(column, name, number) for column in columns)])


def describe(column: Mapping[str, int], name: str, number: int) -> int | str:
    """Give the number of *name* in a release; if it has none, the field that has *number*."""
    if name in column or not name.startswith(FIELD_PREFIX):
        return column.get(name, "")
    others = (k for k, v in column.items() if v == number and k.startswith(FIELD_PREFIX))
    return next((other for other in others if other != "NVML_FI_MAX"), "")


if __name__ == "__main__":
    main()
