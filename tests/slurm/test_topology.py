"""What Slurm says of its topology becomes the leaf switch of each node."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from hpcverify.errors import SlurmError
from hpcverify.slurm.client import Slurm
from hpcverify.slurm.topology import from_text

TREE = """\
SwitchName=isw-L2-CELLG1 Level=1 LinkSpeed=1 Nodes=lrdn[0001-0016] Switches=isw1[0100,0102]
SwitchName=isw10100 Level=0 LinkSpeed=1 Nodes=lrdn[0001-0008,0013-0014]
SwitchName=isw10102 Level=0 LinkSpeed=1 Nodes=lrdn[0009-0012,0015-0016]
"""
"""Of a large cluster with topology/tree, as it is published, with fewer nodes."""
BLOCKS = """\
BlockName=gb300_b0 BlockIndex=0 Nodes=10.140.71.103,10.140.88.115 BlockSize=2
BlockName=gb300_b1 BlockIndex=1 Nodes=10.140.79.152,10.140.93.120 BlockSize=2
AggregatedBlock=gb300_b[0-1] BlockIndex=2 Nodes=10.140.71.103,10.140.79.152,10.140.88.115,\
10.140.93.120 BlockSize=4
"""
"""Of a cluster with topology/block, as it is published."""
BLOCK_OF_24_05 = "BlockName=block001 BlockIndex=0 Nodes=sched-worker[1-2]\n"


def test_a_node_of_a_tree_is_at_the_switch_of_level_0() -> None:
    found = from_text(TREE)
    assert len(found) == 16
    assert (found["lrdn0008"], found["lrdn0009"]) == ("isw10100", "isw10102")


def test_a_node_is_in_its_block_and_not_in_an_aggregate() -> None:
    assert from_text(BLOCKS) == {
        "10.140.71.103": "gb300_b0",
        "10.140.88.115": "gb300_b0",
        "10.140.79.152": "gb300_b1",
        "10.140.93.120": "gb300_b1",
    }


def test_a_block_without_a_size_counts_too() -> None:
    expected = {"sched-worker1": "block001", "sched-worker2": "block001"}
    assert from_text(BLOCK_OF_24_05) == expected


def test_a_node_at_several_leaf_switches_is_at_the_first() -> None:
    """As with a rail-optimized network: each adapter has a leaf switch of its own."""
    rails = "".join(f"SwitchName=rail{n} Level=0 LinkSpeed=1 Nodes=n[1-2]\n" for n in range(8))
    assert from_text(rails) == {"n1": "rail0", "n2": "rail0"}


def test_a_switch_without_nodes_is_nobodys() -> None:
    assert from_text("SwitchName=s0 Level=0 LinkSpeed=1 Nodes=(null)\n") == {}


@pytest.mark.parametrize(
    "printed", ["slurm_load_topo: nothing\n", "SwitchName=s Level=0 Nodes=n[\n"]
)
def test_what_is_no_topology_is_refused(printed: str) -> None:
    with pytest.raises(SlurmError):
        from_text(printed)


def test_without_a_topology_no_node_has_a_switch() -> None:
    """22.05 says so by an error, and later versions by no answer."""

    def refuse(command: Sequence[str]) -> str:
        assert list(command) == ["scontrol", "show", "topology"]
        raise SlurmError("scontrol show: scontrol: error: No topology information available")

    assert Slurm(run=refuse).read_switches() == {}
    assert Slurm(run=lambda _: "").read_switches() == {}


def test_another_error_is_one() -> None:
    def fail(_: Sequence[str]) -> str:
        raise SlurmError("scontrol show: Unable to contact slurm controller")

    with pytest.raises(SlurmError):
        Slurm(run=fail).read_switches()
