"""
How fast the controller takes in runs while others read its pages.

The site is that of ``controller.py``: 10,000 nodes, of which each has a run already; that is
prepared in memory and then copied to the disk. A wave of 2,000 runs comes next; while
``fleet collect`` takes it in, one process after the other asks for ``nodes`` and for the page of
the fleet. The rate is by wall time, so a busy machine shows; the CPU time is that of
``fleet collect`` alone.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import threading
import time
from datetime import UTC, datetime, timedelta
from itertools import cycle
from pathlib import Path

from collect import HPCVERIFY, NODES, a_site, drained
from controller import fill

RUNS = 2000
LEAST_PER_MINUTE = 2000
READERS = (["nodes"], ["report", "--fleet", "-o", "-"])
IN_MEMORY = "/dev/shm"  # noqa: S108 - a folder of our own is made in it


def main() -> None:
    """Measure, and print one line."""
    with (
        tempfile.TemporaryDirectory(prefix="hvintake-") as name,
        tempfile.TemporaryDirectory(prefix="hvintake-", dir=IN_MEMORY) as before,
    ):
        folder = Path(name)
        environment = a_site(folder)
        drained(folder, 0)
        first = datetime.now(UTC) - timedelta(hours=2)
        fill(folder / "spool", range(1, NODES + 1), first)
        collect({**environment, "HPCVERIFY_STATE": before})
        shutil.copytree(before, environment["HPCVERIFY_STATE"])
        fill(folder / "spool", range(1, RUNS + 1), first + timedelta(hours=1))
        stop, read = threading.Event(), list[int]()
        reader = threading.Thread(target=read_pages, args=(environment, stop, read))
        reader.start()
        start = time.perf_counter()
        cpu = collect(environment)
        wall = time.perf_counter() - start
        stop.set()
        reader.join()
        print(
            f"{NODES} nodes, {RUNS} runs are taken in while pages are read:"
            f" {RUNS / wall * 60:.0f} a minute (at least {LEAST_PER_MINUTE}), {wall:.1f} s,"
            f" {cpu:.1f} s CPU; {len(read)} pages, {sum(map(bool, read))} failed;"
            f" load {os.getloadavg()[0]:.0f}"
        )


def collect(environment: dict[str, str]) -> float:
    """Take in what is in the spool; return the CPU time that it took."""
    with subprocess.Popen(
        [HPCVERIFY, "fleet", "collect"],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as child:
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"collect: exit status {child.returncode}")
    return used.ru_utime + used.ru_stime


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
