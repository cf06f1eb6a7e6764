"""A wrong word in any collective is found, on the rank that got it, whatever is wrong."""

from __future__ import annotations

import json

import pytest

from hpcverify.records.collectives import CollectiveRun
from hpcverify_checks.ranks.operations import OPERATIONS
from tests.checks.collectives.faulty.sitecustomize import BAD_RANK, FOLDER
from tests.checks.collectives.launched import KIB, launch_here

pytestmark = pytest.mark.system

WRONG = ("stale", "low_bit", "flip", "displaced", "swapped", "own")


def launch_with(
    monkeypatch: pytest.MonkeyPatch, world: int, *faults: str
) -> tuple[CollectiveRun, dict[int, str]]:
    """Launch ranks with faults under one of them, each at a size of its own."""
    by_size = {12 * KIB * (place + 1): fault for place, fault in enumerate(faults)}
    monkeypatch.setenv("PYTHONPATH", str(FOLDER))
    monkeypatch.setenv("FAULTS", json.dumps(by_size))
    return launch_here(world, sizes=tuple(by_size)), by_size


def test_every_operation_tells_a_wrong_result_and_its_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    run, by_size = launch_with(monkeypatch, 2, *WRONG)

    found = {(one.operation, by_size[one.size]) for one in run.wrong}
    assert found == {(name, fault) for name in OPERATIONS for fault in WRONG}
    assert {one.rank for one in run.wrong} == {BAD_RANK}
    assert run.unable == ""
    for one in run.wrong:
        if by_size[one.size] == "flip":
            assert one.elements == 1
            if one.found.startswith("0x"):
                assert int(one.found, 16) ^ int(one.expected, 16) == 1 << 17


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("dies", "died with SIGKILL"),
        ("dies_of_a_number", "died with signal 40"),
        ("hangs", "has hung at its own work"),
    ],
)
def test_a_rank_that_is_gone_is_missing_and_no_other(
    fault: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, _ = launch_with(monkeypatch, 3, fault)

    assert run.missing == (BAD_RANK,)
    assert run.reasons[BAD_RANK].startswith(told)


def test_a_rank_that_fails_for_a_reason_of_its_own_is_not_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run, _ = launch_with(monkeypatch, 2, "raises")

    assert not run.missing
    assert run.unable.startswith(f"rank {BAD_RANK}: RuntimeError: CUDA error: an illegal memory")
