"""The other ranks of a group on the CPU: started, watched, ended."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from time import monotonic, sleep
from typing import TypeVar

import msgspec

from hpcverify.check import Cause, Remedy, Unable
from hpcverify_checks.common.rendezvous import (
    POLL_SECONDS,
    RankGroup,
    file_of,
    require_loopback,
)

T = TypeVar("T")

LOAD_TIMEOUT_SECONDS = 120.0
"""A rank loads torch, and ends, in seconds of work, which are minutes on a busy node."""
KILL_TIMEOUT_SECONDS = 5.0
DEATH_NOTICE_SECONDS = 1.0
"""A process ends this long after its connection broke."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A rank in a process of its own, in the process group of this one."""

    group: RankGroup
    rank: int
    process: subprocess.Popen[bytes]

    @classmethod
    def start(cls, group: RankGroup, rank: int, work: str) -> Peer:
        """Start *rank*; its output goes to a file in the folder of the group."""
        program = [sys.executable, "-P", "-m", "hpcverify_checks.common.rank_main", work]
        order = [str(rank), str(os.getpid()), msgspec.json.encode(group).decode()]
        with file_of(group, f"rank{rank}.log").open("wb") as log:
            process = subprocess.Popen(  # noqa: S603 - our own module
                [*program, *order], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        return cls(group, rank, process)

    def await_ready(self) -> None:
        """Wait until the rank is about to meet the others."""
        self._await(file_of(self.group, f"rank{self.rank}.ready").exists)

    def wait_for_result(self, kind: type[T]) -> T:
        """Wait for the rank to end without error, and read its last result, a *kind*."""
        self._await(lambda: self.process.poll() == 0)
        return self.read_results(kind)[-1]

    def read_results(self, kind: type[T]) -> list[T]:
        """Read all results of the rank so far, even if it has crashed."""
        path = file_of(self.group, f"rank{self.rank}.json")
        if not path.exists():
            return []
        whole, _, _ = path.read_bytes().rpartition(b"\n")  # the rest is half a line
        return [msgspec.json.decode(line, type=kind) for line in whole.splitlines()]

    def _await(self, condition: Callable[[], bool]) -> None:
        patience = max(self.group.timeout, LOAD_TIMEOUT_SECONDS)
        deadline = monotonic() + patience
        while not condition():
            self.require_alive()
            if monotonic() > deadline:
                text = f"rank {self.rank} did not answer for {patience:g} s"
                raise Unable(text, Cause.TIMEOUT, Remedy.RERUN)
            sleep(POLL_SECONDS)

    def require_alive(self) -> None:
        """Raise `Unable`, with the last line of its output, if the rank has died."""
        status = self.process.poll()
        if not status:
            return
        output = file_of(self.group, f"rank{self.rank}.log").read_text(errors="replace")
        last = (output.strip().splitlines() or ["it printed nothing"])[-1]
        text = f"rank {self.rank} died with status {status}: {last}"
        raise Unable(text, Cause.CRASHED, Remedy.RERUN)

    def require_survived(self) -> None:
        """After a broken connection: raise `Unable` if this is the rank that died."""
        deadline = monotonic() + DEATH_NOTICE_SECONDS
        while monotonic() < deadline:
            self.require_alive()
            sleep(POLL_SECONDS)

    def end(self) -> None:
        """Kill the rank if it still runs, and wait up to `KILL_TIMEOUT_SECONDS`."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(KILL_TIMEOUT_SECONDS)


@contextmanager
def start_peers(group: RankGroup, work: str) -> Generator[list[Peer]]:
    """Run ``run_rank`` of the module *work* in all ranks but the first; end all of them."""
    require_loopback()
    with ExitStack() as stack:
        started: list[Peer] = []
        for rank in range(1, group.world):
            started.append(Peer.start(group, rank, work))
            stack.callback(started[-1].end)
        for peer in started:
            peer.await_ready()
        try:
            yield started
        except (RuntimeError, Unable):  # a connection broke: gloo has no other exception
            for peer in started:
                peer.require_survived()
            raise
