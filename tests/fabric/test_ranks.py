"""The jobs of this cluster run in the networks of their nodes, and can be held back."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.fabric_lab.cluster import Fabric

pytestmark = pytest.mark.needs("root")

COMPUTE = """
import socket, time
started = time.monotonic()
while time.process_time() < 2:
    pass
print(socket.gethostname(), time.monotonic() - started)
"""


def test_each_task_is_in_the_network_of_its_node(fabric: Fabric) -> None:
    script = "echo $(hostname) $(ls /sys/class/net) $(ip -o -4 address show net0)"
    for line in fabric.cluster.run("srun", "-N4", "sh", "-c", script).splitlines():
        node, *words = line.split()
        assert {"lo", "mgmt0", "net0"} <= set(words)
        assert f"{fabric.network.data_address(node)}/24" in words


def test_the_name_of_a_node_means_its_address_for_jobs(fabric: Fabric) -> None:
    told = fabric.cluster.run("srun", "-N1", "-w", "n4", "getent", "hosts", "n1", "n4")
    addresses = [fabric.network.data_address(node) for node in ("n1", "n4")]
    assert [line.split()[0] for line in told.splitlines()] == addresses


def test_slurm_knows_the_switches(fabric: Fabric) -> None:
    told = fabric.cluster.run("scontrol", "show", "topology")
    assert "SwitchName=sw1 Level=0 LinkSpeed=1 Nodes=n1,n2" in told
    assert "SwitchName=sw2 Level=0 LinkSpeed=1 Nodes=n3,n4" in told


def test_slurm_reaches_a_node_whose_link_is_down(fabric: Fabric) -> None:
    with fabric.network.unplugged("n2"):
        assert fabric.cluster.run("srun", "-N1", "-w", "n2", "hostname") == "n2\n"


def test_the_ranks_of_one_node_stop_and_go_on(fabric: Fabric) -> None:
    command = ["srun", "-N2", "-w", "n1,n2", "sleep", "1000"]
    with subprocess.Popen(command, env=fabric.cluster.env) as job:
        try:
            fabric.cluster.until(lambda: fabric.find_ranks("n1") and fabric.find_ranks("n2"))
            with fabric.stopped("n2"):
                fabric.cluster.until(lambda: states(fabric, "n2") == {"T"})
                assert "T" not in states(fabric, "n1")
            fabric.cluster.until(lambda: "T" not in states(fabric, "n2"))
        finally:
            job.terminate()
    fabric.cluster.until(lambda: not fabric.find_ranks("n2"))


def states(fabric: Fabric, node: str) -> set[str]:
    """Give the states of the ranks of a node, as ps calls them."""
    paths = [Path(f"/proc/{pid}/stat") for pid in fabric.find_ranks(node)]
    return {path.read_text().rpartition(")")[2].split()[0] for path in paths}


def test_a_rank_with_little_cpu_takes_that_much_longer(fabric: Fabric) -> None:
    with fabric.slow_cpu("n3", 0.2):
        told = fabric.cluster.run("srun", "-N2", "-w", "n3,n4", sys.executable, "-c", COMPUTE)
    times = {node: float(times) for node, times in map(str.split, told.splitlines())}
    # For two seconds of CPU time. The others may be as slow, on a busy machine.
    assert times["n3"] > 4, times
