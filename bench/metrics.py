"""
What the metrics of 10,000 nodes cost: the cycle that writes, and node_exporter that reads it.

Four fleets: all healthy, a hundred nodes held, all drained by somebody else, and all healthy
with series of their own (``all_nodes``). CPU time is that of the write alone, the median of
five; a scrape is one request to Debian's node_exporter (``.ci/unpack prometheus-node-exporter``),
the median of five.
"""

from __future__ import annotations

import os
import resource
import sqlite3
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import Any

from msgspec.structs import replace

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
from hpcverify.fleet.controller import Controller, Cycle  # noqa: E402 - below the path
from hpcverify.fleet.states import Node, State  # noqa: E402
from hpcverify.insight.fleet_metrics import write_fleet_metrics  # noqa: E402
from hpcverify.metrics.table import FLEET_FILE_NAME  # noqa: E402
from hpcverify.plan.config import TextFiles  # noqa: E402
from tests.fleet.builders import NOW, a_room, store_nodes  # noqa: E402
from tests.prometheus_lab.lab import fetch, start_exporter  # noqa: E402

NODES = 10_000
TIMES = 5
MAX_CPU_S, MAX_SCRAPE_S, MAX_MIB = 1.0, 0.3, 3.0
"""What a cycle, a scrape and the file may take by default."""
HELD: dict[str, Any] = {
    "state": State.QUARANTINED,
    "enforced": True,
    "hold_id": "hv1",
    "checks": ("gemm",),
}


def main() -> None:
    """Measure, and print one line for each fleet."""
    print(f"{NODES} nodes, load {os.getloadavg()[0]:.1f}")
    for name, all_nodes, fleet in list_fleets():
        with tempfile.TemporaryDirectory(prefix="hvmetrics-") as folder:
            measure(name, fleet, Path(folder), all_nodes=all_nodes)


def list_fleets() -> Iterator[tuple[str, bool, dict[str, Node]]]:
    """Yield each fleet with its name, and whether all its nodes have series."""
    yield "all healthy", False, make_fleet()
    yield "100 held", False, {**make_fleet(), **make_fleet(100, **HELD)}
    yield "all drained by others", False, make_fleet(foreign="maintenance")
    yield "all healthy, all_nodes", True, make_fleet()


def make_fleet(count: int = NODES, **changes: Any) -> dict[str, Node]:
    """Make nodes in racks of 32."""
    seen: dict[str, Any] = {
        "state": State.HEALTHY,
        "since": NOW,
        "last_pass_at": NOW,
        "last_run_at": NOW,
    }
    names = (f"r{i // 32:03d}n{i % 32:02d}" for i in range(count))
    return {name: Node(name=name, **{**seen, **changes}) for name in names}


def measure(name: str, fleet: dict[str, Node], folder: Path, *, all_nodes: bool) -> None:
    """Write the metrics of *fleet*, have node_exporter read them, and print what both took."""
    room = a_room(folder)
    controller = room.controller
    directory = folder / "textfiles"
    directory.mkdir()
    settings = TextFiles(directory=str(directory), all_nodes=all_nodes)
    controller.site = replace(controller.site, metrics=settings)
    store_nodes(controller.ledger, fleet.values())
    insert_parts(controller, fleet)
    cpu = median(write(controller, fleet) for _ in range(TIMES))
    text = (directory / FLEET_FILE_NAME).read_bytes()
    series = sum(not line.startswith(b"#") for line in text.splitlines())
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    exporter = folder / "exporter"
    exporter.mkdir()
    with start_exporter(directory, exporter) as address:
        scrape = median(ask(address) for _ in range(TIMES))
    mib = len(text) / 2**20
    missed = [
        what
        for what, is_met in (
            ("CPU", cpu <= MAX_CPU_S),
            ("file", all_nodes or mib <= MAX_MIB),
            ("scrape", all_nodes or scrape <= MAX_SCRAPE_S),
        )
        if not is_met
    ]
    print(
        f"{name}: {cpu:.2f} s of CPU, {series} series, {mib:.2f} MiB, scrape {scrape:.2f} s, "
        f"peak of this process {memory:.0f} MiB{f'; missed: {missed}' if missed else ''}"
    )


def insert_parts(controller: Controller, nodes: Iterable[str]) -> None:
    """Have the ledger know the parts of *nodes*, without a run of each."""
    rows = [(node, kind, 8, 8) for node in nodes for kind in ("gpu", "nic", "disk", "dimm")]
    with closing(sqlite3.connect(controller.ledger.path)) as db, db:
        db.executemany("insert or replace into part_counts values (?, ?, ?, ?)", rows)


def write(controller: Controller, fleet: dict[str, Node]) -> float:
    """Write the metrics once; return the CPU time."""
    began = time.process_time()
    write_fleet_metrics(controller, Cycle(listed=fleet, doubts=()))
    return time.process_time() - began


def ask(address: str) -> float:
    """Get all metrics once; return how long that took."""
    began = time.perf_counter()
    fetch(address, "/metrics")
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
