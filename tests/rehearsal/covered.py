"""
Which lines of the checks only a GPU runs, and which of them a rehearsal ran.

``python -m tests.rehearsal.covered`` runs the tests of the checks and of the rehearsal, each
under coverage.py, and prints what is left. It takes minutes.
"""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from time import sleep
from types import FrameType

import coverage

ROOT = Path(__file__).resolve().parents[2]
CHECKS = ROOT / "checks" / "hpcverify_checks"
NOT_COUNTED = {
    "it reads, and uses no GPU": (
        *("ecc.py", "gpu_setup.py", "inventory.py", "nic.py", "nvlink.py", "pcie.py"),
        "recovery.py",
        *("chassis/*", "xid/*", "kernel_log/*", "node/kernel_log.py", "storage/*"),
        *("node/counters.py", "node/mounts.py"),
    ),
    "faults that a self-test or a test puts in": ("sdc/faults.py", "sdc/trials.py"),
    "code of the GPU: Triton's interpreter runs it, and coverage does not see it": (
        "exact/triton_kernels.py",
    ),
}
"""Modules that have no lines that only a GPU runs, and why."""
SETTINGS = """
[run]
patch = subprocess
parallel = true
source = {source}
data_file = {data}
"""
"""For the tests on the CPU: the ranks of a group are processes of their own."""
SAVE_SECONDS = 0.5
FOLDER = "COVERAGE_FOLDER"
"""The environment variable that has processes of a rehearsal write what they ran there."""


def install() -> None:
    """
    Note what this process runs, and all that are forked from it, if that is wanted.

    The engine ends its workers by a signal, so they write when a check has ended: that is
    when they collect garbage. A process that a check kills writes right before.
    """
    folder = os.environ.get(FOLDER)
    if not folder:
        return
    measured = coverage.Coverage(
        data_file=f"{folder}/rehearsed", data_suffix=True, source=[str(CHECKS)], config_file=False
    )
    # Some do nothing of the checks, and in some a warning is an error.
    measured.set_option("run:disable_warnings", ["no-data-collected"])
    measured.start()
    collect, end, kill = gc.collect, os._exit, subprocess.Popen.kill

    def collect_and_save(generation: int = 2) -> int:
        measured.save()
        return collect(generation)

    def save_and_end(status: int) -> None:
        measured.save()
        end(status)

    def save_and_kill(process: subprocess.Popen[bytes]) -> None:
        if process.poll() is None:
            process.send_signal(signal.SIGUSR1)
            sleep(SAVE_SECONDS)
        kill(process)

    def save(_number: int, _frame: FrameType | None) -> None:
        measured.save()

    signal.signal(signal.SIGUSR1, save)
    setattr(subprocess.Popen, "kill", save_and_kill)  # noqa: B010 - likewise
    setattr(gc, "collect", collect_and_save)  # noqa: B010 - a function of the library
    setattr(os, "_exit", save_and_end)  # noqa: B010 - likewise


def run_tests(folder: Path) -> None:
    """Run both kinds of tests; their data comes to lie in *folder*."""
    pytest = ["-m", "pytest", "-q", "-p", "no:cacheprovider"]
    settings = folder / "settings.ini"
    settings.write_text(SETTINGS.format(source=CHECKS, data=folder / "cpu"))
    on_cpu = ["-m", "coverage", "run", f"--rcfile={settings}"]
    subprocess.run([sys.executable, *on_cpu, *pytest, "tests/checks"], cwd=ROOT, check=False)
    subprocess.run(
        [sys.executable, *pytest, "tests/rehearsal"],
        cwd=ROOT,
        env={**os.environ, FOLDER: str(folder)},
        check=False,
    )


def read_lines(files: Iterable[Path]) -> dict[str, set[int]]:
    """Read which lines of which modules were run."""
    found: dict[str, set[int]] = {}
    for file in files:
        data = coverage.CoverageData(str(file))
        data.read()
        for name in data.measured_files():
            found.setdefault(name, set()).update(data.lines(name) or ())
    return found


def format_gaps(on_cpu: Mapping[str, set[int]], rehearsed: Mapping[str, set[int]]) -> Iterator[str]:
    """Format a line for each module, and one for all."""
    analysis = coverage.Coverage(data_file=None, config_file=False)
    only, left = 0, 0
    patterns = [pattern for some in NOT_COUNTED.values() for pattern in some]
    for path in sorted(CHECKS.rglob("*.py")):
        name, relative = str(path), str(path.relative_to(CHECKS))
        if any(fnmatchcase(relative, pattern) for pattern in patterns):
            continue
        ran = rehearsed.get(name, set())
        statements = set(analysis.analysis2(name)[1])
        gpu = statements - on_cpu.get(name, set())
        gaps = sorted(gpu - ran)
        if not gpu & ran and not gaps:
            continue
        only, left = only + len(gpu), left + len(gaps)
        yield f"{relative}: {len(gpu)} lines, {len(gaps)} left: {gaps}"
    yield f"in all: {only} lines that the CPU's tests do not run, {left} left"


def main() -> None:
    """Run all, and print what is left."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        run_tests(folder)
        lines = format_gaps(read_lines(folder.glob("cpu*")), read_lines(folder.glob("rehearsed*")))
        print("\n".join(lines))


if __name__ == "__main__":
    main()
