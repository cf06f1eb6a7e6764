"""Create, write, stat and remove many small files, and time every call."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from time import perf_counter

FILE_CONTENT = bytes(range(256)) * 16
"""4 KiB for each file."""


@dataclass(frozen=True, slots=True)
class CallTimes:
    """Times of the calls of one kind, in s."""

    seconds: Sequence[float]

    @property
    def rate(self) -> float:
        """Calls per second, over the time of the calls only."""
        return len(self.seconds) / sum(self.seconds)

    @property
    def p99(self) -> float:
        """The time that 99 of 100 calls stay within, in ms."""
        return sorted(self.seconds)[-1 - len(self.seconds) // 100] * 1e3


def time_small_files(folder: Path, count: int) -> dict[str, CallTimes]:
    """Run each step on all *count* files in *folder* before the next step begins."""
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
    # The close counts: NFS sends the data then.
    file = os.open(path, os.O_WRONLY)
    try:
        os.write(file, FILE_CONTENT)
    finally:
        os.close(file)
