"""
How fast the controller takes in runs while others read its pages.

The site is that of ``controller.py``: 10,000 nodes, of which each has a run already. 4,000 of
them run again; while ``collect`` takes that in, one process after the other asks for ``nodes``
and for the page of the fleet. What is measured is wall time, so a busy machine shows.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import threading
import time
from datetime import UTC, datetime, timedelta
from itertools import cycle
from pathlib import Path

from collect import HPCVERIFY, NODES, a_site, drained
from controller import fill

RUNS = 4000
LEAST_PER_MINUTE = 2000
READERS = (["nodes"], ["report", "--fleet", "-o", "-"])


def main() -> None:
    """Measure, and print one line."""
    with tempfile.TemporaryDirectory(prefix="hvintake-") as name:
        folder = Path(name)
        environment = a_site(folder)
        drained(folder, 0)
        before = datetime.now(UTC) - timedelta(hours=2)
        fill(folder / "spool", range(1, NODES + 1), before)
        collect(environment)
        fill(folder / "spool", range(1, RUNS + 1), before + timedelta(hours=1))
        stop, read = threading.Event(), list[int]()
        reader = threading.Thread(target=read_pages, args=(environment, stop, read))
        reader.start()
        start = time.perf_counter()
        collect(environment)
        wall = time.perf_counter() - start
        stop.set()
        reader.join()
        print(
            f"{NODES} nodes, {RUNS} runs are taken in while pages are read:"
            f" {RUNS / wall * 60:.0f} a minute (at least {LEAST_PER_MINUTE}), {wall:.1f} s;"
            f" {len(read)} pages, {sum(map(bool, read))} failed; load {os.getloadavg()[0]:.0f}"
        )


def collect(environment: dict[str, str]) -> None:
    """Take in what is in the spool."""
    subprocess.run(
        [HPCVERIFY, "collect"],
        env=environment,
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def read_pages(environment: dict[str, str], stop: threading.Event, read: list[int]) -> None:
    """Read pages until *stop* is set; add the exit status of each to *read*."""
    for words in cycle(READERS):
        if stop.is_set():
            return
        done = subprocess.run(
            [HPCVERIFY, *words], env=environment, check=False, stdout=subprocess.DEVNULL
        )
        read.append(done.returncode)


if __name__ == "__main__":
    main()
