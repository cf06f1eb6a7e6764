"""
What a job waits for in the prolog.

Reading the gate file in sh, beside a shell that does nothing, `hpcverify gate` beside a
bare interpreter, and the prolog that waits for the passive suite over eight GPUs of the
NVML double. LBNL NHC is not in Debian or on PyPI: what its run of ten checks takes on
two cores (0.06 s) was measured beforehand.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from pairs import compare

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
from tests.nvml_lab.nvmllab import build  # noqa: E402 - the double belongs to the tests

# Or all would be compiled again each time.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
HPCVERIFY = str(Path(sys.executable).with_name("hpcverify"))
PROLOG = str(ROOT / "slurm/prolog")
PAIRS = 31
NHC_SECONDS = 0.06
ALLOWED_SECONDS = 0.1
"""That the prolog may take longer than NHC."""
FAR = 99_999_999_999
GATE_FILES = {
    "a held node": f"quarantined\n{FAR}\nGPU 3: lost\n\n",
    "a node in service": f"ok\n{FAR}\n\n\n",
    "a node without a gate file": "",
    "a check that may refuse": f"ok\n{FAR}\n\ninventory\n",
}

BESIDE = "no target: the passive suite is started as well"
TARGETS = dict.fromkeys(GATE_FILES, BESIDE) | {"a held node": "at most 5"}


def seconds(command: Sequence[str], environment: dict[str, str] | None = None) -> float:
    """Time one run of *command*, whatever its status."""
    start = time.perf_counter()
    subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=False)
    return time.perf_counter() - start


def cpu_seconds() -> float:
    """Say how much CPU time our children took, and theirs, that have ended."""
    spent = os.times()
    return spent.children_user + spent.children_system


def median(measure: Callable[[], float]) -> float:
    """Take the median of `PAIRS` measurements."""
    return statistics.median(measure() for _ in range(PAIRS))


def settings(folder: Path, hpcverify: str) -> str:
    """Write the settings of the prolog, and return where."""
    file = folder / "hooks.conf"
    file.write_text(f"HPCVERIFY={hpcverify}\nHPCVERIFY_STATE={folder}\n")
    return str(file)


def time_prologs(folder: Path) -> None:
    """Time the prolog where it reads the gate file and waits for nothing else."""
    conf = settings(folder, "/bin/true")
    environment = {"SLURM_JOB_UID": "1000"}
    for what, text in GATE_FILES.items():
        (folder / "gate").write_text(text)
        prolog = (PROLOG, conf)
        more = median(
            lambda prolog=prolog: (
                seconds(prolog, environment)  # type: ignore[misc]
                - seconds(("sh", "-c", ":"))
            )
        )
        print(f"prolog, {what}: {1000 * more:.1f} ms over sh -c : ({TARGETS[what]})")


def gate() -> None:
    """Compare `gate` with an interpreter that does nothing."""
    ratio = compare(
        lambda: seconds((HPCVERIFY, "gate")),
        lambda: seconds((sys.executable, "-I", "-c", "pass")),
        pairs=PAIRS,
    )
    print(f"hpcverify gate / python -I -c pass: {ratio} (at most 2)")


def passive(folder: Path) -> None:
    """Time the prolog that waits for the passive suite on eight GPUs."""
    library = build(folder)
    scenario = folder / "healthy.txt"
    scenario.write_text("gpus = 8\n")
    script = folder / "hpcverify"
    script.write_text(
        f"#!/bin/sh\nexport LD_LIBRARY_PATH={library.parent}\n"
        f'export NVML_LAB_SCENARIO={scenario}\nexec {HPCVERIFY} "$@"\n'
    )
    script.chmod(0o755)
    (folder / "gate").write_text(GATE_FILES["a check that may refuse"])
    conf = settings(folder, str(script))
    environment = {"SLURM_JOB_UID": "1000", "SLURMD_NODENAME": "n1"}
    seconds((PROLOG, conf), environment)  # the first run of all makes the store
    before = cpu_seconds()
    took = median(lambda: seconds((PROLOG, conf), environment))
    cpu = (cpu_seconds() - before) / PAIRS
    kept = len(os.listdir(folder / "runs"))  # noqa: PTH208 - a count
    if kept != PAIRS + 1:
        sys.exit(f"{kept} of {PAIRS + 1} runs were kept: does another hold the node?")
    bare = median(lambda: seconds((sys.executable, "-I", "-c", "pass")))
    print(
        f"prolog that waits for the passive suite on 8 GPUs: {1000 * took:.0f} ms "
        f"(at most {1000 * (NHC_SECONDS + ALLOWED_SECONDS):.0f}), {1000 * cpu:.0f} ms "
        f"of CPU time; python -I -c pass takes {1000 * bare:.0f} ms"
    )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        time_prologs(Path(made))
        gate()
        passive(Path(made))
