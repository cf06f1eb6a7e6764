"""
What the prolog waits for: the passive suite over eight GPUs of the NVML double.

The whole of it (every link, every counter, the kernel log; engine and worker, the run
written to disk) beside one single check of GCM's `health_checks` (PyPI: gpucm), which
counts the GPUs on the same double. GCM brings dozens of packages along, so it lives
in a virtual environment of its own, which is made where it is missing.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from pairs import compare

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
from tests.nvml_lab.nvmllab import build  # noqa: E402 - the double belongs to the tests

# Or all would be compiled again each time.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
HPCVERIFY = str(Path(sys.executable).with_name("hpcverify"))
GCM = ROOT / ".venv-gcm"
ONE_CHECK = (
    *("check-nvidia-smi", "--sink", "do_nothing", "-c", "gpu_num", "--gpu_num", "8"),
    *("bench", "nagios"),
)
PAIRS = 31
LOOK = 0.002
"""Seconds between looks at the memory."""


def main() -> None:
    """Measure, and print one line for each figure."""
    if not GCM.exists():
        subprocess.run([sys.executable, "-m", "venv", GCM], check=True)
        subprocess.run([GCM / "bin/pip", "install", "--quiet", "gpucm"], check=True)
    with tempfile.TemporaryDirectory() as folder:
        library = build(Path(folder))
        scenario = Path(folder, "healthy.txt")
        scenario.write_text("gpus = 8\n")
        environment = {
            **os.environ,
            "HPCVERIFY_STATE": folder,
            "LD_LIBRARY_PATH": str(library.parent),
            "NVML_LAB_SCENARIO": str(scenario),
        }
        ours = (HPCVERIFY, "run", "--suite", "prolog")
        theirs = (str(GCM / "bin/health_checks"), *ONE_CHECK)
        report(ours, theirs, environment)


def report(ours: Sequence[str], theirs: Sequence[str], environment: dict[str, str]) -> None:
    """Compare the wall times, and watch the memory of each."""
    walls: list[float] = []

    def wall() -> float:
        walls.append(seconds(ours, environment))
        return walls[-1]

    wall()  # the first run of all makes the store
    ratio = compare(wall, lambda: seconds(theirs, environment), pairs=PAIRS)
    walls.sort()
    print(f"passive suite / one check of GCM, wall: {ratio} (at most 0.15 / 0.29 = 0.52)")
    print(f"passive suite: {1000 * walls[len(walls) // 2]:.0f} ms wall (median)")
    for name, command in (("passive suite", ours), ("one check of GCM", theirs)):
        proportional, resident = memory(command, environment)
        print(
            f"{name}: peak {proportional / 2**20:.1f} MiB over its processes "
            f"(shared pages once), {resident / 2**20:.1f} MiB added up"
        )


def seconds(command: Sequence[str], environment: dict[str, str]) -> float:
    """Time one run of *command*."""
    start = time.perf_counter()
    subprocess.run(
        command,
        env=environment,
        cwd=environment["HPCVERIFY_STATE"],  # GCM keeps its logs where it is run
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=True,
    )
    return time.perf_counter() - start


def memory(command: Sequence[str], environment: dict[str, str]) -> tuple[int, int]:
    """Watch a run of *command*; return the peaks of PSS and RSS, in bytes."""
    run = subprocess.Popen(
        command,
        env=environment,
        cwd=environment["HPCVERIFY_STATE"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    proportional, resident = 0, 0
    while run.poll() is None:
        now = of_tree(run.pid)
        proportional, resident = max(proportional, now[0]), max(resident, now[1])
        time.sleep(LOOK)
    return proportional, resident


def of_tree(pid: int) -> tuple[int, int]:
    """Add up the memory of *pid* and of all below it: PSS and RSS, in bytes."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    except OSError:  # it has just ended
        return 0, 0
    sizes = {line.split()[0]: int(line.split()[1]) * 1024 for line in lines}
    below = [of_tree(int(child)) for child in children]
    return (
        sizes.get("Pss:", 0) + sum(pss for pss, _ in below),
        sizes.get("Rss:", 0) + sum(rss for _, rss in below),
    )


if __name__ == "__main__":
    main()
