"""
What a sweep costs: to plan, and beside submitting the same jobs by hand.

A plan is made for 10,000 nodes that exist in memory only. Then 64 nodes of the lab,
all on this machine, are verified by ``hpcverify fleet sweep`` with a suite of one check that
takes a second, beside one ``sbatch -w NODE`` for each of a job that starts as many
Python processes with the same modules loaded and sleeps for a second. The sweep's
controller is watched for its memory, and its questions to Slurm are counted.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from pairs import compare

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
from hpcverify.fleet.schedule import plan_sweep  # noqa: E402 - as this
from hpcverify.fleet.states import HOUR_S, Node, State  # noqa: E402 - as this
from hpcverify.plan.config import Fleet  # noqa: E402 - below the path
from hpcverify.slurm import Host  # noqa: E402 - as this
from hpcverify.slurm.submit import JOB_NAME_PREFIX  # noqa: E402 - as this
from tests.slurm_lab.lab import Cluster, a_cluster  # noqa: E402 - it belongs to the tests

HPCVERIFY = str(Path(sys.executable).with_name("hpcverify"))
PLANNED = 10_000
NODES = 64
PAIRS = 6
LOOK_S = 0.05

CHECK = '''\
"""Take a second."""

import time
from collections.abc import Iterator

from hpcverify.check import Check, Context, Metric, Params, Placement
from hpcverify.model import CheckItem, Measurement


class Nothing(Params, frozen=True):
    """There is nothing to set."""


def measure(ctx: Context, params: Nothing) -> Iterator[CheckItem]:
    """Sleep."""
    time.sleep(1)
    yield Measurement("seconds", 1.0, "s")


CHECK = Check(
    summary="takes a second",
    measure=measure,
    params=Nothing,
    metrics={"seconds": Metric("s", "high", "what it took").fail(high=2, source="a benchmark")},
    placement=Placement.NODE,
    timeout=30,
)
'''

PROCESSES = ("hpcverify.commands._run", "hpcverify.run.worker", "hpcverify.run.worker")
"""What a run starts, by the module that each loads: engine, telemetry, node."""


def main() -> None:
    """Measure, and print one line for each figure."""
    if sys.argv[1:] == ["plan"]:  # in a process of its own, for its memory
        plan_many()
        return
    subprocess.run([sys.executable, __file__, "plan"], check=True)
    with a_cluster(NODES) as cluster, tempfile.TemporaryDirectory() as folder:
        report(cluster, Path(folder))


def plan_many() -> None:
    """Plan a sweep of nodes that are as mixed as a large cluster's."""
    now = time.time()
    hosts = {name: a_host(i, name) for i, name in named(PLANNED)}
    nodes = {name: a_node(i, name, now) for i, name in named(PLANNED)}
    fleet = Fleet(at_once=1000)
    start = time.perf_counter()
    made = plan_sweep(hosts, nodes, {"n1", "n2"}, fleet, now)
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"a plan of {PLANNED} nodes: {seconds:.2f} s (under 2), {peak:.0f} MiB (under "
        f"200), {len(made.chosen)} chosen, {len(made.passed_over)} passed over"
    )


def named(count: int) -> Sequence[tuple[int, str]]:
    """Give *count* nodes their numbers and names."""
    return [(i, f"n{i}") for i in range(1, count + 1)]


def a_host(i: int, name: str) -> Host:
    """Make every third busy, and every fiftieth drained."""
    return Host(
        name=name,
        state="ALLOCATED" if i % 3 == 0 else "IDLE",
        flags=frozenset({"DRAIN"} if i % 50 == 0 else ()),
        partitions=("batch", f"row{i % 40}", "verify"),
        gpus=8,
        reason="bad fan" if i % 50 == 0 else "",
    )


def a_node(i: int, name: str, now: float) -> Node:
    """Make each pass at another hour of the last two days, and some suspect."""
    at = now - i % 48 * HOUR_S
    state = State.SUSPECT if i % 100 == 1 else State.HEALTHY
    return Node(name=name, state=state, last_pass_at=at, last_run_at=at, reason="it is well")


def report(cluster: Cluster, folder: Path) -> None:
    """Compare a sweep with jobs submitted by hand, and watch its controller."""
    environment = a_site(cluster, folder)
    memory: list[int] = []
    seconds: list[float] = []

    def sweep() -> float:
        state = folder / f"controller{len(seconds)}"  # each begins with none verified
        environ = {**environment, "HPCVERIFY_STATE": str(state)}
        seconds.append(swept(environ, memory))
        return seconds[-1]

    ratio = compare(sweep, lambda: by_hand(cluster, folder), pairs=PAIRS)
    print(f"sweep / sbatch by hand, {NODES} nodes: {ratio} (at most 1.3)")
    print(f"the sweep's controller: {max(memory) / 1024:.0f} MiB (under 100)")
    asked = questions(folder) / len(seconds)
    average = sum(seconds) / len(seconds)
    print(
        f"questions to Slurm: {asked:.0f} in the {average:.0f} s of a sweep, "
        f"{asked / average:.2f} a second (at most 1, beside the first 10)"
    )


def a_site(cluster: Cluster, folder: Path) -> dict[str, str]:
    """Make a site whose nodes are this machine, each with a state of its own."""
    for name in ("spool", "etc/suites", "site/second_checks", "bin"):
        (folder / name).mkdir(parents=True)
    (folder / "site/second_checks/__init__.py").touch()
    (folder / "site/second_checks/second.py").write_text(CHECK)
    suite = 'summary = "a second"\nbudget = 60\n[[check]]\nname = "second"\n'
    (folder / "etc/suites/second.toml").write_text(suite)
    (folder / "etc/site.toml").write_text(
        'check_packages = ["second_checks"]\n[fleet]\nsuite = "second"\nshare = 1.0\n'
        f'at_once = {NODES}\nspool = "{folder}/spool"\nprogram = "{folder}/bin/node"\n'
    )
    ours = {"HPCVERIFY_CONFIG": f"{folder}/etc/site.toml", "PYTHONPATH": f"{folder}/site"}
    exported = "".join(f"export {name}={value}\n" for name, value in ours.items())
    state = f"export HPCVERIFY_STATE={folder}/nodes/$SLURMD_NODENAME\n"
    # Each with a network of its own, where the lock of a run is.
    executable(folder / "bin/node", f'{exported}{state}exec unshare -n {HPCVERIFY} "$@"')
    executable(folder / "bin/hand", by_hand_script())
    for command in ("squeue", "sacct", "scontrol"):
        note = f'date "+%s.%N {command} $*" >>{folder}/asked'
        real = f'PATH="{cluster.env["PATH"]}" exec {command} "$@"'
        executable(folder / "bin" / command, f"{note}\n{real}")
    path = f"{folder}/bin:{cluster.env['PATH']}"
    return {**os.environ, **cluster.env, **ours, "PATH": path}


def executable(path: Path, lines: str) -> None:
    """Write a script of sh."""
    path.write_text(f"#!/bin/sh\n{lines}\n")
    path.chmod(0o755)


def by_hand_script() -> str:
    """Start what a run starts, the workers at the same time, and sleep."""
    start = [f"unshare -n {sys.executable} -c 'import {name}' &" for name in PROCESSES]
    return "\n".join((*start, "wait", "exec sleep 1"))


def swept(environment: dict[str, str], memory: list[int]) -> float:
    """Time a sweep of all nodes, and note the peak of its memory, in kB."""
    start = time.perf_counter()
    sweep = subprocess.Popen(
        [HPCVERIFY, "fleet", "sweep"], env=environment, stdout=subprocess.PIPE, text=True
    )
    peak = 0
    while sweep.poll() is None:
        peak = max(peak, resident(sweep.pid))
        time.sleep(LOOK_S)
    said = sweep.communicate()[0]
    if sweep.returncode != 0 or f"{NODES} pass" not in said:
        raise SystemExit(f"the sweep ended with {sweep.returncode}: {said}")
    memory.append(peak)
    return time.perf_counter() - start


def resident(pid: int) -> int:
    """Read the peak of a process's memory, in kB; 0 when it has just ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(s.split()[1]) for s in lines if s.startswith("VmHWM:")), 0)


def by_hand(cluster: Cluster, folder: Path) -> float:
    """Time a job on each node, from the first submission to the last one's end."""
    options = ("-p", "verify", "--exclusive", "-o", "/dev/null", "-J", f"not-{JOB_NAME_PREFIX}")
    start = time.perf_counter()
    for _, name in named(NODES):
        cluster.run("sbatch", *options, "-w", name, folder / "bin/hand")
    cluster.until(lambda: not cluster.run("squeue", "-h"), seconds=300)
    return time.perf_counter() - start


def questions(folder: Path) -> int:
    """Count what Slurm was asked, and not told."""
    lines = (folder / "asked").read_text().splitlines()
    words = [line.split()[1:3] for line in lines]
    return sum(word[0] != "scontrol" or word[1] == "show" for word in words)


if __name__ == "__main__":
    main()
