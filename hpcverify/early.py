"""
Where the command begins: with a worker, before the engine has even imported itself.

To get ready to read the hardware takes a worker longer than to read it, and the engine
as long again: side by side they need half the time, which Slurm's prolog waits for.
Nothing is asked of the hardware until the engine sends the first order. What the
worker writes goes to memory files, for there is no directory for it yet.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path
from typing import IO

FIRST_ORDER = ("hpcverify.telemetry.probe", "hpcverify.telemetry.nvml.survey")
"""What the worker needs for the first order of every run."""

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


class Forked:
    """A child of ours, with as much of `subprocess.Popen` as an executor needs."""

    def __init__(self, pid: int, stdin: IO[bytes], replies: Path, log: Path) -> None:
        """Take over the child *pid*, which reads orders from *stdin*."""
        self.pid = pid
        self.stdin: IO[bytes] | None = stdin
        self.returncode: int | None = None
        self.replies = replies
        self.log = log

    def poll(self) -> int | None:
        """Say how it ended, if it has: minus the signal, or its exit status."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode


def fork() -> Forked:
    """Start a worker from this process, which must have no threads yet."""
    replies, log = _memory_file("replies"), _memory_file("log")
    parent = os.getpid()
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(writing)
        _serve(reading, replies, log, parent)
    os.close(reading)
    return Forked(pid, os.fdopen(writing, "wb"), replies, log)


def _memory_file(name: str) -> Path:
    """Make a file that lives as long as this process; others may open it by path."""
    return Path(f"/proc/{os.getpid()}/fd/{os.memfd_create(name)}")


def _serve(reading: int, replies: Path, log: Path, parent: int) -> None:
    """Be the worker; never returns."""
    status = 1
    try:
        os.setsid()
        os.dup2(reading, 0)
        descriptor = os.open(log, os.O_WRONLY | os.O_APPEND)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        from hpcverify.worker import serve  # noqa: PLC0415 - not in the engine

        for needed in FIRST_ORDER:
            import_module(needed)
        serve(replies, parent)
        status = 0
    finally:  # not back into what the parent is about to do
        os._exit(status)
