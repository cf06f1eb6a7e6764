"""The Slurm client, on a real cluster."""

from __future__ import annotations

from tests.slurm_lab.lab import Cluster


def test_all_nodes_are_given_each_once(cluster: Cluster) -> None:
    hosts = cluster.slurm.hosts()

    assert sorted(hosts) == ["n1", "n2", "n3", "n4"]
    assert {host.state for host in hosts.values()} == {"IDLE"}
    assert hosts["n1"].partitions == ("batch", "verify")
    assert hosts["n1"].gpus == 2
