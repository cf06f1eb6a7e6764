"""
Run tasks on this machine, with a worker process for each device.

A worker that crashes, hangs or overruns is ended and replaced, and only its current
task is lost. Each worker leads its own session, so its children end with it, and writes
to files, so nobody waits on a pipe. Nobody can end a process in uninterruptible sleep:
after a bounded wait we abandon it and name it.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from hpcverify import breadcrumb
from hpcverify.breadcrumb import Breadcrumb
from hpcverify.errors import explain_shortage
from hpcverify.model import Cause, Remedy, Verdict
from hpcverify.processes import (
    DEATH_SECONDS,
    LOOK_SECONDS,
    STOPPED_REASON,
    KernelWait,
    is_stopped,
    list_session_members,
    name_signal,
    read_queue_seconds,
    read_wait_channel,
    signal_sessions,
)
from hpcverify.run import wire
from hpcverify.run.attribution import describe_overrun
from hpcverify.run.executor import Answer, Overrun
from hpcverify.run.process import ForkedWorker, WorkerFiles, create_worker_files

if TYPE_CHECKING:
    from subprocess import Popen

WORKER_COMMAND = (sys.executable, "-P", "-m", "hpcverify.run.worker")
"""Without -P, anything in the current directory could be imported."""
WORKER_GRACE_SECONDS = 1.0
"""Seconds between TERM and KILL for a worker that overran."""
REAP_SECONDS = 2.0
"""Seconds to wait for a killed worker that waits in the kernel, before it is abandoned as hung.
If it may have used a GPU it gets `DEATH_SECONDS`: the driver stops its kernels first, and unmaps
its memory."""
HURRIED_REAP_SECONDS = 0.3
"""The same for all when the run must end, and someone waits for the node."""
MIN_WAIT_SECONDS, MAX_WAIT_SECONDS = 0.005, 0.05
"""Seconds to wait for outcomes before we look whether a worker died: short at first."""
REAP_POLL_SECONDS = 0.0005
MAX_QUEUE_SHARE, MIN_QUEUE_SECONDS = 0.5, 10.0
"""How long a worker may wait for a core before that is why it is late."""
MAX_LOG_BYTES = 2**18
"""The part of a worker's log that is searched: after its last words come the stacks of
C++ and of every thread."""
FATAL_WORDS = "Fatal Python error: "
"""What begins the stacks of `faulthandler`; nothing after it says why."""
FRAME_WORDS = ("frame #", "Exception raised from ")
"""How the lines of a stack of C++ begin, as torch prints it."""
CPP_WORDS = "what(): "
"""What stands before the message of the exception that ended a C++ program."""
LOST_PEER_WORDS = "Watchdog caught collective operation timeout"
"""What torch prints before it aborts a process whose peer has not answered for too long."""
SIGTERM_DEATH = "killed by SIGTERM"
"""How a worker ends when a scheduler ends a job: it signals all processes, and the
engine may see the worker die before its own signal arrives."""
INTERRUPTED_OUTCOME = wire.Outcome(
    verdict=Verdict.ERROR, reason="interrupted", cause=Cause.INTERRUPTED, remedy=Remedy.RERUN
)


def describe_starvation(queued: float, seconds: float) -> str:
    """Say that a worker got no core for too many of its *seconds*, if it was *queued* so long."""
    if queued < max(MIN_QUEUE_SECONDS, MAX_QUEUE_SHARE * seconds):
        return ""
    return (
        f"the worker waited {queued:.0f} s for a core. Fix: end other processes on the node (see "
        "top), and run again"
    )


class WorkerHandle:
    """A worker process, and its files."""

    def __init__(self, process: Popen[bytes] | ForkedWorker, files: WorkerFiles) -> None:
        self._process = process
        self._files = files
        self._written = 0
        self._read = 0
        self._logged = 0
        """How long its log was before the present request."""
        self._queued = 0.0
        self.may_hold_gpu = False

    @classmethod
    def start(cls, command: Sequence[str]) -> WorkerHandle:
        """Start a worker in its own session."""
        import subprocess  # noqa: PLC0415 - 4 ms, and a passive run starts none here

        with contextlib.ExitStack() as opened:
            files = create_worker_files(opened)
            inherited = (files.requests, files.responses, files.breadcrumb, files.done)
            process = subprocess.Popen(
                [*command, *map(str, (os.getpid(), *inherited))],
                stdin=subprocess.PIPE,
                stdout=files.log,
                stderr=files.log,
                pass_fds=inherited,
                start_new_session=True,
            )
            opened.pop_all()  # ours, until `close_files`
        return cls(process, files)

    @property
    def pid(self) -> int:
        """The process id, which is also that of its session."""
        return self._process.pid

    def send(self, request: wire.Request) -> None:
        """Send *request*; a dead worker is noticed when it is polled."""
        self._queued = read_queue_seconds(self.pid)
        self._logged = os.fstat(self._files.log).st_size
        self.may_hold_gpu |= may_use_gpu(request.task)
        text = wire.encode_request(request)
        os.pwrite(self._files.requests, text, self._written)
        line = f"{self._written} {len(text)}\n".encode()
        self._written += len(text)
        stdin = self._process.stdin
        # The line is far shorter than a pipe's buffer, so this cannot block.
        with contextlib.suppress(BrokenPipeError):
            if stdin is not None:
                stdin.write(line)
                stdin.flush()

    def read_responses(self, number: int) -> list[wire.Response]:
        """Read the complete responses to request *number* since the last call."""
        whole, newline, _ = self._read_from(self._files.responses, self._read).rpartition(b"\n")
        self._read += len(whole) + len(newline)
        lines = map(wire.decode_response, whole.splitlines())
        return [response for request, response in lines if request == number]

    @staticmethod
    def _read_from(descriptor: int, start: int) -> bytes:
        """Read a memory file from *start*, without moving the writer's position."""
        return os.pread(descriptor, os.fstat(descriptor).st_size - start, start)

    @property
    def done(self) -> int:
        """The counter that it raises after each outcome."""
        return self._files.done

    def describe_death(self) -> str | None:
        """Say how the process ended, if it has."""
        status = self._process.poll()
        if status is None:
            return None
        return f"killed by {name_signal(-status)}" if status < 0 else f"exited with {status}"

    def find_whereabouts(self) -> Breadcrumb | None:
        """Find what it was doing last, if its breadcrumb says so."""
        return breadcrumb.read(self._files.breadcrumb)

    def read_log(self) -> str:
        """Return what it wrote to standard output and error in the present request."""
        tail = self._read_from(self._files.log, self._logged)[-MAX_LOG_BYTES:]
        return tail.decode(errors="replace").strip()

    def close_stdin(self) -> None:
        """Close its standard input, so that an idle worker ends by itself."""
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()

    def describe_hindrance(self, since: float) -> str:
        """Say what has kept it from working since a moment on the monotonic clock, if so."""
        if any(map(is_stopped, list_session_members([self.pid]))):
            return STOPPED_REASON
        queued = read_queue_seconds(self.pid) - self._queued
        return describe_starvation(queued, time.monotonic() - since)

    def describe_overrun(self, seconds: float, start: float) -> Overrun:
        """Say what it is doing now that its *seconds* since *start* are up."""
        place = self.find_whereabouts()
        since = place.since if place else start
        return Overrun(
            seconds=seconds,
            doing=place.text if place else "",
            part=place.part if place else "",
            doing_seconds=time.monotonic() - since,
            hindrance=self.describe_hindrance(start),
        )

    def close_files(self) -> None:
        """Close its files; nothing more can be read."""
        for descriptor in self._files:
            os.close(descriptor)

    def abandon(self) -> None:
        """Give up on a process that cannot be ended."""
        # Popen would warn about a child that never ended.
        self._process.returncode = -signal.SIGKILL


class LocalExecutor(Struct):
    """Keeps one worker for each name; calls *tick* between polls and *on_item* with each item."""

    should_stop: Callable[[], bool]
    tick: Callable[[], None] = lambda: None
    on_item: Callable[[wire.Item], None] = lambda _: None
    command: Sequence[str] = WORKER_COMMAND
    hung: list[str] = []
    """Workers that could not be ended, with their process id and wait channel."""
    early_workers: Mapping[str, ForkedWorker] = {}
    """Workers that were started before the executor, by name."""
    _workers: dict[str, WorkerHandle] = {}
    _request_number: int = 0

    def __post_init__(self) -> None:
        """Take over the early workers."""
        for name, process in self.early_workers.items():
            self._workers[name] = WorkerHandle(process, process.files)

    def run(self, tasks: Mapping[str, wire.Task], timeout: float) -> dict[str, Answer]:
        """Run each task on the worker with its name, all at once, and return an answer for each."""
        start = time.monotonic()
        self._request_number += 1
        items: dict[str, list[wire.Item]] = {name: [] for name in tasks}
        ends: dict[str, wire.Outcome] = {}
        overruns: dict[str, Overrun] = {}
        for name, task in tasks.items():
            try:
                worker = self._get_worker(name)
            except OSError as exc:
                short = explain_shortage(exc)
                ends[name] = wire.Outcome(
                    verdict=Verdict.ERROR,
                    reason=f"no worker can be started: {short or exc}",
                    cause=Cause.NO_RESOURCES if short else Cause.MISSING,
                    remedy=Remedy.INSPECT,
                )
            else:
                worker.send(wire.Request(self._request_number, task))
        while waiting := [name for name in tasks if name not in ends]:
            for name in waiting:
                if outcome := self._poll(name, items[name]):
                    ends[name] = outcome
            waiting = [name for name in waiting if name not in ends]
            elapsed = time.monotonic() - start
            if waiting and self.should_stop():
                self._end(waiting, hurry=True)
                ends |= dict.fromkeys(waiting, INTERRUPTED_OUTCOME)
            elif waiting and elapsed > timeout:
                seen = {n: self._workers[n].describe_overrun(timeout, start) for n in waiting}
                stuck = self._end(waiting, grace=WORKER_GRACE_SECONDS)
                overruns = {
                    name: msgspec.structs.replace(overrun, stuck=stuck.get(name, ""))
                    for name, overrun in seen.items()
                }
                ends |= {name: describe_overrun(overrun) for name, overrun in overruns.items()}
            elif waiting:
                self.tick()
                pause = min(max(elapsed / 20, MIN_WAIT_SECONDS), MAX_WAIT_SECONDS)
                wait_for_outcome([self._workers[name] for name in waiting], pause)
        return {
            name: Answer(
                items=tuple(items[name]),
                outcome=end
                if end.end
                else msgspec.structs.replace(end, start=start, end=time.monotonic()),
                overrun=overruns.get(name),
            )
            for name, end in ends.items()
        }

    def close(self, names: Collection[str] | None = None, *, hurry: bool = False) -> None:
        """End all workers, or those of *names*; in a *hurry*, do not wait long for any."""
        self._end([n for n in self._workers if names is None or n in names], hurry=hurry)

    def _get_worker(self, name: str) -> WorkerHandle:
        if name not in self._workers:
            self._workers[name] = WorkerHandle.start(self.command)
        return self._workers[name]

    def _poll(self, name: str, items: list[wire.Item]) -> wire.Outcome | None:
        worker = self._workers[name]
        died = worker.describe_death()  # before reading, so that nothing is missed
        for response in worker.read_responses(self._request_number):
            if not isinstance(response, wire.Outcome):
                self.on_item(response)
                items.append(response)
                continue
            if response.is_worker_spent:
                self._end([name])
            return response
        return None if died is None else self._handle_crash(name, died)

    def _handle_crash(self, name: str, died: str) -> wire.Outcome:
        if died == SIGTERM_DEATH:  # not ours: we would have noticed before
            self._end([name], hurry=True)
            return INTERRUPTED_OUTCOME
        log = self._workers[name].read_log()
        place = self._workers[name].find_whereabouts()
        self._end([name])  # its children may live on
        where = f" in {place.text}" if place else ""
        last = find_last_words(log)
        words = f"; last line of its log: {last}" if last and not where else ""
        reason, cause = f"its worker {died}{where}{words}", Cause.CRASHED
        if LOST_PEER_WORDS in log:
            reason = (
                "torch ended its worker because another GPU did not respond: see the other GPUs"
            )
            cause = Cause.TIMEOUT
        return wire.Outcome(
            verdict=Verdict.ERROR, reason=reason, cause=cause, remedy=Remedy.RERUN, trace=log
        )

    def _end(
        self, names: Sequence[str], *, grace: float = 0.0, hurry: bool = False
    ) -> dict[str, str]:
        """End workers and their children by TERM and KILL; return those that hang, and where."""
        if not names:
            return {}
        workers = {name: self._workers.pop(name) for name in names}
        sessions = {worker.pid for worker in workers.values()}
        for worker in workers.values():
            worker.close_stdin()
        if grace:
            signal_sessions(sessions, signal.SIGTERM)
        until = time.monotonic() + grace
        while time.monotonic() < until and any(
            w.describe_death() is None for w in workers.values()
        ):
            time.sleep(REAP_POLL_SECONDS)
        signal_sessions(sessions, signal.SIGKILL)
        stuck = self._reap(workers.values(), hurry=hurry)
        hung = {
            name: f"process {worker.pid}, which waits in {read_wait_channel(worker.pid)}"
            for name, worker in workers.items()
            if worker in stuck
        }
        for worker in workers.values():
            if worker.describe_death() is None:
                worker.abandon()
        self.hung += hung.values()
        for worker in workers.values():
            worker.close_files()
        return hung

    def _reap(self, workers: Iterable[WorkerHandle], *, hurry: bool) -> list[WorkerHandle]:
        """Wait until killed *workers* are gone, in a hurry not for long; return those that hang."""
        began = time.monotonic()
        waits = {worker.pid: KernelWait(worker.pid) for worker in workers}
        while alive := [worker for worker in workers if worker.describe_death() is None]:
            waited = time.monotonic() - began
            stuck = [
                worker
                for worker in alive
                if waited >= DEATH_SECONDS
                or (
                    waited >= LOOK_SECONDS
                    and waits[worker.pid].find_seconds() >= REAP_SECONDS
                    and not worker.may_hold_gpu
                )
            ]
            is_late = waited >= HURRIED_REAP_SECONDS and (hurry or self.should_stop())
            if len(stuck) == len(alive) or is_late:
                return stuck
            time.sleep(REAP_POLL_SECONDS if waited < LOOK_SECONDS else LOOK_SECONDS)
        return []


def wait_for_outcome(workers: Iterable[WorkerHandle], seconds: float) -> None:
    """Wait up to *seconds* until one of *workers* has an outcome."""
    poll = select.poll()
    for worker in workers:
        poll.register(worker.done, select.POLLIN)
    for done, _ in poll.poll(seconds * 1000):
        os.eventfd_read(done)


def find_last_words(log: str) -> str:
    """Find the line that says most of why a process ended: empty if it wrote nothing."""
    before, fatal, after = log.partition(FATAL_WORDS)
    lines = [line.strip() for line in before.splitlines() if line.strip()]
    words = [line for line in lines if not line.startswith(FRAME_WORDS)]
    thrown = [line for line in words if line.startswith(CPP_WORDS)]
    dumped = [fatal + after.partition("\n")[0]] if fatal else []
    return (thrown or words or dumped or [""])[-1]


def may_use_gpu(task: wire.Task) -> bool:
    """Whether a worker may have used a GPU after *task*: one checks them all from the host."""
    if not isinstance(task, wire.Measure | wire.RunSelftest):
        return False
    return any(device.kind == "cuda" for device in task.context.inventory.devices)
