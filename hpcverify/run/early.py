"""
Where the command begins: a worker starts before the engine has imported itself.

Getting ready to read the hardware takes longer than reading it, for the worker and for
the engine. Side by side they need half the time, and Slurm's prolog waits for it. The
worker lists the hardware before it is asked: every run asks for that first, and it
loads and changes nothing.
"""

from __future__ import annotations

import gc
import io
import os
import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from types import ModuleType

from hpcverify.run.process import ForkedWorker, WorkerFiles, create_worker_files

STDERR_DESCRIPTOR = 2
EXIT_UNVERIFIED = 3
UMASK = 0o022
"""Nobody else may change the files that we make, whatever umask we start with."""
HOOKS_LOCK_VARIABLE = "HPCVERIFY_LOCK"
"""Slurm's hooks put the descriptor of their lock in this variable."""
HELP_OPTIONS = frozenset({"-h", "--help"})

_early_worker: ForkedWorker | None = None


def run_beside_worker(command_line: Callable[[], None]) -> None:
    """Run *command_line*; if it will verify this node, start a worker first."""
    global _early_worker  # noqa: PLW0603 - click is between here and `take_worker`
    _reopen_closed_streams()
    _print_in_any_encoding()
    os.umask(os.umask(UMASK) | UMASK)
    try:
        if sys.argv[1:2] == ["run"] and HELP_OPTIONS.isdisjoint(sys.argv):
            with suppress(OSError):  # a crowded node: `take_worker` tries again
                _early_worker = fork()
        command_line()
    except KeyboardInterrupt:  # before a handler was installed
        sys.stderr.write("hpcverify: interrupted\n")
        sys.exit(EXIT_UNVERIFIED)
    except OSError as exc:  # a node too crowded to import ourselves
        sys.stderr.write(f"hpcverify: {exc}\n")
        sys.exit(EXIT_UNVERIFIED)
    finally:
        if _early_worker is not None:
            _early_worker.end()


def _reopen_closed_streams() -> None:
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= STDERR_DESCRIPTOR:
        pass
    os.close(descriptor)
    sys.stdout = sys.stdout or open(1, "w")  # noqa: SIM115 - for as long as we live
    sys.stderr = sys.stderr or open(STDERR_DESCRIPTOR, "w")  # noqa: SIM115 - likewise


def _print_in_any_encoding() -> None:
    """Spell out characters that the terminal's encoding lacks, rather than fail."""
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


def fork() -> ForkedWorker:
    """
    Start a worker from this process, which must have no threads yet.

    Both go on to import a lot, and none of it is garbage. The garbage collector, which
    would take a tenth of the time, is off until each is ready.
    """
    gc.disable()
    # Import what both need once, before they part.
    from hpcverify.run import worker  # noqa: PLC0415 - not for help

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
    """Collect garbage from now on, but never look at what already exists."""
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
        worker.become_worker(parent, files.breadcrumb)
        ahead = worker.probe_ahead()
        _collect_garbage_again()
        worker.serve(files.requests, files.responses, ahead)
        status = 0
    except BaseException:  # noqa: BLE001 - it goes to the log: nothing else is left
        import traceback  # noqa: PLC0415 - hardly ever

        traceback.print_exc()
        sys.stderr.flush()
    finally:  # not back into what the parent is about to do
        os._exit(status)


def _close_other_files(files: WorkerFiles) -> None:
    """
    Close what the caller had open, such as locks and pipes that wait for us to end.

    Keep the hooks' lock: while a driver holds a worker for good, the next hook must not
    lose another worker to it.
    """
    kept = {*map(str, files), os.environ.get(HOOKS_LOCK_VARIABLE)}
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - pathlib is not there yet
        if int(name) > STDERR_DESCRIPTOR and name not in kept:
            with suppress(OSError):  # that of the listing itself
                os.close(int(name))
