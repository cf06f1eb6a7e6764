"""
``hpcverify fabric test`` over srun, on nodes whose links are broken.

Whoever holds the others up has a name, and nobody else has.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from time import monotonic

import pytest

from tests.fabric_lab.cluster import Fabric
from tests.fabric_lab.faults import FAULTS, SLOW_MBIT
from tests.fabric_lab.measuring import Measuring, busy_nodes, measuring, name_stragglers

pytestmark = [
    pytest.mark.needs("root"),
    pytest.mark.timed,
]

EXIT_FOUND = 1
TRIES = 3
FOUND_WITHIN = 60.0
"""Seconds from the fault until it has a name."""


@pytest.mark.parametrize("busy", [False, True])
def test_nobody_is_named_on_healthy_nodes(fabric: Fabric, tmp_path: Path, *, busy: bool) -> None:
    with ExitStack() as load:
        if busy:
            load.enter_context(busy_nodes(fabric))
        measured = Measuring(fabric, tmp_path)
        run = measured.end()

    assert not name_stragglers(run)
    assert (run.missing, run.wrong, run.unable) == ((), (), "")
    assert measured.status == 0, measured.told
    assert [place.node for place in run.ranks] == fabric.network.nodes


@pytest.mark.parametrize("fault", FAULTS)
def test_who_holds_the_others_up_has_a_name_within_a_minute(
    fabric: Fabric, tmp_path: Path, fault: str
) -> None:
    """Other work on the machine may hide it now and then, and never has another named."""
    inject, node, how = FAULTS[fault]
    for _ in range(TRIES):
        with inject(fabric):
            started = monotonic()
            measured = Measuring(fabric, tmp_path)
            run = measured.end()
            took = monotonic() - started
        named = name_stragglers(run)
        assert {who for who, _ in named} <= {node}, measured.told
        if named:
            assert {what for _, what in named} <= how
            assert measured.status == EXIT_FOUND
            assert took < FOUND_WITHIN
            assert run.stragglers[0].gain > 0.05
            return
    pytest.fail(f"{node} was not named in {TRIES} measurements")


def test_a_slow_switch_names_none_of_its_nodes(fabric: Fabric, tmp_path: Path) -> None:
    """`fabric bisect` finds it: half of the nodes are no outliers."""
    with fabric.network.slow_switch("sw2", SLOW_MBIT):
        measured = Measuring(fabric, tmp_path)
        run = measured.end()

    assert not name_stragglers(run), measured.told
    assert not run.missing


def test_a_rank_that_stops_is_missing_and_no_other(fabric: Fabric, tmp_path: Path) -> None:
    with measuring(fabric, tmp_path, "--timeout", "600s") as measured, fabric.stopped("n3"):
        check_missing(measured, "n3")


def test_where_the_link_of_rank_0_goes_down_it_is_missing_and_no_other(
    fabric: Fabric, tmp_path: Path
) -> None:
    with measuring(fabric, tmp_path) as measured, fabric.network.unplugged("n1"):
        check_missing(measured, "n1")


def check_missing(measured: Measuring, node: str) -> None:
    """Wait for the end; the only rank of *node* must be missing, and no other accused."""
    started = monotonic()
    run = measured.end()

    assert [run.ranks[rank].node for rank in run.missing] == [node], measured.told
    assert not run.stragglers
    assert monotonic() - started < FOUND_WITHIN
