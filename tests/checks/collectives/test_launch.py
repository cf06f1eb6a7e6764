"""Ranks meet, measure, and leave one document, whatever becomes of some of them."""

from __future__ import annotations

import pytest

from hpcverify.records.collectives import RankPlace
from hpcverify_checks.ranks.operations import OPERATIONS
from tests.checks.collectives.launched import KIB, launch_here

pytestmark = pytest.mark.system


def test_all_operations_of_three_ranks_are_measured_and_right() -> None:
    run = launch_here(3)

    assert run.unable == ""
    assert not run.missing
    assert not run.wrong
    assert run.ranks == tuple(RankPlace(rank, "n1", "cpu") for rank in range(3))
    assert {(one.operation, one.size) for one in run.timings} == {
        (name, 4 * KIB) for name in OPERATIONS
    }
    assert run.backend == "gloo"
    assert set(run.libraries) == {"torch"}
