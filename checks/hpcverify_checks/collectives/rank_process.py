"""The processes of the ranks that one launcher starts."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from io import FileIO

import msgspec

from hpcverify.memory_files import create_memory_file
from hpcverify.processes import name_signal, read_process_state
from hpcverify_checks.collectives.hangs import Heartbeat
from hpcverify_checks.collectives.order import LaunchOrder
from hpcverify_checks.collectives.rank import RankOrder
from hpcverify_checks.collectives.recorder import BUFFER
from hpcverify_checks.ranks.collective import CollectiveJob
from hpcverify_checks.ranks.peers import KILL_TIMEOUT_SECONDS
from hpcverify_checks.ranks.progress import make_file, read_position
from hpcverify_checks.ranks.rendezvous import MAX_REASON_CHARACTERS


@dataclass(frozen=True, slots=True)
class RankProcess:
    """The process of a rank, with what it prints and its position."""

    rank: int
    process: subprocess.Popen[bytes]
    log: FileIO
    progress: int
    """The descriptor of the file in which it keeps its position."""

    def read_heartbeat(self) -> Heartbeat:
        """Read how far the rank is, and the state of its process."""
        return Heartbeat(read_position(self.progress), read_process_state(self.process.pid))

    def describe_end(self) -> str:
        """Describe how it died; empty if it runs, or ended as it should."""
        status = self.process.poll()
        if not status:
            return ""
        self.log.seek(0)
        lines = self.log.read().decode(errors="replace").strip().splitlines()
        end = name_signal(-status) if status < 0 else f"status {status}"
        last = lines[-1][:MAX_REASON_CHARACTERS] if lines else "it printed nothing"
        return f"died with {end}: {last}"

    def end(self) -> None:
        """Kill it if it still runs."""
        if self.process.poll() is None:
            self.process.kill()
        with suppress(subprocess.TimeoutExpired):  # stuck in the kernel: nothing can end it
            self.process.wait(KILL_TIMEOUT_SECONDS)
        self.log.close()
        os.close(self.progress)


@contextmanager
def start_ranks(
    order: LaunchOrder, job: CollectiveJob, settings: Mapping[str, str]
) -> Generator[list[RankProcess]]:
    """Start the ranks of *order* with more *settings* in their environment; end them at last."""
    environment = {**BUFFER, **os.environ, **settings}
    with ExitStack() as stack:
        children: list[RankProcess] = []
        for rank, local_rank in order.ranks:
            progress = make_file()
            rank_order = RankOrder(job, rank, local_rank, order.node, os.getpid(), progress)
            text = msgspec.json.encode(rank_order).decode()
            log = FileIO(create_memory_file("log"), "r+")
            process = subprocess.Popen(  # noqa: S603 - our own module
                [sys.executable, "-P", "-m", "hpcverify_checks.collectives.rank", text],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                pass_fds=[progress],
            )
            children.append(RankProcess(rank, process, log, progress))
            stack.callback(children[-1].end)
        yield children
