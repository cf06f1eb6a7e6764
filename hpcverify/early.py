"""
Where the command begins: with a worker, before the engine has even imported itself.

To get ready to read the hardware takes a worker longer than to read it, and the engine
as long again: side by side they need half the time, which Slurm's prolog waits for.
It lists the hardware, which loads nothing and changes nothing, before it is told to:
the first order of every run is that. What it writes goes to memory files, for there is
no directory for it yet.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from select import select
from types import ModuleType
from typing import IO, NamedTuple

_begun: Forked | None = None


def main() -> None:
    """Run the command line; for one that verifies, start the worker beside it."""
    global _begun  # noqa: PLW0603 - click stands between here and who takes it
    if sys.argv[1:2] == ["run"]:
        _begun = fork()
    from hpcverify.cli import main as cli  # noqa: PLC0415 - not in the worker

    cli()


def worker() -> Forked:
    """Hand over the worker that was started with the command, or start it now."""
    return _begun or fork()


class Files(NamedTuple):
    """Where a worker writes: its replies, its log, and its trail."""

    replies: Path
    log: Path
    trail: Path


class Forked:
    """A child of ours, with as much of `subprocess.Popen` as an executor needs."""

    def __init__(self, pid: int, stdin: IO[bytes], files: Files) -> None:
        """Take over the child *pid*, which reads orders from *stdin*."""
        self.pid = pid
        self.stdin: IO[bytes] | None = stdin
        self.returncode: int | None = None
        self.files = files

    def poll(self) -> int | None:
        """Say how it ended, if it has: minus the signal, or its exit status."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode


def fork() -> Forked:
    """Start a worker from this process, which must have no threads yet."""
    # What both need is imported once, before they part.
    from hpcverify import worker  # noqa: PLC0415 - not for help

    files = Files(_memory_file("replies"), _memory_file("log"), _memory_file("trail"))
    parent = os.getpid()
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(writing)
        _serve(worker, reading, files, parent)
    os.close(reading)
    return Forked(pid, os.fdopen(writing, "wb"), files)


def _memory_file(name: str) -> Path:
    """Make a file that lives as long as this process; others may open it by path."""
    return Path(f"/proc/{os.getpid()}/fd/{os.memfd_create(name)}")


def _serve(worker: ModuleType, reading: int, files: Files, parent: int) -> None:
    """Be the worker; never returns."""
    status = 1
    try:
        os.setsid()
        os.dup2(reading, 0)
        descriptor = os.open(files.log, os.O_WRONLY | os.O_APPEND)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        worker.begin(parent, files.trail)
        ahead = worker.see()
        _get_ready(reading)
        worker.serve(files.replies, ahead)
        status = 0
    finally:  # not back into what the parent is about to do
        os._exit(status)


def _get_ready(orders: int) -> None:
    """Import the checks, one by one, for as long as no order has come."""
    from hpcverify import catalog  # noqa: PLC0415 - not in the engine

    names = catalog.names()
    while not select([orders], [], [], 0)[0] and (name := next(names, None)):
        catalog.load(name)
