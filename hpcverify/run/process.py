"""A worker process as the engine sees it: its files, and its end."""

from __future__ import annotations

import os
import signal
import time
from contextlib import ExitStack
from typing import IO, NamedTuple

from hpcverify.memory_files import create_memory_file

COUNTER_FLAGS = os.EFD_CLOEXEC | os.EFD_NONBLOCK
"""Neither side ever waits to write or to read the counter."""
EARLY_REAP_SECONDS = 0.3
"""Seconds to wait for a killed worker that nobody took over."""


class WorkerFiles(NamedTuple):
    """The memory files of a worker, as descriptors."""

    requests: int
    responses: int
    log: int
    breadcrumb: int
    done: int
    """A counter (eventfd) that the worker raises after each outcome, to wake the engine."""


def create_worker_files(opened: ExitStack) -> WorkerFiles:
    """Make the files of one worker; *opened* closes them."""
    made: list[int] = []
    for name in WorkerFiles._fields:
        made.append(os.eventfd(0, COUNTER_FLAGS) if name == "done" else create_memory_file(name))
        opened.callback(os.close, made[-1])
    return WorkerFiles(*made)


class ForkedWorker:
    """A child of ours, with as much of `subprocess.Popen` as an executor needs."""

    def __init__(self, pid: int, stdin: IO[bytes], files: WorkerFiles) -> None:
        """Take over the child *pid*, which gets its requests through *stdin*."""
        self.pid = pid
        self.stdin: IO[bytes] | None = stdin
        self.returncode: int | None = None
        self.files = files

    def poll(self) -> int | None:
        """Return how it ended, if it has: minus the signal, or its exit status."""
        if self.returncode is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:  # our caller has the kernel reap for us
                self.returncode = 0
                return self.returncode
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def end(self) -> None:
        """End it, if nobody has; one that cannot be ended now dies later."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)
        until = time.monotonic() + EARLY_REAP_SECONDS
        while self.poll() is None and time.monotonic() < until:
            time.sleep(0.001)
