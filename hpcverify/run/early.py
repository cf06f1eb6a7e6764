"""
How a command begins, and the worker of a run with it.

The worker is forked when what it and the engine both need is imported: so each module is
imported once, for both. It lists the hardware while the engine imports what only the
engine needs: every run asks for that first, and it loads and changes nothing. Slurm's
prolog waits for all of this.
"""

from __future__ import annotations

import gc
import io
import os
import signal
import sys
from collections.abc import Callable, Generator, Iterable
from contextlib import ExitStack, contextmanager, suppress

from hpcverify.run.process import ForkedWorker, WorkerFiles, create_worker_files

STDERR_DESCRIPTOR = 2
EXIT_UNVERIFIED = 3
UMASK = 0o022
"""Nobody else may change the files that we make, whatever umask we start with."""
HOOKS_LOCK_VARIABLE = "HPCVERIFY_LOCK"
"""Slurm's hooks put the descriptor of their lock in this variable."""


def run_command(command: Callable[[], object]) -> None:
    """Run *command* in a process whose streams, signals and umask are as it expects them."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= STDERR_DESCRIPTOR:
        pass
    os.close(descriptor)
    sys.stdout = sys.stdout or open(1, "w")  # noqa: SIM115 - for as long as we live
    sys.stderr = sys.stderr or open(STDERR_DESCRIPTOR, "w")  # noqa: SIM115 - likewise
    # Spell out characters that the terminal's encoding lacks, rather than fail.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    # While SIGCHLD is ignored, the kernel keeps no exit status: each program would return 0.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.umask(os.umask(UMASK) | UMASK)
    try:
        command()
    except KeyboardInterrupt:  # before a handler was installed
        sys.stderr.write("hpcverify: interrupted\n")
        sys.exit(EXIT_UNVERIFIED)
    except OSError as exc:  # a node too crowded to import ourselves
        sys.stderr.write(f"hpcverify: {exc}\n")
        sys.exit(EXIT_UNVERIFIED)


@contextmanager
def start_worker(checks: Iterable[str]) -> Generator[ForkedWorker]:
    """Start a worker that knows *checks*, before any thread; it ends with the block."""
    from hpcverify.run import worker  # noqa: PLC0415 - not for help

    worker.preload_checks(checks)
    parent = os.getpid()
    with ExitStack() as opened:
        files = create_worker_files(opened)
        reading, writing = os.pipe()
        opened.callback(os.close, writing)
        opened.callback(os.close, reading)
        pid = os.fork()
        if not pid:
            _run_worker(reading, files, parent)
        opened.pop_all()
    os.close(reading)
    started = ForkedWorker(pid, os.fdopen(writing, "wb"), files)
    try:
        yield started
    finally:
        started.end()


def _run_worker(reading: int, files: WorkerFiles, parent: int) -> None:
    from hpcverify.run import worker  # noqa: PLC0415 - loaded long ago

    status = 1
    try:
        os.setsid()
        os.dup2(reading, 0)
        os.dup2(files.log, 1)
        os.dup2(files.log, 2)
        _close_other_files(files)
        worker.become_worker(parent, files.breadcrumb)
        ahead = worker.probe_ahead()
        gc.freeze()  # what was imported is not searched for garbage
        worker.serve(files.requests, files.responses, files.done, ahead)
        status = 0
    except BaseException:  # noqa: BLE001 - it goes to the log: nothing else is left
        import traceback  # noqa: PLC0415 - hardly ever

        traceback.print_exc()
        sys.stderr.flush()
    finally:  # not back into what the parent is about to do
        os._exit(status)


def _close_other_files(files: WorkerFiles) -> None:
    """Close the descriptors of the caller, but not the hooks' lock: a hung worker keeps it."""
    kept = {*map(str, files), os.environ.get(HOOKS_LOCK_VARIABLE)}
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - pathlib is not there yet
        if int(name) > STDERR_DESCRIPTOR and name not in kept:
            with suppress(OSError):  # that of the listing itself
                os.close(int(name))
