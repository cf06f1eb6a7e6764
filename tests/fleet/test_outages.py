"""An outage begins when a node fails or is held, and ends when it is in service again."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

import pytest
from msgspec.structs import replace

from hpcverify.fleet.outages import NodeOutage, OutageCause, follow_outage
from hpcverify.fleet.states import Node, State
from tests.tables import read_table

WELL = Node(name="n1", state=State.HEALTHY)
SUSPECT = replace(WELL, state=State.SUSPECT, reason="gemm: 20 % too slow", checks=("gemm",))
BAD = replace(SUSPECT, state=State.QUARANTINED, enforced=True)


def follow(*nodes: Node, ordered: bool = True) -> NodeOutage | None:
    known: NodeOutage | None = None
    for at, node in enumerate(nodes, 100):
        known = follow_outage(known, node, float(at), ordered=ordered)
    return known


def test_a_healthy_node_has_no_outage() -> None:
    assert follow(WELL) is follow(replace(WELL, state=State.VERIFYING)) is None


def test_it_lasts_from_the_first_suspicion_until_the_node_is_back_in_service() -> None:
    outage = follow(SUSPECT, BAD, replace(BAD, state=State.VERIFYING), WELL)

    assert outage == NodeOutage(
        node="n1",
        began=100.0,
        ended=103.0,
        cause=OutageCause.VERIFICATION,
        reason="gemm: 20 % too slow",
        checks=("gemm",),
        confirmed=True,
        held=True,
    )
    assert outage.is_failure


@dataclass(frozen=True)
class Story:
    """A row of ``outages.csv``: what the node was, one after the other, and its outage."""

    claim: str
    nodes: tuple[str, ...]
    outage: str
    ordered: bool = True


HELD = replace(WELL, state=State.HELD, by="ada", reason="new fans")
NODES = {
    "well": WELL,
    "suspect": SUSPECT,
    "verified": replace(SUSPECT, state=State.VERIFYING),
    "bad": BAD,
    "observed": replace(BAD, enforced=False),
    "held": HELD,
    "held-suspect": replace(HELD, checks=("gemm",)),
}
STORIES = read_table(Path(__file__).with_name("outages.csv"), Story)


@pytest.mark.parametrize("row", STORIES, ids=lambda row: row.claim)
def test_outage(row: Story) -> None:
    words = [node.partition(" by ") for node in row.nodes]
    outage = follow(*(replace(NODES[n], foreign=by) for n, _, by in words), ordered=row.ordered)
    expected = dict(word.split("=") for word in shlex.split(row.outage))
    assert {name: str(getattr(outage, name)) for name in expected} == expected
