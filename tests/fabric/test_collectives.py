"""
``hpcverify collectives`` over srun, on nodes whose links are broken.

Whoever holds the others up has a name, and nobody else has.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from time import monotonic

import pytest

from hpcverify.records.collectives import CollectiveRun, read_collective_run
from tests.fabric.conftest import MBIT
from tests.fabric_lab.cluster import Fabric

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="makes networks")

HPCVERIFY = Path(sys.executable).with_name("hpcverify")
pytestmark = pytest.mark.timed

MEASURE = ("--operation", "all_reduce", "--size", "1M", "--seconds")
SHORT, ENDLESS = "1", "600"
SLOW = MBIT / 8
STREAMS = 4 << 20
"""Bytes that a node has received when its ranks measure: before, they only meet."""
EXIT_FOUND = 1
TRIES = 3
FOUND_WITHIN = 60.0
"""Seconds from the fault until it has a name."""
BUSY = "import time\nwhile True: sum(range(10000)); time.sleep(0.0005)"
"""Somebody else's work, on each node."""


class Measuring:
    """A measurement under way, with a rank on each node."""

    def __init__(self, fabric: Fabric, folder: Path, seconds: str) -> None:
        """Begin it."""
        self.out = folder / "run.json"
        options = ("--ntasks-per-node=1", "--kill-on-bad-exit=0", "--wait=20")
        self.process = subprocess.Popen(
            [
                *("srun", f"-N{len(fabric.network.nodes)}", *options),
                *(str(HPCVERIFY), "collectives", "--out", str(self.out), *MEASURE, seconds),
            ],
            env=fabric.cluster.env | {"OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.told = ""

    def end(self) -> CollectiveRun:
        """Wait for its end."""
        self.told, _ = self.process.communicate()
        assert self.out.exists(), self.told
        return read_collective_run(self.out)

    @property
    def status(self) -> int:
        """Its exit status: srun gives the worst of all ranks."""
        return self.process.returncode


@contextmanager
def measuring(fabric: Fabric, folder: Path) -> Generator[Measuring]:
    """Measure without end, and go on once the ranks exchange data."""
    before = {node: fabric.network.count_received(node) for node in fabric.network.nodes}
    begun = Measuring(fabric, folder, ENDLESS)
    try:
        fabric.cluster.until(
            lambda: all(fabric.network.count_received(n) > b + STREAMS for n, b in before.items())
        )
        yield begun
    finally:
        if begun.process.poll() is None:
            begun.process.terminate()
            begun.process.communicate()


def name_stragglers(run: CollectiveRun) -> set[tuple[str, str]]:
    """Name the node of each straggler, and how it holds the others up."""
    return {(run.ranks[one.rank].node, one.how) for one in run.stragglers}


@contextmanager
def busy_nodes(fabric: Fabric) -> Generator[None]:
    """Let something else run on each node, a little all the time."""
    command = ["srun", "--overlap", f"-N{len(fabric.network.nodes)}", "-n2", sys.executable]
    with subprocess.Popen([*command, "-c", BUSY], env=fabric.cluster.env) as others:
        try:
            yield
        finally:
            others.terminate()


@pytest.mark.parametrize("busy", [False, True])
def test_nobody_is_named_on_healthy_nodes(fabric: Fabric, tmp_path: Path, *, busy: bool) -> None:
    with ExitStack() as load:
        if busy:
            load.enter_context(busy_nodes(fabric))
        measured = Measuring(fabric, tmp_path, SHORT)
        run = measured.end()

    assert not name_stragglers(run)
    assert (run.missing, run.wrong, run.unable) == ((), (), "")
    assert measured.status == 0, measured.told
    assert [place.node for place in run.ranks] == fabric.network.nodes


FAULTS: dict[str, tuple[Callable[[Fabric], AbstractContextManager[None]], str, set[str]]] = {
    "slow to send": (lambda f: f.network.slow_to_send("n2", SLOW), "n2", {"sends_slowly"}),
    "slow to receive": (lambda f: f.network.slow_to_receive("n3", SLOW), "n3", {"receives_slowly"}),
    "far away": (
        lambda f: f.network.delayed("n4", 0.02),
        "n4",
        {"sends_slowly", "receives_slowly"},
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_who_holds_the_others_up_has_a_name_within_a_minute(
    fabric: Fabric, tmp_path: Path, fault: str
) -> None:
    """Other work on the machine may hide it now and then, and never has another named."""
    inject, node, how = FAULTS[fault]
    for _ in range(TRIES):
        with inject(fabric):
            started = monotonic()
            measured = Measuring(fabric, tmp_path, SHORT)
            run = measured.end()
            took = monotonic() - started
        named = name_stragglers(run)
        assert {who for who, _ in named} <= {node}, measured.told
        if named:
            assert {what for _, what in named} <= how
            assert measured.status == EXIT_FOUND
            assert took < FOUND_WITHIN
            assert run.stragglers[0].gain > 0.05
            return
    pytest.fail(f"{node} was not named in {TRIES} measurements")


UNSTEADY: dict[str, tuple[Callable[[Fabric], AbstractContextManager[None]], str]] = {
    "lossy": (lambda f: f.network.lossy("n1", 8), "n1"),
    "little CPU": (lambda f: f.slow_cpu("n2", 0.2), "n2"),
}
"""Slow in some steps, and as fast as the others in between."""


@pytest.mark.parametrize("fault", UNSTEADY)
def test_for_an_unsteady_fault_no_good_node_is_named(
    fabric: Fabric, tmp_path: Path, fault: str
) -> None:
    inject, node = UNSTEADY[fault]
    with inject(fabric):
        run = Measuring(fabric, tmp_path, SHORT).end()

    assert {who for who, _ in name_stragglers(run)} <= {node}
    assert not run.missing


def test_a_rank_that_stops_is_missing_and_no_other(fabric: Fabric, tmp_path: Path) -> None:
    with measuring(fabric, tmp_path) as measured, fabric.stopped("n3"):
        check_missing(measured, "n3")


def test_where_the_link_of_rank_0_goes_down_it_is_missing_and_no_other(
    fabric: Fabric, tmp_path: Path
) -> None:
    with measuring(fabric, tmp_path) as measured, fabric.network.unplugged("n1"):
        check_missing(measured, "n1")


def check_missing(measured: Measuring, node: str) -> None:
    """Wait for the end; the only rank of *node* must be missing, and no other accused."""
    started = monotonic()
    run = measured.end()

    assert [run.ranks[rank].node for rank in run.missing] == [node], measured.told
    assert not run.stragglers
    assert monotonic() - started < FOUND_WITHIN
