"""What the rows of the history do not have is looked up: limits, and where a node is."""

from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path

import pytest

from hpcverify.fleet.ledger import Ledger
from hpcverify.history.database import open_to_write
from hpcverify.history.reader import Choice
from hpcverify.insight.comparison import describe_compared, judge_past, judge_peers, make_locator
from hpcverify.model import Inventory, Limit, Measurement, Part, Result, Run, Verdict
from hpcverify.peers.rule import MIN_PEERS
from hpcverify.plan.config import NodeKind, Site
from hpcverify.records.store import Store
from tests.history.fleets import make_history

GPU = "GPU-17-0"


def save_run(state: Path, *limits: Limit) -> None:
    """Save the document of the run of r1n17, in which its GPU had these *limits*."""
    measured = Measurement("bf16.sustained", 475.0, "TFLOP/s", GPU)
    Store(state).save(
        Run(
            id="20261102-220000-000011",
            node="r1n17",
            suite="idle",
            started=datetime(2026, 11, 2, 22, tzinfo=UTC),
            seconds=60,
            verdict=Verdict.PASS,
            complete=True,
            passive=False,
            inventory=Inventory(parts=(Part("gpu", GPU, "GPU 0", {"name": "H100"}),)),
            results=(
                Result(check="gemm", verdict=Verdict.PASS, measurements=(measured,), limits=limits),
            ),
        )
    )


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ((), Verdict.WARN),
        ((Limit("bf16.sustained", low=490.0, part_id=GPU),), Verdict.FAIL),
        ((Limit("*.sustained", low=490.0),), Verdict.FAIL),
        ((Limit("bf16.sustained", low=400.0, part_id=GPU),), Verdict.WARN),
        ((Limit("bf16.sustained", low=490.0, otherwise=Verdict.WARN),), Verdict.WARN),
        ((Limit("bf16.sustained", low=490.0, part_id="GPU-17-1"),), Verdict.WARN),
        ((Limit("bf16.sustained", high=490.0, part_id=GPU),), Verdict.WARN),
    ],
)
def test_it_fails_only_if_peers_and_the_limit_of_its_own_run_agree(
    tmp_path: Path, limits: tuple[Limit, ...], expected: Verdict
) -> None:
    make_history(tmp_path, level="if(n = 17, 0.95, 1)")
    save_run(tmp_path, *limits)

    judged = judge_peers(tmp_path, Choice(), Site(), lambda _: {})

    (entry,) = judged.document.metrics
    (outlier,) = entry.outliers
    assert (outlier.name, outlier.verdict) == ("r1n17 GPU 0", expected)


def test_a_trend_says_when_it_crosses_the_limit_of_the_part(tmp_path: Path) -> None:
    make_history(tmp_path, nights=30, level="if(n = 17, 1 - 0.001 * t, 1)")
    save_run(tmp_path, Limit("bf16.sustained", low=470.0, part_id=GPU))

    (judged,) = judge_past(tmp_path, Choice(), Site()).values()

    (change,) = judged.changes
    assert (change.node, change.kind) == ("r1n17", "trend")
    assert change.crossing is not None
    assert change.crossing.day > change.time


def test_a_node_that_did_not_run_lately_is_compared_by_its_last_night(tmp_path: Path) -> None:
    make_history(tmp_path, nights=2)
    with open_to_write(tmp_path) as db:
        db.execute("delete from nights where night = (select max(night) from nights)")

    judged = judge_peers(tmp_path, Choice(), Site(), lambda _: {}, newest=True)

    assert len(judged.last_nights) >= MIN_PEERS
    assert judged.document.screened == 2


def test_a_slow_rack_is_named_though_none_of_its_nodes_is_far(tmp_path: Path) -> None:
    slow = "1 + 0.007 * sin(1.7 * n) - if(n // 10 = 2, 0.024, 0)"
    make_history(tmp_path, level=slow, nodes=40, part_spread=0, run_spread=0)
    locate = make_locator(Site(), Ledger(tmp_path))

    judged = judge_peers(tmp_path, Choice(), Site(), locate)

    (entry,) = judged.document.metrics
    assert [(each.level, each.name) for each in entry.outliers] == [("rack", "r2")]


def test_of_a_metric_that_is_usually_zero_no_rack_is_named(tmp_path: Path) -> None:
    rarely = "if(n % 10 < 4, -1, 0)"
    make_history(tmp_path, level=rarely, nodes=40, part_spread=0, run_spread=0)
    judged = judge_peers(tmp_path, Choice(), Site(), make_locator(Site(), Ledger(tmp_path)))
    assert [each for entry in judged.document.metrics for each in entry.outliers] == []


def test_a_slow_driver_is_named_though_none_of_its_nodes_is_far(tmp_path: Path) -> None:
    slow = "1 + 0.007 * sin(1.7 * n) - if(n % 8 = 2, 0.024, 0)"
    some = "n % 8 = 2"
    make_history(tmp_path, level=slow, new_driver=some, nodes=80, part_spread=0, run_spread=0)

    judged = judge_peers(tmp_path, Choice(), Site(), lambda _: {})

    (entry,) = judged.document.metrics
    assert [each.level for each in entry.outliers] == ["driver"]


def test_the_name_of_a_node_without_a_switch_tells_its_rack(tmp_path: Path) -> None:
    locate = make_locator(Site(), Ledger(tmp_path))
    assert locate("r12c3n4") == {"rack": "r12c3"}
    assert locate("gpu0017") == {}


AIR = Site(kinds=(NodeKind(name="air", nodes="r0n[0-3]"),))


@pytest.mark.parametrize(("site", "named"), [(Site(), 4), (AIR, 0)])
def test_nodes_that_are_slower_by_design_are_named_until_the_site_says_so(
    tmp_path: Path, site: Site, named: int
) -> None:
    make_history(tmp_path, level="if(n < 4, 0.95, 1)", nodes=40, part_spread=0.001)
    judged = judge_peers(tmp_path, Choice(), site, lambda _: {})
    assert len([each for entry in judged.document.metrics for each in entry.outliers]) == named


@pytest.mark.parametrize("node", [2, 17])
def test_a_slow_node_is_named_among_those_of_its_kind(tmp_path: Path, node: int) -> None:
    level = f"if(n < 4, 0.95, 1) * if(n = {node}, 0.9, 1)"
    make_history(tmp_path, level=level, nodes=40, part_spread=0.001)

    judged = judge_peers(tmp_path, Choice(), AIR, lambda _: {})

    named = [
        (entry.name.mode, one.node) for entry in judged.document.metrics for one in entry.outliers
    ]
    assert named == [("idle, H100, air" if node < 4 else "idle, H100", f"r{node // 10}n{node}")]


@pytest.mark.parametrize(("nodes", "named"), [(2, 0), (4, 1), (7, 1), (8, 1)])
def test_a_slow_node_of_a_few_is_named_or_it_is_said_why_not(
    tmp_path: Path, nodes: int, named: int
) -> None:
    make_history(tmp_path, level="if(n = 1, 0.9, 1)", nodes=nodes, part_spread=0.001)

    judged = judge_peers(tmp_path, Choice(), Site(), lambda _: {})

    outliers = [each.node for entry in judged.document.metrics for each in entry.outliers]
    assert outliers == ["r0n1"] * named
    assert len(judged.document.too_few) == (2 if nodes < 3 else 0)
    compared = describe_compared(judged.fleet, (), None)
    assert compared.startswith(f"{nodes if named else 0} of {nodes} nodes were compared")
    assert ("not: fewer than 3 parts like theirs" in compared) is (named == 0)


def test_it_says_which_nodes_were_not_compared_and_why(tmp_path: Path) -> None:
    make_history(tmp_path, nodes=24)
    site = Site(kinds=(NodeKind(name="air", nodes="r0n[0-1]"),))
    judged = judge_peers(tmp_path, Choice(), site, lambda _: {})
    assert describe_compared(judged.fleet, ["r1n10", "r9n90", "r9n91"], date(2026, 11, 2)) == (
        "22 of 26 nodes were compared; r0n[0-1] not: fewer than 3 parts like theirs; "
        "r9n[90-91] not: no value since the night of 2026-11-02"
    )
