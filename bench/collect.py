"""
What a collect costs on a large cluster of which many nodes change hands at once.

Slurm is a script that prints an answer from a file, for 10,000 nodes: the controller is
``hpcverify fleet collect`` as it is. It knows the nodes; then an administrator drains 1,000
of them and lets them go again, drains all for maintenance, and lets them go. CPU time
is that of the collect with all that it starts, the script among it.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HPCVERIFY = str(Path(sys.executable).with_name("hpcverify"))
NODES = 10_000
CHANGED = 1000
MOST_SECONDS = 10
MOST_QUESTIONS = 20

SLURM = """#!/bin/sh
[ "$1" = --version ] && echo "slurm 24.11.5" && exit
echo "$*" >>{folder}/asked
case "$*" in
*nodes*) exec cat {folder}/nodes.json ;;
*reservation*) echo "No reservations in the system" ;;
*partition*)
    echo "PartitionName=verify AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL MaxTime=UNLIMITED" \
        "PriorityTier=1 RootOnly=NO PreemptMode=CANCEL GraceTime=0 State=UP Nodes=ALL" ;;
*config*)
    echo "SlurmUser = slurm(64030)"
    echo "AccountingStorageType = none"
    echo "BOOT_TIME = 1" ;;
*) exit 1 ;;
esac
"""


def main() -> None:
    """Measure, and print one line for each collect."""
    with tempfile.TemporaryDirectory(prefix="hvcollect-") as name:
        folder = Path(name)
        environment = a_site(folder)
        drained(folder, 0)
        report("the first, of nodes that nobody knew", folder, environment)
        report("nothing has changed", folder, environment)
        drained(folder, CHANGED)
        report(f"{CHANGED} are drained by somebody", folder, environment, bound=True)
        drained(folder, 0)
        report(f"these {CHANGED} are let go", folder, environment, bound=True)
        drained(folder, NODES)
        report("all are drained for maintenance", folder, environment)
        drained(folder, 0)
        report("all are let go", folder, environment)


def a_site(folder: Path) -> dict[str, str]:
    """Write the site's files, and Slurm's commands."""
    for made in ("bin", "spool"):
        (folder / made).mkdir()
    config = folder / "site.toml"
    config.write_text(f'[fleet]\nspool = "{folder}/spool"\n[quarantine]\nenforce = ["*"]\n')
    for command in ("scontrol", "squeue"):
        path = folder / "bin" / command
        path.write_text(SLURM.format(folder=folder))
        path.chmod(0o755)
    (folder / "bin/squeue").write_text(f"#!/bin/sh\necho squeue >>{folder}/asked\n")
    return {
        **os.environ,
        "PATH": f"{folder}/bin:{os.environ['PATH']}",
        "HPCVERIFY_CONFIG": str(config),
        "HPCVERIFY_STATE": str(folder / "state"),
    }


def drained(folder: Path, count: int) -> None:
    """Have the first *count* nodes drained by an administrator, the others idle."""
    nodes = [a_node(i, drained=i <= count) for i in range(1, NODES + 1)]
    (folder / "nodes.json").write_text(json.dumps({"nodes": nodes, "errors": []}))


def a_node(i: int, *, drained: bool) -> dict[str, object]:
    """Say of a node what Slurm does, as far as it is read."""
    return {
        "name": f"gpu{i:05d}",
        "state": ["IDLE", "DRAIN"] if drained else ["IDLE"],
        "boot_time": 1,
        "partitions": ["batch", "verify"],
        "gres": "gpu:h100:8",
        "reason": "maintenance: new firmware" if drained else "",
        "reason_set_by_user": "root" if drained else None,
        "reason_changed_at": 1 if drained else 0,
    }


def report(what: str, folder: Path, environment: dict[str, str], *, bound: bool = False) -> None:
    """Run a collect, and print what it cost."""
    (folder / "asked").write_text("")
    before, start = cpu_seconds(), time.perf_counter()
    subprocess.run([HPCVERIFY, "fleet", "collect"], env=environment, check=True, stdout=2)
    wall, cpu = time.perf_counter() - start, cpu_seconds() - before
    asked = len((folder / "asked").read_text().splitlines())
    limits = f" (under {MOST_SECONDS} s, {MOST_QUESTIONS} questions)" if bound else ""
    print(f"{NODES} nodes, {what}: {cpu:.1f} s CPU, {wall:.1f} s, {asked} asked{limits}")


def cpu_seconds() -> float:
    """Say what CPU time all processes took that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
