"""A measurement of ``hpcverify fabric test`` over srun, with a rank on each node of a fabric."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from hpcverify.records.collectives import CollectiveRun, parse_collective_run
from tests.fabric_lab.cluster import Fabric

HPCVERIFY = Path(sys.executable).with_name("hpcverify")
MEASURE = ("--operation", "all_reduce", "--size", "1M", "--time")
SHORT, ENDLESS = "1s", "600s"
STREAMS = 4 << 20
"""Bytes that a node has received when its ranks measure: before, they only meet."""
BUSY = "import time\nwhile True: sum(range(10000)); time.sleep(0.0005)"
"""Somebody else's work, on each node."""


class Measuring:
    """A measurement under way."""

    def __init__(self, fabric: Fabric, folder: Path, *options: str, seconds: str = SHORT) -> None:
        """Begin it, with more *options* of the command."""
        self.out = folder / "run.json"
        step = ("--ntasks-per-node=1", "--kill-on-bad-exit=0", "--wait=20")
        self.process = subprocess.Popen(
            [
                *("srun", f"-N{len(fabric.network.nodes)}", *step),
                *(str(HPCVERIFY), "fabric", "test", "-o", str(self.out), *MEASURE, seconds),
                *options,
            ],
            env=fabric.cluster.env | {"OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.told = ""

    def end(self) -> CollectiveRun:
        self.told, _ = self.process.communicate()
        assert self.out.exists(), self.told
        return parse_collective_run(self.out.read_bytes(), str(self.out))

    @property
    def status(self) -> int:
        """Its exit status: srun gives the worst of all ranks."""
        return self.process.returncode


@contextmanager
def measuring(fabric: Fabric, folder: Path, *options: str) -> Generator[Measuring]:
    """Measure without end, and go on once the ranks exchange data."""
    before = {node: fabric.network.count_received(node) for node in fabric.network.nodes}
    begun = Measuring(fabric, folder, *options, seconds=ENDLESS)
    try:
        fabric.cluster.until(
            lambda: all(fabric.network.count_received(n) > b + STREAMS for n, b in before.items())
        )
        yield begun
    finally:
        if begun.process.poll() is None:
            begun.process.terminate()
            begun.process.communicate()


@contextmanager
def busy_nodes(fabric: Fabric) -> Generator[None]:
    """Let something else run on each node, a little all the time."""
    command = [
        "srun",
        "--overlap",
        f"-N{len(fabric.network.nodes)}",
        "--ntasks-per-node=1",
        sys.executable,
    ]
    with subprocess.Popen([*command, "-c", BUSY], env=fabric.cluster.env) as others:
        try:
            yield
        finally:
            others.terminate()


def name_stragglers(run: CollectiveRun) -> set[tuple[str, str]]:
    """Name the node of each straggler, and how it holds the others up."""
    return {(run.ranks[one.rank].node, one.how) for one in run.stragglers}
