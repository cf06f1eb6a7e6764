"""
Errors that an operator can act on, each with the exit status of the CLI.

HpcverifyError          2
├── ConfigError         2   a file or an argument is wrong
│   ├── UnusableError       a configured directory cannot be written
│   ├── UnknownNameError    nothing has that name; suggests a similar one
│   ├── BrokenCheckError    there is a mistake in a check of the site
│   └── NoRunsError         there is nothing to show yet
├── StoreError          2   stored data cannot be used
│   ├── DamagedError        a database is damaged
│   │   └── OutdatedError   it has an earlier version
│   ├── ReplacedError       another process has replaced a database
│   └── SpoolError          the spool as a whole cannot be read
├── OutputError         2   our output cannot be written
├── UnverifiedError     3   the node could not be judged, as during another run
└── ActionError         4   a scheduler or quarantine action failed
    └── SlurmError          Slurm did not answer, or not completely
"""

from __future__ import annotations

import errno
import sys
from collections.abc import Iterable
from contextlib import suppress

NO_RUNS_MESSAGE = "no runs of this node yet: hpcverify run"

SHORTAGE_HINTS = {
    errno.EAGAIN: "the node has no process or thread left: check ulimit -u, the pids "
    "limit of the job's cgroup, and the load",
    errno.EMFILE: "too many files are open: raise ulimit -n",
    errno.ENFILE: "the node has too many files open: raise fs.file-max",
    errno.ENOMEM: "no memory is left: check free, ulimit -v, and the memory limit of the "
    "job's cgroup",
}
"""What a node may run out of, by the error of the kernel."""


def explain_shortage(exc: BaseException) -> str:
    """Say what the node ran out of and where to look, if *exc* means that."""
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
    """A configured directory cannot be written."""


class BrokenCheckError(ConfigError):
    """There is a mistake in a check of the site; the message names its file."""


MAX_LISTED_NAMES = 20


class UnknownNameError(ConfigError):
    """Nothing of *kind* is called *name*."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
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
    """Stored data cannot be read or written."""


class DamagedError(StoreError):
    """A database is damaged."""


class OutdatedError(DamagedError):
    """A database has an earlier version than we read, as after an upgrade."""


class ReplacedError(StoreError):
    """Another process has replaced a database that was in use."""


class SpoolError(StoreError):
    """The spool as a whole cannot be read: its file server may be down."""


class NoRunsError(ConfigError):
    """There is no run of this node to show yet."""

    def __init__(self) -> None:
        super().__init__(NO_RUNS_MESSAGE)


class OutputError(HpcverifyError):
    """Our output cannot be written, as on a full disk."""

    def __init__(self, why: str, *, kept: bool) -> None:
        """Say *why*, and that the results are stored if they are *kept*."""
        hint = "; nothing is lost, see: hpcverify history" if kept else ""
        super().__init__(f"standard output {why}{hint}")


class UnverifiedError(HpcverifyError):
    """The node could not be judged."""

    exit_code = 3


class ActionError(HpcverifyError):
    """A scheduler or quarantine action failed."""

    exit_code = 4


class SlurmError(ActionError):
    """Slurm did not answer, or not completely: do not act on its answer."""


def write_install_command(package: str) -> str:
    """
    Write the command that installs the Python *package*, in the version that we need.

    It names no extra of ours: a package with our name in a public index is not ours. It names
    the Python that runs this, which is not always the one whose pip is in PATH.
    """
    from importlib.metadata import PackageNotFoundError, requires  # noqa: PLC0415 - seldom needed

    with suppress(PackageNotFoundError):  # run from a checkout that is not installed
        for requirement in requires("hpcverify") or ():
            wanted = requirement.partition(";")[0].strip()
            if wanted.casefold().startswith(package.casefold()):
                return f"{sys.executable} -m pip install '{wanted}'"
    return f"{sys.executable} -m pip install {package}"
