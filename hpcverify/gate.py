"""
The gate file of a node: the controller's verdict, where the node's prolog reads it.

Four lines of plain text, since the prolog reads them in sh before any Python starts:

    ok, quarantined or hold
    valid until, in seconds since 1970
    why
    the checks whose conclusive evidence may refuse a job here, separated by spaces

`fleet.publish` writes it, `spool.fetch_gate` brings it to the node; slurm/hooks.sh and
`print_gate` read it. A file that is
missing, stale or unreadable lets the job run.

A prolog that is to refuse a job for what it has just found first takes one of the few places
that the controller leaves for all nodes (`spool.take_place`): so whatever all of them find in the
same minute, no more than these are drained for it.

It imports little, and from the standard library only: `print_gate` should take no
longer than the interpreter itself.
"""

from __future__ import annotations

import os
import stat
import time

TYPE_CHECKING = False
if TYPE_CHECKING:  # pathlib, as typing, takes long to load
    from pathlib import Path

OK, QUARANTINED, HOLD = "ok", "quarantined", "hold"
GATE_VERDICTS = (OK, QUARANTINED, HOLD)
MAX_GATE_BYTES = 4096
MAX_REASON_CHARACTERS = 500
"""Characters; at four bytes each, they leave room for the other lines."""
MAX_DIGITS = 12
DIGITS = frozenset("0123456789")
CHECK_NAME_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789_ ")
"""The characters of a line with names of checks."""
DEFAULT_STATE = "/var/lib/hpcverify"
"""Also for an ordinary user: root's runs leave the file there."""
GATE_NAME = "gate"
"""A file in the state directory of a node; in the spool the folder of all gate files."""


PLACES_NAME = ".places"
"""In the folder of the gate files: a file for each node that may refuse jobs by itself."""
FREE_PREFIX = ".free-"
"""Begins the name of a place that no node has taken."""


class JobGate:
    """The controller's verdict on a node; a plain class, as imports take time."""

    __slots__ = ("checks", "reason", "until", "verdict")

    def __init__(
        self, verdict: str, until: int, reason: str = "", checks: tuple[str, ...] = ()
    ) -> None:
        """
        Make *verdict*, one of `GATE_VERDICTS`, valid *until* seconds since 1970.

        The conclusive evidence of *checks* may refuse a job; if the site only observes, there
        are none.
        """
        self.verdict = verdict
        self.until = until
        self.reason = reason
        self.checks = checks

    def __eq__(self, other: object) -> bool:
        """Whether *other* says the same."""
        return isinstance(other, JobGate) and self.text == other.text

    def __hash__(self) -> int:
        """Hash what `__eq__` compares."""
        return hash(self.text)

    @property
    def text(self) -> str:
        """The lines of the file; what cannot be printed in a line is left out."""
        shown = "".join(c if c.isprintable() else " " for c in self.reason)
        named = " ".join(self.checks)
        return f"{self.verdict}\n{self.until}\n{shown[:MAX_REASON_CHARACTERS]}\n{named}\n"

    @property
    def refuses_jobs(self) -> bool:
        """Whether no job may run."""
        return self.verdict != OK


def read(path: Path | str, now: float | None = None) -> JobGate | None:
    """Read the gate file *path*, unless it is missing, corrupt or stale at *now*."""
    text = _read_small_file(path)
    job_gate = None if text is None else parse(text)
    if job_gate is None or job_gate.until <= (time.time() if now is None else now):
        return None
    return job_gate


def _read_small_file(path: Path | str) -> str | None:
    """Read a small regular file, and nothing that might make us wait."""
    try:
        opened = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        regular = stat.S_ISREG(os.fstat(opened).st_mode)
        held = os.read(opened, MAX_GATE_BYTES + 1) if regular else b""
    except OSError:
        return None
    finally:
        os.close(opened)
    if len(held) > MAX_GATE_BYTES:
        return None
    return held.replace(b"\0", b"").decode(errors="replace")  # as sh does


def parse(text: str) -> JobGate | None:
    """Read *text* as a gate file; None: it is none."""
    verdict, until, reason, checks = [*text.split("\n"), "", "", ""][:4]
    if verdict not in GATE_VERDICTS or not 1 <= len(until) <= MAX_DIGITS:
        return None
    if not DIGITS.issuperset(until):
        return None
    named = checks.split() if CHECK_NAME_CHARACTERS.issuperset(checks) else ()
    return JobGate(verdict, int(until), reason, tuple(named))


def write(path: Path, job_gate: JobGate) -> None:
    """Write *job_gate* to *path* atomically."""
    # Not what is above: without its mount, a spool would be made on the disk below.
    path.parent.mkdir(exist_ok=True)
    new = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        new.unlink(missing_ok=True)  # of one that was killed, with our number
        with new.open("x", encoding="utf-8") as file:
            os.fchmod(file.fileno(), 0o644)  # `print_gate` is for everyone
            file.write(job_gate.text)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)


def find_gate_path() -> str:
    """Return the path of this node's gate file."""
    return f"{os.environ.get('HPCVERIFY_STATE') or DEFAULT_STATE}/{GATE_NAME}"


def explain_absence(path: str) -> str:
    """Say why there is no valid gate file *path*."""
    there = os.path.lexists(path)
    return f"{path} is not a valid gate file" if there else f"there is no gate file {path}"


def print_gate(path: str) -> int:
    """Print what the gate file *path* means for jobs; return 0 if they may run, else 1."""
    job_gate = read(path)
    if job_gate is None:
        print(f"ok: {explain_absence(path)}, so jobs run")  # noqa: T201 - the answer
        return 0
    until = time.strftime("%Y-%m-%d %H:%M %Z", time.localtime(job_gate.until))
    because = f": {job_gate.reason}" if job_gate.reason else ""
    print(f"{job_gate.verdict} until {until}{because}")  # noqa: T201 - the answer
    return int(job_gate.refuses_jobs)
