"""
Who is named on the fabric lab: in healthy runs beside other work, and with each fault.

    .venv/bin/python bench/fabric.py --runs 50
    .venv/bin/python bench/fabric.py --runs 5 --fault lossy --fault "little CPU"

Each run is ``hpcverify fabric test`` over srun on four nodes, as `make fabric` takes it.
Healthy runs have other work on each node in every second run.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from time import monotonic

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
from tests.fabric_lab.cluster import Fabric, a_fabric  # noqa: E402 - as these below the path
from tests.fabric_lab.faults import FAULTS, MBIT, SWITCHES  # noqa: E402
from tests.fabric_lab.measuring import Measuring, busy_nodes, name_stragglers  # noqa: E402
from tests.own_node import separate_node  # noqa: E402

HEALTHY = "healthy"


def measure(fabric: Fabric, fault: str, number: int, keep: Path | None) -> str:
    """Measure once; say who was named, after how long, and at which load."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        if fault in FAULTS:
            stack.enter_context(FAULTS[fault].inject(fabric))
        elif number % 2:
            stack.enter_context(busy_nodes(fabric))
        started = monotonic()
        measured = Measuring(fabric, folder)
        run = measured.end()
        took = monotonic() - started
        if keep:
            shutil.copy(measured.out, keep / f"{fault.replace(' ', '_')}-{number}.json")
    told = ", ".join(f"{node} {how}" for node, how in sorted(name_stragglers(run)))
    missing = ", ".join(run.ranks[rank].node for rank in run.missing)
    told = told or "nobody"
    told += f"; missing: {missing}" if missing else ""
    told += f"; {run.unable}" if run.unable else ""
    return f"{told} ({took:.0f} s, load {os.getloadavg()[0]:.1f})"


def main() -> None:
    """Print whom each run names."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--fault", action="append", choices=list(FAULTS), default=[])
    parser.add_argument("--keep", type=Path, help="a folder for the documents of all runs")
    options = parser.parse_args()
    separate_node()
    with a_fabric(SWITCHES, MBIT) as fabric:
        for number in range(options.runs):
            for fault in options.fault or [HEALTHY]:
                told = measure(fabric, fault, number, options.keep)
                print(f"{fault} {number}: {told}", flush=True)


if __name__ == "__main__":
    main()
