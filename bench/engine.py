"""
What the engine costs: to start, and beside what it measures.

``hpcverify --help`` is set beside a bare interpreter; a run of the quick suite is
watched from outside for its wall time, the peak of its memory over all processes,
and the share of the wall time in which no check was at work.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from pairs import compare

HPCVERIFY = str(Path(sys.executable).with_name("hpcverify"))
PAIRS = 31


def seconds(*command: str) -> float:
    """Time one run of *command*."""
    start = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - start


def start_up() -> None:
    """Compare ``hpcverify --help`` with an interpreter that does nothing."""
    ratio = compare(
        lambda: seconds(HPCVERIFY, "--help"),
        lambda: seconds(sys.executable, "-c", "pass"),
        pairs=PAIRS,
    )
    print(f"hpcverify --help / python -c pass: {ratio} (at most 6)")


def quick_suite() -> None:
    """Run the quick suite and say what it took."""
    with tempfile.TemporaryDirectory() as state:
        environment = {**os.environ, "HPCVERIFY_STATE": state}
        start = time.perf_counter()
        run = subprocess.Popen(
            [HPCVERIFY, "run", "-o", f"{state}/run.json"],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        peak = 0
        while run.poll() is None:
            peak = max(peak, memory(run.pid))
            time.sleep(0.25)
        wall = time.perf_counter() - start
        document = json.loads(Path(state, "run.json").read_text())
    measuring = sum(result["seconds"] for result in document["results"])
    print(
        f"quick: {wall:.0f} s wall (at most 180), peak {peak / 2**30:.2f} GiB "
        f"(at most 1.5), the engine's own share {1 - measuring / wall:.1%} "
        f"(under 10 %), verdict {document['verdict']}"
    )


def memory(pid: int) -> int:
    """Add up the resident memory of *pid* and of all below it, in bytes."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):  # it has just ended
        return 0
    own = pages * os.sysconf("SC_PAGE_SIZE")
    return own + sum(memory(int(child)) for child in children)


if __name__ == "__main__":
    start_up()
    quick_suite()
