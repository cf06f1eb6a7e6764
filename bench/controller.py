"""
What the controller's commands cost on a large cluster, with a run of every node in the spool.

Slurm is a script that prints an answer from a file, for 10,000 nodes. Each leaves a run of
4 kB: eight GPUs with two measurements each, and some of the node. One node in a hundred fails.
They are taken in, listed and shown on the fleet's page with a page for each node; then 100
nodes run again. At the end all nodes are fresh, and a cycle of the timer has nothing to do.
CPU time is that of the command with all that it starts, memory that of the largest process.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
from msgspec.structs import replace

from collect import HPCVERIFY, NODES, a_site, drained

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
from hpcverify.check import add_faults  # noqa: E402 - below the path
from hpcverify.fleet.ledger import Ledger  # noqa: E402 - as this
from hpcverify.fleet.states import NodeChange, State  # noqa: E402 - as this
from hpcverify.model import (  # noqa: E402 - as this
    Fact,
    Inventory,
    Limit,
    Measurement,
    Part,
    Result,
    Run,
    Verdict,
)

CHANGED = 100
FAILING = 100
"""One node in so many."""


def main() -> None:
    """Measure, and print one line for each command."""
    with tempfile.TemporaryDirectory(prefix="hvcontroller-") as name:
        folder = Path(name)
        environment = a_site(folder)
        drained(folder, 0)
        before = datetime.now(UTC) - timedelta(hours=2)
        fill(folder / "spool", range(1, NODES + 1), before)
        report("10,000 documents are taken in", 15, ["fleet", "collect"], environment)
        report("nodes", 3, ["nodes"], environment)
        report("nodes as JSON", 5, ["nodes", "--json"], environment)
        page = ["report", "--fleet", "-o", str(folder / "fleet.html")]
        report("the fleet's page, and all node pages", 100, page, environment)
        report("the same again: no page changed", 5, page, environment)
        report("nothing is new", 5, ["fleet", "collect"], environment)
        fill(folder / "spool", range(1, CHANGED + 1), before + timedelta(hours=1))
        report(f"{CHANGED} documents are taken in", 5, ["fleet", "collect"], environment)
        report(f"the page, and {CHANGED} node pages that changed", 5, page, environment)
        refresh(folder / "state")
        for _ in range(3):
            report("a cycle: nothing is new", 5, ["fleet", "collect"], environment)
            report("a cycle: no node is due", 5, ["fleet", "sweep"], environment)


def refresh(state: Path) -> None:
    """Have every node pass a sweep just now."""
    ledger, now = Ledger(state), time.time()
    ledger.put_all(
        NodeChange(
            node=replace(node, state=State.HEALTHY, last_pass_at=now, last_run_at=now),
            what="passed",
        )
        for node in ledger.list_nodes().values()
    )


def fill(spool: Path, nodes: range, when: datetime) -> None:
    """Leave a run of each of *nodes* in the spool."""
    encode = msgspec.json.Encoder().encode
    for i in nodes:
        home = spool / f"gpu{i:05d}"
        home.mkdir(mode=0o700, exist_ok=True)
        run = make_run(f"gpu{i:05d}", i, when + timedelta(seconds=i / 100))
        (home / f"{run.id}.json").write_bytes(msgspec.json.format(encode(run), indent=1))


def make_run(node: str, i: int, when: datetime) -> Run:
    """Make a run as a small suite does; its last GPU is slow on one node in a hundred."""
    parts = [
        Part(
            "gpu",
            f"GPU-{i:08x}-{g:04x}",
            f"GPU {g}",
            {"name": "NVIDIA H100 80GB HBM3", "driver": "565.57.01", "vbios": "96.00.A5.00.01"},
        )
        for g in range(8)
    ]
    slow = i % FAILING == 0
    products = tuple(
        Measurement("bf16.sustained", 450.0 if slow and g == 7 else 700.0 + i % 7, "TFLOP/s", p.id)
        for g, p in enumerate(parts)
    )
    copies = tuple(Measurement("h2d", 55.0 + i % 3, "GB/s", part.id) for part in parts)
    limit = Limit("bf16.sustained", low=600, source="what good parts reach")
    verdict = Verdict.FAIL if slow else Verdict.PASS
    reason = f"bf16.sustained 450 TFLOP/s on GPU 7, below 600 ({node})" if slow else ""
    system = Part("system", "node", "node", {"product": "PowerEdge XE9680", "bios": "2.3.6"})
    return Run(
        id=f"{when:%Y%m%d-%H%M%S}-{i:06x}",
        node=node,
        suite="quick",
        started=when,
        seconds=61.0,
        verdict=verdict,
        complete=True,
        passive=False,
        inventory=Inventory(parts=(system, *parts)),
        versions={"hpcverify": "0.1.0", "python": "3.11.7", "kernel": "6.8.0"},
        results=(
            Result(check="inventory", verdict=Verdict.PASS, facts=(Fact("persistence", "on"),)),
            add_faults(
                Result(
                    check="gemm",
                    verdict=verdict,
                    reason=reason,
                    measurements=products,
                    limits=(limit,),
                ),
                Inventory(parts=tuple(parts)),
            ),
            Result(check="pcie_bandwidth", verdict=Verdict.PASS, measurements=copies),
            Result(
                check="storage",
                verdict=Verdict.PASS,
                measurements=(Measurement("read", 3.5, "GB/s"),),
            ),
        ),
    )


def report(what: str, most: float, words: list[str], environment: dict[str, str]) -> None:
    """Run a command, and print what it cost."""
    asked = Path(environment["HPCVERIFY_CONFIG"]).with_name("asked")
    asked.write_text("")
    start = time.perf_counter()
    command = subprocess.Popen([HPCVERIFY, *words], env=environment, stdout=subprocess.DEVNULL)
    _, _, used = os.wait4(command.pid, 0)
    wall, cpu = time.perf_counter() - start, used.ru_utime + used.ru_stime
    questions = len(asked.read_text().splitlines())
    print(
        f"{NODES} nodes, {what}: {cpu:.1f} s CPU (at most {most}), {wall:.1f} s, "
        f"{used.ru_maxrss / 1024:.0f} MiB, {questions} questions to Slurm",
        flush=True,
    )


if __name__ == "__main__":
    main()
