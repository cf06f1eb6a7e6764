"""
Run an external program that may touch a device, with a bound on every wait.

A program that waits in the kernel for a lost device cannot be ended, and anyone who
waits for it hangs too. Its output goes to memory files: not to a pipe, which a surviving
grandchild could hold open, and not to a disk, which may be the broken part.

A program leads its own process group: some signal their whole group when they fail (fio
does), which must not be ours. It stays in its caller's session, so the engine ends it
with the worker, and it dies with the thread that started it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, nullcontext, suppress
from functools import partial
from io import FileIO
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from msgspec import Struct

from hpcverify.check import Unable
from hpcverify.errors import SHORTAGE_HINTS, explain_shortage
from hpcverify.memory_files import create_memory_file
from hpcverify.model import Cause, Remedy

if TYPE_CHECKING:
    import subprocess

TOOL_GRACE_SECONDS = 2.0
"""Seconds for a program to end after TERM, and again after KILL."""
LOOK_SECONDS = 0.1
"""Seconds between two looks at a program that should be gone."""
DEATH_SECONDS = 20.0
"""Seconds for a process to end after KILL that does not wait in the kernel: on a busy node it
needs a core first, and the kernel may have hundreds of GB to take back."""

STOPPED = ("T", "t")
"""States of a process in /proc: stopped by a signal, or by a debugger."""
DISK_WAIT = "D"
"""The state of a process that waits in the kernel and cannot be ended."""
STOPPED_REASON = "stopped by a signal (SIGSTOP). Fix: find its sender, and run again"

NO_THREAD_HINT = SHORTAGE_HINTS[errno.EAGAIN]

PR_SET_PDEATHSIG = 1

_PRCTL = ctypes.CDLL(None).prctl


class CompletedTool(Struct, frozen=True):
    """How a program ended (negative: minus the signal), and its output."""

    returncode: int
    stdout: bytes
    stderr: bytes


ToolRunner = Callable[..., CompletedTool]
"""`run_tool`, or a recording of it."""


def run_tool(
    command: Sequence[str],
    *,
    timeout: float,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    stdin: bytes = b"",
    package: str = "",
) -> CompletedTool:
    """
    Run *command* on *stdin* for up to *timeout* seconds, and return its result.

    *package* is its Debian package, for the message if it is not installed.

    Raises:
        Unable: it is not installed (MISSING), the node cannot start it (NO_RESOURCES),
            it was ended after *timeout* (TIMEOUT), or it could not be ended (HUNG).

    """
    opened = _open_memory_file("stdin") if stdin else nullcontext()
    with opened as source, _open_memory_file("stdout") as out, _open_memory_file("stderr") as err:
        if source is not None:
            source.write(stdin)
            source.seek(0)
        child = _start_tool(command, (source, out, err), cwd, env, package)
        try:
            status = _wait_for_status(child, command[0], timeout)
        finally:  # also when a signal handler of ours raised meanwhile
            if child.returncode is None:
                _signal_group(child, signal.SIGKILL)
                _wait_for_end(child, TOOL_GRACE_SECONDS)
        return CompletedTool(status, _read_all(out), _read_all(err))


def _open_memory_file(name: str) -> closing[FileIO]:
    return closing(FileIO(create_memory_file(name), "r+"))


def _read_all(file: FileIO) -> bytes:
    file.seek(0)
    return file.readall()


def _start_tool(
    command: Sequence[str],
    files: tuple[FileIO | None, FileIO, FileIO],
    cwd: Path | None,
    env: Mapping[str, str] | None,
    package: str,
) -> subprocess.Popen[bytes]:
    import subprocess  # noqa: PLC0415 - 4 ms, and a passive run starts nothing

    source, out, err = files
    try:
        return subprocess.Popen(  # noqa: S603 - the commands are ours, never a shell's
            command,
            stdin=subprocess.DEVNULL if source is None else source,
            stdout=out,
            stderr=err,
            cwd=cwd,
            env=env,
            process_group=0,
            preexec_fn=make_death_request(os.getpid()),  # noqa: PLW1509 - calls two functions resolved before the fork, and takes no lock
        )
    except OSError as exc:
        tool = command[0]
        if short := explain_shortage(exc):
            reason = f"{tool} cannot be started: {short}"
            raise Unable(reason, Cause.NO_RESOURCES, Remedy.INSPECT) from exc
        if exc.errno != errno.ENOENT or exc.filename != tool:
            raise  # as when the directory is missing
        fix = f"apt-get install {package}" if package else "install it"
        raise Unable(f"{tool} is not installed", Cause.MISSING, fix=fix) from exc


def explain_errno(number: int) -> str:
    """Say what the node ran out of and where to look, if a program's error *number* means that."""
    return SHORTAGE_HINTS.get(number, "")


def make_death_request(parent: int) -> Callable[[], None]:
    """Make what a child of *parent* calls before it starts, so as to die with it."""
    # setpriv --pdeathsig would do the same, but util-linux has it only since 2.33
    # and Red Hat 8 ships 2.32.
    return partial(die_with_parent, parent)


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when *parent* dies, even by -9."""
    _PRCTL(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the request took hold
        os.kill(os.getpid(), signal.SIGKILL)


def _wait_for_status(child: subprocess.Popen[bytes], tool: str, timeout: float) -> int:
    if _wait_for_end(child, timeout):
        return child.wait()
    stopped = is_stopped(child.pid)
    _signal_group(child, signal.SIGTERM)
    if not _wait_for_end(child, TOOL_GRACE_SECONDS):
        _signal_group(child, signal.SIGKILL)
        if not _wait_for_death(child):
            raise Unable(
                f"{tool} (pid {child.pid}) cannot be ended, and waits in "
                f"{read_wait_channel(child.pid)}. Fix: reboot the node",
                Cause.HUNG,
                Remedy.REBOOT,
            )
    if stopped:
        raise Unable(
            f"{tool} did not end within {timeout:g} s: {STOPPED_REASON}",
            Cause.TIMEOUT,
            Remedy.RERUN,
        )
    raise Unable(
        f"{tool} did not end within {timeout:g} s and was ended. Fix: see the kernel log",
        Cause.TIMEOUT,
        Remedy.INSPECT,
    )


def _signal_group(child: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Signal a program and its children; *child* must not have been reaped."""
    with suppress(ProcessLookupError):
        os.killpg(child.pid, number)


def signal_sessions(leaders: Collection[int], number: signal.Signals) -> None:
    """Signal every process in the sessions of *leaders*, in any process group."""
    for leader in leaders:  # at once, so that it starts nothing while we look
        with suppress(ProcessLookupError):
            os.killpg(leader, number)
    for pid in list_session_members(leaders):
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def list_session_members(leaders: Collection[int]) -> Iterator[int]:
    """Yield the processes in the sessions of *leaders*, including the leaders."""
    for name in os.listdir("/proc"):  # noqa: PTH208 - thousands, and a prolog waits
        if name.isdigit():
            with suppress(ProcessLookupError):
                if os.getsid(int(name)) in leaders:
                    yield int(name)


def process_exists(pid: int) -> bool:
    """Whether process *pid* exists, even if we may not signal it."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def read_process_state(pid: int, proc: Path = Path("/proc")) -> str:
    """Read the state of process *pid*: R, S, D, T, ...; empty if it is gone; see proc(5)."""
    _, _, rest = _read_proc(proc / str(pid) / "stat").rpartition(")")
    return rest.split()[0] if rest else ""


def is_stopped(pid: int, proc: Path = Path("/proc")) -> bool:
    """Whether a signal or a debugger has stopped the process *pid*."""
    return read_process_state(pid, proc) in STOPPED


def read_queue_seconds(pid: int, proc: Path = Path("/proc")) -> float:
    """Read how long process *pid* was ready to run and waited for a core; see proc(5)."""
    words = _read_proc(proc / str(pid) / "schedstat").split()
    return int(words[1]) * 1e-9 if len(words) > 1 else 0.0


def _wait_for_end(child: subprocess.Popen[bytes], seconds: float) -> bool:
    from subprocess import TimeoutExpired  # noqa: PLC0415 - as in `_start_tool`

    try:
        child.wait(seconds)
    except TimeoutExpired:
        return False
    return True


def _wait_for_death(child: subprocess.Popen[bytes]) -> bool:
    wait, until = KernelWait(child.pid), monotonic() + DEATH_SECONDS
    while not _wait_for_end(child, LOOK_SECONDS):
        if wait.find_seconds() >= TOOL_GRACE_SECONDS or monotonic() > until:
            return False
    return True


def name_signal(number: int) -> str:
    """Name the signal *number*; real-time signals have only numbers."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


class KernelWait:
    """How long a killed process waits in the kernel: a thread that was not switched in."""

    def __init__(self, pid: int) -> None:
        """Watch the process *pid*, which nobody may have reaped."""
        self._tasks = Path("/proc", str(pid), "task")
        self._seen: dict[tuple[str, str], float] = {}

    def find_seconds(self) -> float:
        """Return for how long a thread has been seen in one wait; 0 if none is in any."""
        now = monotonic()
        self._seen = {wait: self._seen.get(wait, now) for wait in self._list_waits()}
        return now - min(self._seen.values(), default=now)

    def _list_waits(self) -> Iterator[tuple[str, str]]:
        for task in self._tasks.glob("*"):
            if read_process_state(int(task.name), self._tasks) == DISK_WAIT:
                yield task.name, _read_proc(task / "status").partition("\nvoluntary_")[2]


def read_wait_channel(pid: int, proc: Path = Path("/proc")) -> str:
    """Return the kernel functions in which the threads of *pid* wait."""
    channels = {
        name
        for task in (proc / str(pid) / "task").glob("*")
        if (name := _read_proc(task / "wchan")) not in {"", "0"}
    }
    return ", ".join(sorted(channels)) or "an unknown place in the kernel"


def _read_proc(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:  # the process has ended
        return ""
