"""Make, fill, look at and remove many small files, and time every single call."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

FILE = bytes(range(256)) * 16
"""What each file holds: 4 KiB."""


@dataclass(frozen=True, slots=True)
class Times:
    """What each call of one kind took, in s."""

    taken: Sequence[float]

    @property
    def rate(self) -> float:
        """Calls per second of their own time."""
        return len(self.taken) / sum(self.taken)

    @property
    def p99(self) -> float:
        """What all but one of a hundred calls stay within, in ms."""
        return sorted(self.taken)[-1 - len(self.taken) // 100] * 1e3


def storm(folder: Path, count: int) -> dict[str, Times]:
    """Do each step to *count* files in *folder* before the next step begins."""
    folder.mkdir()
    paths = [str(folder / str(i)) for i in range(count)]
    steps: dict[str, Callable[[str], object]] = {
        "create": _create,
        "write": _write,
        "stat": os.stat,
        "unlink": os.unlink,
    }
    times = {
        name: Times([_timed(step, p) for p in paths]) for name, step in steps.items()
    }
    folder.rmdir()
    return times


def _timed(step: Callable[[str], object], path: str) -> float:
    start = perf_counter()
    step(path)
    return perf_counter() - start


def _create(path: str) -> None:
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))


def _write(path: str) -> None:
    # Closing belongs to it: that is when NFS sends what was written.
    file = os.open(path, os.O_WRONLY)
    try:
        os.write(file, FILE)
    finally:
        os.close(file)
