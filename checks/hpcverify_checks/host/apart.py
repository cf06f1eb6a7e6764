"""
Questions that may never be answered, asked in a process that can be left behind.

Who waits for a hung NFS server sleeps in the kernel and cannot be ended, and a thread
that does so keeps its whole process. So the questions are asked one after the other in
one child, which costs one fork on a healthy node. If it has not answered all in time, it is
left behind, and a few children share the questions that are left: many that hang, or that
are slow together, cost one more wait. How many are left behind is bounded: any user may mount
hundreds of file systems that never answer.
"""

from __future__ import annotations

import os
import select
import signal
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from hpcverify.processes import DEATH_SECONDS, KernelWait, die_with_parent, read_wait_channel

Question = Callable[[], object]
"""Answers in what JSON can hold, or raises OSError."""
MAX_CHILDREN, MAX_HUNG = 32, 16
"""Children that ask at the same time, and hung questions from which on no more are asked."""
MAX_ROUNDS = 4
"""How often what is left is shared out again: those behind one that hangs get another turn."""
REAP_SECONDS = 0.1
"""How long a child that waits in the kernel may outlive KILL before it is left behind."""


class Hung(Struct, frozen=True):
    """A question that was not answered, and the process that still waits, if any."""

    seconds: float
    pid: int = 0
    started: int = 0
    """When it started, as in /proc/PID/stat: with the pid it names one process for good."""
    waits_in: str = ""
    """The kernel function."""


class Replies(Struct, frozen=True):
    """What came of each question, by its name."""

    answers: dict[str, Any]
    errors: dict[str, OSError]
    hung: dict[str, Hung]
    unasked: tuple[str, ...] = ()
    """Those that were not asked: so many others hang."""


def ask_apart(questions: Mapping[str, Question], seconds: float) -> Replies:
    """
    Ask *questions*, the first ones first, and wait up to *seconds* for each.

    Up to `MAX_CHILDREN` cost twice that at most, however many of them hang.
    """
    answers: dict[str, Any] = {}
    errors: dict[str, OSError] = {}
    hung: dict[str, Hung] = {}
    left, shares = list(questions), 1
    for _ in range(MAX_ROUNDS):
        if not left or len(hung) >= MAX_HUNG:
            break
        groups = [group for index in range(shares) if (group := left[index::shares])]
        children = [_Child([(name, questions[name]) for name in group]) for group in groups]
        ended = list(_listen(children, seconds))
        late = [(child, silent) for child, silent in ended if silent and child.pending]
        for child, _ in late:
            child.kill()
        dying, until = [child for child, _ in late], time.monotonic() + DEATH_SECONDS
        while dying and time.monotonic() < until:
            dying = [child for child in dying if not child.is_settled()]
            time.sleep(REAP_SECONDS / 20)
        left, shares = [], MAX_CHILDREN
        for child, silent in ended:
            answers |= child.answers
            errors |= child.errors
            if (child, silent) not in late:
                child.finish()
                continue
            first, *rest = child.pending
            if silent >= seconds:
                hung[first] = replace(child.hung, seconds=seconds)
            else:  # it is not known of the one that it was at
                rest = child.pending
            left += rest
    return Replies(answers, errors, hung, tuple(left))


def _listen(children: Sequence[_Child], seconds: float) -> Iterator[tuple[_Child, float]]:
    """Yield each child when it is done, or is not after *seconds*: then with those of silence."""
    poll = select.poll()
    open_children = {child.reading: child for child in children}
    for reading in open_children:
        poll.register(reading, select.POLLIN)
    deadlines = dict.fromkeys(open_children, time.monotonic() + seconds)
    while open_children:
        wait = min(deadlines.values()) - time.monotonic()
        for reading, _ in poll.poll(max(0.0, wait) * 1000):
            if open_children[reading].hear():
                continue
            poll.unregister(reading)
            del deadlines[reading]
            yield open_children.pop(reading), 0.0
        now = time.monotonic()
        for reading in [fd for fd, deadline in deadlines.items() if deadline <= now]:
            poll.unregister(reading)
            del deadlines[reading]
            child = open_children.pop(reading)
            yield child, now - child.heard


class _Child:
    """A process that answers questions in turn, one line of JSON for each."""

    def __init__(self, questions: Sequence[tuple[str, Question]]) -> None:
        self.answers: dict[str, Any] = {}
        self.errors: dict[str, OSError] = {}
        self.pending = [name for name, _ in questions]
        self.heard = time.monotonic()
        self._unread = b""
        self.reading, writing = os.pipe()
        parent = os.getpid()
        with warnings.catch_warnings():  # of threads, whose locks a child could wait for
            warnings.simplefilter("ignore", DeprecationWarning)
            self._pid = os.fork()
        if not self._pid:
            _answer_all(questions, writing, parent)
        os.close(writing)

    def hear(self) -> bool:
        """Take what it says; False once it has ended."""
        received = os.read(self.reading, 65536)
        self.heard = time.monotonic()
        *lines, self._unread = (self._unread + received).split(b"\n")
        for line in lines:
            answer, number, words = msgspec.json.decode(line)
            name = self.pending.pop(0)
            if number is None:
                self.answers[name] = answer
            else:
                self.errors[name] = OSError(number, words)
        return bool(received)

    def finish(self) -> None:
        """
        Reap it.

        Raises:
            RuntimeError: a question raised what is not an OSError: a bug.

        """
        os.close(self.reading)
        os.waitpid(self._pid, 0)
        if self.pending:
            raise RuntimeError(f"no answer to {self.pending[0]!r}: see the log of this worker")

    def kill(self) -> None:
        """Kill it; it may go on to wait in the kernel."""
        os.close(self.reading)
        self.hung = Hung(0, self._pid, read_start(self._pid), read_wait_channel(self._pid))
        os.kill(self._pid, signal.SIGKILL)
        self._wait = KernelWait(self._pid)

    def is_settled(self) -> bool:
        """Whether it was reaped after it was killed, or waits for longer than one that dies."""
        if self.hung.pid and os.waitpid(self._pid, os.WNOHANG)[0]:
            self.hung = Hung(0, waits_in=self.hung.waits_in)
        return not self.hung.pid or self._wait.find_seconds() >= REAP_SECONDS


def _answer_all(questions: Sequence[tuple[str, Question]], writing: int, parent: int) -> None:
    """Be the child; never returns."""
    try:
        die_with_parent(parent)
        os.closerange(3, writing)
        os.closerange(writing + 1, os.sysconf("SC_OPEN_MAX"))
        for _, ask in questions:
            try:
                reply = [ask(), None, ""]
            except OSError as exc:
                reply = [None, exc.errno or 0, exc.strerror or str(exc)]
            os.write(writing, msgspec.json.encode(reply) + b"\n")
    except BaseException as exc:  # noqa: BLE001 - the boundary of a process: it goes to the log
        import traceback  # hardly ever, and it takes 4 ms

        # Not by sys.stderr, whose descriptor may be one of those that were closed.
        os.write(2, "".join(traceback.format_exception(exc)).encode())
    finally:
        os._exit(0)


def read_start(pid: int, proc: Path = Path("/proc")) -> int:
    """Read when process *pid* started, in clock ticks since boot; 0 if there is none."""
    try:
        stat = (proc / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return 0
    return int(stat.rpartition(")")[2].split()[19])
