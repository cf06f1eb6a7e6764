"""Make, fill, look at and remove many small files, and time every single call."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from time import perf_counter

FILE_CONTENT = bytes(range(256)) * 16
"""What each file holds: 4 KiB."""


@dataclass(frozen=True, slots=True)
class CallTimes:
    """What each call of one kind took, in s."""

    seconds: Sequence[float]

    @property
    def rate(self) -> float:
        """Calls per second of their own time."""
        return len(self.seconds) / sum(self.seconds)

    @property
    def p99(self) -> float:
        """What all but one of a hundred calls stay within, in ms."""
        return sorted(self.seconds)[-1 - len(self.seconds) // 100] * 1e3


def time_small_files(folder: Path, count: int) -> dict[str, CallTimes]:
    """Do each step to *count* files in *folder* before the next step begins."""
    folder.mkdir()
    paths = [str(folder / str(i)) for i in range(count)]
    steps: dict[str, Callable[[str], object]] = {
        "create": _create,
        "write": _write,
        "stat": os.stat,
        "unlink": os.unlink,
    }
    times: dict[str, CallTimes] = {}
    for name, step in steps.items():
        clock = [perf_counter()]
        for path in paths:
            step(path)
            clock.append(perf_counter())
        times[name] = CallTimes([after - before for before, after in pairwise(clock)])
    folder.rmdir()
    return times


def _create(path: str) -> None:
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))


def _write(path: str) -> None:
    # Closing belongs to it: that is when NFS sends what was written.
    file = os.open(path, os.O_WRONLY)
    try:
        os.write(file, FILE_CONTENT)
    finally:
        os.close(file)
