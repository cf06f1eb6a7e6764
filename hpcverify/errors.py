"""
Errors that an operator can act on, each with the exit status of the CLI.

HpcverifyError          2
├── ConfigError         2   a file or an argument is wrong
│   ├── UnusableError       a directory that we were told to write to cannot be
│   ├── UnknownNameError    nothing is called so; says what is near
│   └── NoRunsError         there is nothing to show yet
├── StoreError          2   what is stored cannot be used
│   ├── DamagedError        a database has something else in it than was written
│   ├── ReplacedError       another process has put a new database in its place
│   └── SpoolError          the spool as a whole cannot be read
├── OutputError         2   what we print cannot be written
├── UnverifiedError     3   the node could not be judged, as when another run is on
└── ActionError         4   a scheduler or quarantine action did not take
    └── SlurmError          Slurm is away, or its answer is not whole
"""

from __future__ import annotations

import errno
from collections.abc import Iterable

NO_RUNS_MESSAGE = "no runs of this node yet: hpcverify run"


SHORTAGE_HINTS = {
    errno.EAGAIN: "the node has no process or thread left: see ulimit -u, the pids "
    "limit of the job's cgroup, and the load",
    errno.EMFILE: "too many files are open: raise ulimit -n",
    errno.ENFILE: "the node has too many files open: raise fs.file-max",
    errno.ENOMEM: "no memory is left: see free, ulimit -v, and the memory limit of the "
    "job's cgroup",
}
"""What a node may run out of, by the error of the kernel."""


def explain_shortage(exc: BaseException) -> str:
    """Say what the node ran out of, if *exc* tells of that, and where to look."""
    if isinstance(exc, MemoryError):
        return SHORTAGE_HINTS[errno.ENOMEM]
    if isinstance(exc, RuntimeError) and str(exc) == "can't start new thread":
        return SHORTAGE_HINTS[errno.EAGAIN]
    number = exc.errno if isinstance(exc, OSError) else None
    return SHORTAGE_HINTS.get(number or 0, "")


class HpcverifyError(Exception):
    """Base class, one line that names the thing and the fix; all else is a bug."""

    exit_code = 2


class ConfigError(HpcverifyError):
    """A file or an argument is wrong."""


class UnusableError(ConfigError):
    """A directory that we were told to write to cannot be written to."""


MAX_LISTED_NAMES = 20
"""Of what there is, that a line lists."""


class UnknownNameError(ConfigError):
    """Nothing of *kind* is called *name*."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        """Say what was asked for and what was meant, or else what there is."""
        from difflib import get_close_matches  # noqa: PLC0415 - nobody should need it

        known = sorted(known)
        near = get_close_matches(name, known, n=1)
        are = "is only" if len(known) == 1 else "are"
        there = f"there {are} {_list_some(known)}" if known else "there is none"
        hint = f"did you mean {near[0]}?" if near else there
        super().__init__(f"no {kind} is called {name!r}; {hint}")


def _list_some(names: list[str]) -> str:
    more = len(names) - MAX_LISTED_NAMES
    return ", ".join(names[:MAX_LISTED_NAMES]) + (f" and {more} more" if more > 0 else "")


class StoreError(HpcverifyError):
    """What is stored cannot be read or written."""


class DamagedError(StoreError):
    """A database has something else in it than was written."""


class ReplacedError(StoreError):
    """Another process has put a new database in the place of one that was in use."""


class SpoolError(StoreError):
    """The spool as a whole cannot be read: its file server may be away."""


class NoRunsError(ConfigError):
    """There is no run of this node to show yet."""

    def __init__(self) -> None:
        """Say how to come by one."""
        super().__init__(NO_RUNS_MESSAGE)


class OutputError(HpcverifyError):
    """What we print cannot be written, as on a full disk."""

    def __init__(self, why: str, *, kept: bool) -> None:
        """Say *why*, and that what was found is kept all the same if it is."""
        hint = "; nothing is lost, see: hpcverify history" if kept else ""
        super().__init__(f"standard output {why}{hint}")


class UnverifiedError(HpcverifyError):
    """The node could not be judged."""

    exit_code = 3


class ActionError(HpcverifyError):
    """A scheduler or quarantine action did not take."""

    exit_code = 4


class SlurmError(ActionError):
    """Slurm did not answer, or not in full: nothing may follow from what it said."""
