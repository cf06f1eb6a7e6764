"""Real ranks of gloo on this machine, by launchers as Slurm starts them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import msgspec

from hpcverify.records.collectives import SECRET_VARIABLE, CollectiveRun
from hpcverify_checks.collectives.launch import launch
from hpcverify_checks.collectives.order import LaunchOrder
from hpcverify_checks.ranks.operations import OPERATIONS
from tests.waiting import PATIENCE_S

KIB, MIB = 2**10, 2**20
SMALL: Mapping[str, Any] = {
    "folder": "",
    "backend": "",
    "operations": tuple(OPERATIONS),
    "sizes": (4 * KIB,),
    "seconds": 0.2,
    "timeout": PATIENCE_S,
    "seed": 1,
    "algorithm": "auto",
    "alone": False,
    "timeline": True,
    "group": "test",
    "address": "127.0.0.1",
}


def launch_here(world: int, **others: Any) -> CollectiveRun:
    """Launch all ranks of a node from here."""
    ranks = tuple((rank, rank) for rank in range(world))
    own: dict[str, Any] = {"world": world, "ranks": ranks, "node": "n1"}
    order = LaunchOrder(**{**SMALL, **own, **others})
    return msgspec.json.decode(launch(msgspec.json.encode(order)), type=CollectiveRun)


PROGRAM = """
import sys
from hpcverify.check import Unable
from hpcverify_checks.collectives.launch import launch
try:
    sys.stdout.buffer.write(launch(sys.argv[1].encode()))
except Unable as exc:
    sys.exit(f"unable: {exc}")
"""
PATIENCE = 120.0
KNOWN = "what only the user of this job knows"


FAR = 20
"""Waits for others: then it measures."""


def read_position_of(process: int) -> int:
    """Read how far a rank is, from the file that its launcher reads; 0 before there is one."""
    try:
        for link in Path(f"/proc/{process}/fd").iterdir():
            if "memfd:position" in str(link.readlink()):
                return int.from_bytes(link.read_bytes(), "little")
    except OSError:  # it is about to begin, or to end
        return 0
    return 0


class Launcher:
    """The launcher of one rank, on a node of its own as far as it knows."""

    def __init__(self, rank: int, order: LaunchOrder) -> None:
        """Start it."""
        self.rank = rank
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, msgspec.json.encode(order).decode()],
            env=os.environ | {SECRET_VARIABLE: KNOWN},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def await_measuring(self) -> int:
        """Wait until its rank waits for others again and again; give its process."""
        return self.await_child(FAR)

    def await_child(self, far: int = -1) -> int:
        """Wait until its rank is there, and so *far*; give its process."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        deadline = monotonic() + PATIENCE_S
        while monotonic() < deadline:
            for child in map(int, children.read_text().split()):
                if read_position_of(child) > far:
                    return child
            sleep(0.1)
        raise AssertionError(f"rank {self.rank} does not measure: {self.process.poll()}")

    def read_result(self) -> tuple[CollectiveRun | None, str]:
        """Wait for its end; give the result, if it has one, and what it complained of."""
        out, errors = self.process.communicate(timeout=PATIENCE_S)
        run = msgspec.json.decode(out, type=CollectiveRun) if out else None
        return run, errors.decode()

    def end(self) -> None:
        """Kill it; its rank dies with it, even if that is stopped."""
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate()


@contextmanager
def launch_nodes(world: int, **others: Any) -> Generator[Sequence[Launcher]]:
    """Start a launcher for each rank, each on a node of its own: n0, n1, ..."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with ExitStack() as stack:
        launchers = []
        for rank in range(world):
            own: dict[str, Any] = {"world": world, "node": f"n{rank}", "port": port}
            own["ranks"] = ((rank, 0),)
            launchers.append(Launcher(rank, LaunchOrder(**{**SMALL, **own, **others})))
            stack.callback(launchers[-1].end)
        yield launchers
