"""A real Slurm whose nodes are in a network that can be broken, and what becomes of its ranks."""

from __future__ import annotations

import os
import signal
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread, get_native_id

from tests.fabric_lab.network import Network, a_network
from tests.slurm_lab.lab import Cluster, a_cluster

NOT_RANKS = {"4294967291", "4294967292", "4294967294", "4294967295"}
"""Steps of Slurm that are no tasks of srun: batch script, extern, … (slurm.h)."""
RANK = b"hpcverify_checks.collectives.rank"
DUTY_CYCLE_S = 0.02
"""Each step of a measurement meets it, and a busy machine keeps it."""
LOOK_S = 1.0
"""Between two looks for new ranks."""


@dataclass(frozen=True)
class Fabric:
    """A cluster and its network."""

    cluster: Cluster
    network: Network

    def find_ranks(self, node: str) -> list[int]:
        """List the processes of the tasks of jobs on a node."""
        return list(self._find_ranks(node))

    @contextmanager
    def stopped(self, node: str) -> Generator[None]:
        """Stop the ranks that run on a node now, as a hung driver would."""
        ranks = self.find_ranks(node)
        assert ranks, f"no ranks on {node}: {self.cluster.look()}"
        _signal(ranks, signal.SIGSTOP)
        try:
            yield
        finally:
            _signal(ranks, signal.SIGCONT)

    @contextmanager
    def hanging(self, node: str) -> Generator[None]:
        """Stop each process that measures on a node soon after it began."""
        over = Event()
        stopped: set[int] = set()

        def look() -> None:
            while not over.wait(LOOK_S):
                ranks = [pid for pid in self.find_ranks(node) if _measures(pid)]
                _signal(ranks, signal.SIGSTOP)
                stopped.update(ranks)

        thread = Thread(target=look)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            _signal([pid for pid in stopped if _measures(pid)], signal.SIGCONT)

    @contextmanager
    def slow_cpu(self, node: str, share: float) -> Generator[None]:
        """Let what is or comes to be a rank on a node run for a *share* of the time only."""
        over = Event()
        ranks: list[int] = []

        def look() -> None:
            while not over.wait(LOOK_S):
                ranks[:] = self.find_ranks(node)

        def hold_back() -> None:
            os.setpriority(os.PRIO_PROCESS, get_native_id(), -15)  # of this thread
            while not over.is_set():
                held = list(ranks)
                _signal(held, signal.SIGSTOP)
                over.wait(DUTY_CYCLE_S * (1 - share))
                _signal(held, signal.SIGCONT)
                over.wait(DUTY_CYCLE_S * share)

        threads = [Thread(target=look), Thread(target=hold_back)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            over.set()
            for thread in threads:
                thread.join()

    def _find_ranks(self, node: str) -> Iterator[int]:
        wanted = {f"SLURM_CONF={self.cluster.conf}", f"SLURMD_NODENAME={node}"}
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it has ended
                told = (folder / "environ").read_bytes().decode(errors="replace").split("\0")
                steps = {
                    line.partition("=")[2] for line in told if line.startswith("SLURM_STEPID=")
                }
                if wanted <= set(told) and steps - NOT_RANKS:
                    yield int(folder.name)


def _measures(pid: int) -> bool:
    """Whether a process is a rank itself, and not what launched it."""
    with suppress(OSError):  # it has ended
        return RANK in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def _signal(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


@contextmanager
def a_fabric(switches: Mapping[str, Sequence[str]], mbit: float) -> Generator[Fabric]:
    """Bring up a cluster on such a network, see `a_network`, and take all of it down."""
    with a_network(switches, mbit) as network:
        names = network.nodes
        assert names == [f"n{index}" for index in range(1, len(names) + 1)]
        told, topology = network.describe_for_slurm(), network.describe_topology()
        with a_cluster(len(names), network=told, topology=topology) as cluster:
            yield Fabric(cluster, network)
