"""
Where the command begins: with a worker, before the engine has even imported itself.

To get ready to read the hardware takes a worker longer than to read it, and the engine
as long again: side by side they need half the time, which Slurm's prolog waits for.
It lists the hardware, which loads nothing and changes nothing, before it is told to:
the first order of every run is that.
"""

from __future__ import annotations

import gc
import io
import os
import signal
import sys
import time
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from types import ModuleType
from typing import IO, NamedTuple

STDERR_DESCRIPTOR = 2
EXIT_UNVERIFIED = 3
PRELOAD_COMMAND = "ready"
"""The first word of a line that is no order, but names checks to come."""
UMASK = 0o022
"""What we make is never for others to change, whatever umask we were started with."""
HOOKS_LOCK_VARIABLE = "HPCVERIFY_LOCK"
"""The variable in which Slurm's hooks name the descriptor of their lock."""
HELP_OPTIONS = frozenset({"-h", "--help"})
EARLY_REAP_SECONDS = 0.3
"""Seconds to wait for a worker that nobody took over, and that was killed."""

_early_worker: ForkedWorker | None = None


def main() -> None:
    """Run the command line; for one that verifies, start the worker beside it."""
    global _early_worker  # noqa: PLW0603 - click stands between here and who takes it
    _reopen_closed_streams()
    _print_in_any_encoding()
    os.umask(os.umask(UMASK) | UMASK)
    try:
        if sys.argv[1:2] == ["run"] and HELP_OPTIONS.isdisjoint(sys.argv):
            with suppress(OSError):  # a crowded node: `take_worker` tries again
                _early_worker = fork()
        from hpcverify.cli import main as cli  # noqa: PLC0415 - not in the worker

        cli()
    except KeyboardInterrupt:  # before anybody was there to take it
        sys.stderr.write("hpcverify: interrupted\n")
        sys.exit(EXIT_UNVERIFIED)
    except OSError as exc:  # a node so crowded that we cannot even import ourselves
        sys.stderr.write(f"hpcverify: {exc}\n")
        sys.exit(EXIT_UNVERIFIED)
    finally:
        if _early_worker is not None:
            _early_worker.end()


def _reopen_closed_streams() -> None:
    """Open something for each standard stream that the caller closed."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= STDERR_DESCRIPTOR:
        pass
    os.close(descriptor)
    sys.stdout = sys.stdout or open(1, "w")  # noqa: SIM115 - for as long as we live
    sys.stderr = sys.stderr or open(STDERR_DESCRIPTOR, "w")  # noqa: SIM115 - likewise


def _print_in_any_encoding() -> None:
    """Have what the terminal's encoding lacks be spelled out, and stop nobody."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def take_worker() -> ForkedWorker:
    """
    Hand over the worker that was started with the command, or start it now.

    Raises:
        OSError: no process can be started.

    """
    begun = _early_worker or fork()
    _collect_garbage_again()
    return begun


class WorkerFiles(NamedTuple):
    """
    Where a worker reads and writes, as descriptors of memory files.

    They need no directory and no disk, which may be full, and go with the processes.
    """

    requests: int
    responses: int
    log: int
    breadcrumb: int


def create_worker_files(opened: ExitStack) -> WorkerFiles:
    """Make the files of one worker, which are closed with *opened*."""
    made: list[int] = []
    for name in WorkerFiles._fields:
        made.append(os.memfd_create(name))
        opened.callback(os.close, made[-1])
    return WorkerFiles(*made)


class ForkedWorker:
    """A child of ours, with as much of `subprocess.Popen` as an executor needs."""

    def __init__(self, pid: int, stdin: IO[bytes], files: WorkerFiles) -> None:
        """Take over the child *pid*, which is told of orders by *stdin*."""
        self.pid = pid
        self.stdin: IO[bytes] | None = stdin
        self.returncode: int | None = None
        self.files = files

    def preload_checks(self, checks: Iterable[str]) -> None:
        """Have it import *checks*, of which it will be told, while it waits."""
        if self.stdin is not None:
            with suppress(BrokenPipeError):  # how it ended shows when it is polled
                self.stdin.write(f"{PRELOAD_COMMAND} {' '.join(checks)}\n".encode())
                self.stdin.flush()

    def poll(self) -> int | None:
        """Say how it ended, if it has: minus the signal, or its exit status."""
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
        """End it, if nobody has; one that cannot be ended dies with us or later."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)
        until = time.monotonic() + EARLY_REAP_SECONDS
        while self.poll() is None and time.monotonic() < until:
            time.sleep(0.001)


def fork() -> ForkedWorker:
    """
    Start a worker from this process, which must have no threads yet.

    Both go on to import a lot, of which nothing is garbage: the garbage collector,
    which would take a tenth of the time, is off until each is ready.
    """
    gc.disable()
    # What both need is imported once, before they part.
    from hpcverify import worker  # noqa: PLC0415 - not for help

    parent = os.getpid()
    with ExitStack() as opened:
        files = create_worker_files(opened)
        reading, writing = os.pipe()
        opened.callback(os.close, writing)
        opened.callback(os.close, reading)
        pid = os.fork()
        if not pid:
            _run_worker(worker, reading, files, parent)
        opened.pop_all()
    os.close(reading)
    return ForkedWorker(pid, os.fdopen(writing, "wb"), files)


def _collect_garbage_again() -> None:
    """Look for garbage from now on, but not in what is there, not even at the end."""
    gc.freeze()
    gc.enable()


def _run_worker(worker: ModuleType, reading: int, files: WorkerFiles, parent: int) -> None:
    """Be the worker; never returns."""
    status = 1
    try:
        os.setsid()
        os.dup2(reading, 0)
        os.dup2(files.log, 1)
        os.dup2(files.log, 2)
        _close_other_files(files)
        worker.begin(parent, files.breadcrumb)
        ahead = worker.see_ahead()
        _collect_garbage_again()
        worker.serve(files.requests, files.responses, ahead)
        status = 0
    except BaseException:  # noqa: BLE001 - told in the log, for nothing else is left
        import traceback  # noqa: PLC0415 - hardly ever

        traceback.print_exc()
        sys.stderr.flush()
    finally:  # not back into what the parent is about to do
        os._exit(status)


def _close_other_files(files: WorkerFiles) -> None:
    """
    Close what the caller had open, as locks and pipes that wait for our end.

    But for the hooks' lock: a worker that a driver never lets go of keeps it, so that
    the next hook does not lose one more to it.
    """
    kept = {*map(str, files), os.environ.get(HOOKS_LOCK_VARIABLE)}
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - pathlib is not there yet
        if int(name) > STDERR_DESCRIPTOR and name not in kept:
            with suppress(OSError):  # that of the listing itself
                os.close(int(name))
