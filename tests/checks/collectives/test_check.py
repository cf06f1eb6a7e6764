"""The check between the parts of a node: right results pass, wrong ones fail the node."""

from __future__ import annotations

import json
from pathlib import Path
from typing import get_args

import pytest

from hpcverify.check import Cause, Skip, Unable
from hpcverify.model import (
    CheckItem,
    Coverage,
    Device,
    Finding,
    Inventory,
    Measurement,
    Remedy,
    Verdict,
)
from hpcverify.testing import CPU, judge_items, make_context
from hpcverify_checks.collectives import (
    CHECK,
    CollectivesParams,
    OperationName,
    estimate,
    measure,
)
from hpcverify_checks.ranks.operations import OPERATIONS
from tests.checks.collectives.faulty.sitecustomize import BAD_RANK, FOLDER
from tests.checks.collectives.launched import KIB

pytestmark = pytest.mark.system

GPUS = tuple(Device("cuda", f"GPU-{number}", f"GPU {number}") for number in range(2))
SIZE = 12 * KIB
QUICK = CollectivesParams(
    operations=get_args(OperationName), sizes=(SIZE,), seconds=0.2, ranks=2, timeout_seconds=30.0
)


def found_by(folder: Path, params: CollectivesParams = QUICK) -> list[CheckItem]:
    return list(measure(make_context(folder), params))


def put_fault(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    """Put *fault* under the collectives of the other rank."""
    monkeypatch.setenv("PYTHONPATH", str(FOLDER))
    monkeypatch.setenv("FAULTS", json.dumps({SIZE: fault}))


def test_each_operation_can_be_asked_for_by_its_name() -> None:
    assert set(get_args(OperationName)) == OPERATIONS.keys()


def test_right_results_pass_each_time(tmp_path: Path) -> None:
    for number in range(3):
        folder = tmp_path / str(number)
        folder.mkdir()
        found = found_by(folder)

        assert not [item for item in found if isinstance(item, Finding)]
        assert judge_items(CHECK, found).verdict is Verdict.PASS
        [covered] = [
            item.text for item in found if isinstance(item, Coverage) and "gloo" in item.text
        ]
        assert covered.startswith("2 ranks, gloo: ")
        assert "all_gather" in covered
        assert "(12KiB) verified on each rank, to the bit" in covered


def test_each_operation_has_its_times_unless_others_use_the_cores(tmp_path: Path) -> None:
    found = found_by(tmp_path)
    names = {item.name for item in found if isinstance(item, Measurement)}
    expected = {
        f"{metric}.{operation}.12KiB"
        for metric in ("busbw", "time_p50", "time_p99")
        for operation in OPERATIONS
    }

    is_crowded = any(isinstance(item, Coverage) and "busbw" in item.text for item in found)
    assert expected <= names or (is_crowded and not expected & names)


@pytest.mark.parametrize("fault", ["stale", "flip"])
def test_a_wrong_result_of_another_rank_fails_the_node(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_fault(monkeypatch, fault)
    found = found_by(tmp_path)

    wrong = [item for item in found if isinstance(item, Finding)]
    assert {item.part_id for item in wrong} == {"node"}
    assert {item.evidence["operation"] for item in wrong} == set(OPERATIONS)
    assert {item.evidence["rank"] for item in wrong} == {str(BAD_RANK)}
    assert wrong[0].text.startswith(f"rank {BAD_RANK} got a wrong result of ")
    judgement = judge_items(CHECK, found)
    assert (judgement.verdict, judgement.remedy) == (Verdict.FAIL, Remedy.INSPECT)
    assert all(CHECK.finding_rules[item.code].conclusive for item in wrong)


def test_a_rank_that_dies_is_an_error_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_fault(monkeypatch, "dies")
    with pytest.raises(Unable, match="rank 1 died with status -9") as caught:
        found_by(tmp_path)
    assert caught.value.cause is Cause.CRASHED


def test_a_rank_that_hangs_is_an_error_within_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_fault(monkeypatch, "hangs")
    with pytest.raises(Unable, match="rank 1 was lost: it did not") as caught:
        found_by(tmp_path, CollectivesParams(sizes=(SIZE,), ranks=2, timeout_seconds=5.0))
    assert caught.value.cause is Cause.TIMEOUT


@pytest.mark.parametrize(
    ("devices", "device", "ranks", "told"),
    [
        (GPUS[:1], GPUS[0], 0, "only one GPU"),
        (GPUS, CPU, 2, "on the GPUs of this node instead"),
        ((), CPU, 0, "it runs with ranks of 2 or more"),
        ((), CPU, 1, "it runs with ranks of 2 or more"),
    ],
)
def test_where_there_is_nothing_to_exchange_it_is_skipped(
    devices: tuple[Device, ...], device: Device, ranks: int, told: str, tmp_path: Path
) -> None:
    inventory = Inventory(devices=(*devices, CPU))
    ctx = make_context(tmp_path, inventory=inventory, device=device, peers=(device,))

    with pytest.raises(Skip, match=told):
        list(measure(ctx, CollectivesParams(ranks=ranks)))
    if device is CPU:
        assert estimate(ctx, CollectivesParams(ranks=ranks)) == 0
