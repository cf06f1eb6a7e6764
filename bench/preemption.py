"""
What a user waits for when the node that the job needs is being verified.

On a real Slurm of the lab, with its quick scheduler: a user's job is submitted to a
node that is idle, and to the same node while a verification runs there (engine,
workers, and a check with a child process that waits for ever). The wait is from before
`sbatch` is called to the job's own first look at the clock. In turn, so that whatever
else the machine does falls on both alike.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
from hpcverify.slurm.submit import JobSpec, build_job_name, submit  # noqa: E402 - below the path
from tests.cli import COMMAND, make_cli  # noqa: E402 - a site belongs to the tests
from tests.slurm_lab.lab import Cluster, a_cluster  # noqa: E402 - as does the lab

TIMES = 10
MOST_S = 1.5


def main() -> None:
    """Measure, and print one line."""
    idle: list[float] = []
    busy: list[float] = []
    with a_cluster(1) as cluster, tempfile.TemporaryDirectory() as folder:
        for turn in range(TIMES):
            idle.append(wait_of_user(cluster, Path(folder)))
            verify(cluster, Path(folder, str(turn)))
            busy.append(wait_of_user(cluster, Path(folder)))
    more = statistics.median(busy) - statistics.median(idle)
    print(
        f"a user's job waits {spread(busy)} for a verification to give way, and "
        f"{spread(idle)} on an idle node: {more:.2f} s more, medians of {TIMES} "
        f"(at most {MOST_S} s)"
    )


def spread(seconds: list[float]) -> str:
    """Print a median and the range about it."""
    median = statistics.median(seconds)
    return f"{median:.2f} s ({min(seconds):.2f} to {max(seconds):.2f})"


def wait_of_user(cluster: Cluster, folder: Path) -> float:
    """Submit a user's job, and return the seconds until it runs."""
    stamp = folder / "started"
    look = f"date +%s.%N >{stamp}.new && mv {stamp}.new {stamp}"
    options = ("-p", "batch", "-w", "n1", "--exclusive", "-o", "/dev/null")
    before = time.time()
    cluster.run("sbatch", *options, "--wrap", look)
    cluster.until(stamp.exists)
    waited = float(stamp.read_text()) - before
    stamp.unlink()
    cluster.until(cluster.idle)
    return waited


def verify(cluster: Cluster, folder: Path) -> None:
    """Have n1 verified, and return when its check is at work."""
    folder.mkdir()
    cli = make_cli(folder)
    way = f'params = {{ way = "leave_child", path = "{folder}/ready" }}'
    program = folder / "hpcverify"
    program.write_text(f'#!/bin/sh\nexec unshare -n {COMMAND[0]} "$@"\n')
    program.chmod(0o755)  # with a lock of its own: this machine is not the node
    cli.suite("idle", f'[[check]]\nname = "naughty"\n{way}\n')
    names = ("HPCVERIFY_STATE", "HPCVERIFY_CONFIG", "PYTHONPATH")
    job = JobSpec(
        node="n1",
        gpus=0,
        suite="idle",
        token="bench",  # noqa: S106 - nobody is to be fooled
        name=build_job_name(0, "n1"),
        minutes=10,
        deadline_hours=1,
        partition="verify",
        spool=str(folder),
        program=str(program),
        environment={name: cli.environment[name] for name in names},
    )
    submit(job, cluster.slurm)
    cluster.until((folder / "ready").exists)


if __name__ == "__main__":
    main()
