"""The other ranks of a group on the CPU: started, watched, ended."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import TypeVar

import msgspec

import hpcverify.check as hv
from hpcverify_checks.ranks.board import open_board
from hpcverify_checks.ranks.rendezvous import POLL_SECONDS, RankGroup, require_loopback

T = TypeVar("T")

READY, RESULT = "ready", "result"
"""The messages of a rank that is about to meet the others, and of its last result."""

LOAD_TIMEOUT_SECONDS = 120.0
"""The time in which a rank loads torch, and ends: seconds of work, minutes on a busy node."""
KILL_TIMEOUT_SECONDS = 5.0
DEATH_NOTICE_SECONDS = 1.0
"""The time from a broken connection to the end of the process at its other end."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A rank in a process of its own, in the process group of this one."""

    group: RankGroup
    rank: int
    process: subprocess.Popen[bytes]
    log: Path
    """What it prints, in the folder of the group."""

    @classmethod
    def start(cls, group: RankGroup, rank: int, work: str) -> Peer:
        """Start *rank*, which calls ``run_rank`` of the module *work*."""
        program = [sys.executable, "-P", "-m", "hpcverify_checks.ranks.rank_main", work]
        order = [str(rank), str(os.getpid()), msgspec.json.encode(group).decode()]
        log = Path(group.folder) / f"rank{rank}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(  # noqa: S603 - our own module
                [*program, *order], stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
        return cls(group, rank, process, log)

    def await_ready(self) -> None:
        """Wait until the rank is about to meet the others."""
        self._await(lambda: self._read(READY) is not None)

    def wait_for_result(self, kind: type[T]) -> T:
        """Wait for the rank to end without error, and read its last result, a *kind*."""
        self._await(lambda: self.process.poll() == 0)
        result = self.read_result(kind)
        if result is None:
            text = f"rank {self.rank} ended without a result"
            raise hv.Unable(text, hv.Cause.CRASHED, hv.Remedy.RERUN)
        return result

    def read_result(self, kind: type[T]) -> T | None:
        """Read the last result of the rank so far, even if it has crashed; None without one."""
        result = self._read(RESULT)
        return None if result is None else msgspec.json.decode(result, type=kind)

    def _read(self, topic: str) -> bytes | None:
        return open_board(self.group.folder).read(topic).get(self.rank)

    def _await(self, condition: Callable[[], bool]) -> None:
        patience = max(self.group.timeout, LOAD_TIMEOUT_SECONDS)
        deadline = monotonic() + patience
        while not condition():
            self.require_alive()
            if monotonic() > deadline:
                text = f"rank {self.rank} did not answer for {patience:g} s"
                raise hv.Unable(text, hv.Cause.TIMEOUT, hv.Remedy.RERUN)
            sleep(POLL_SECONDS)

    def require_alive(self) -> None:
        """Raise `Unable`, with the last line of its output, if the rank has died."""
        status = self.process.poll()
        if not status:
            return
        lines = self.log.read_text(errors="replace").strip().splitlines()
        last = lines[-1] if lines else "it printed nothing"
        text = f"rank {self.rank} died with status {status}: {last}"
        raise hv.Unable(text, hv.Cause.CRASHED, hv.Remedy.RERUN)

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
        except (RuntimeError, hv.Unable):  # a connection broke: gloo has no other exception
            for peer in started:
                peer.require_survived()
            raise
