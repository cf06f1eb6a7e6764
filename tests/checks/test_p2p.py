"""Copies between every two GPUs, here between buffers of the host."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace
from torch import Tensor

from hpcverify.check import Context, Skip, Unable
from hpcverify.limits.specs import Spec
from hpcverify.model import (
    Cause,
    CheckItem,
    Coverage,
    Finding,
    Inventory,
    Measurement,
    Remedy,
    Result,
    Verdict,
)
from hpcverify.telemetry.problems import NOT_USED
from hpcverify.testing import find_value, judge_items, make_context
from hpcverify_checks import p2p
from hpcverify_checks.exact.mismatch import Mismatch
from hpcverify_checks.exact.transfers import Copy, copy, make_pattern
from hpcverify_checks.node.parts import classify_wiring
from hpcverify_checks.p2p import CHECK, P2pParams, Rig, measure, measure_pairs
from tests.checks.links import BY_KEY, H100, accused, codes, ids, node, passes
from tests.limits.physics import read_number

SHORT = P2pParams(size=2**16, verified=2**14, seconds=0.0)
HOST = torch.device("cpu")
NAMES = ("write", "read", "ring")


def rig(ctx: Context, by: Copy = copy, *, reached: bool = True) -> Rig:
    gpus = ctx.inventory.devices[1:]
    return Rig(
        devices=(HOST,) * len(gpus),
        gpus=gpus,
        reaches=lambda _device, _peer: reached,
        seed=ctx.seed,
        copy=by,
    )


def ran(ctx: Context, by: Copy = copy, *, reached: bool = True) -> list[CheckItem]:
    return list(measure_pairs(rig(ctx, by, reached=reached), ctx, SHORT))


def facts(found: list[CheckItem]) -> list[Finding]:
    return [f for f in found if isinstance(f, Finding)]


def rated(ctx: Context, rates: dict[tuple[int, int], float]) -> Result:
    gpus = ctx.inventory.devices[1:]
    ring = {i: rates[i, (i + 1) % len(gpus)] for i in range(len(gpus))}
    wiring = classify_wiring(gpus, ctx)
    found = list(p2p.report_rates(rig(ctx), rates, ring, wiring))
    return judge_items(CHECK, found, ctx.inventory)


def pairs(count: int, rate: float = 370.0) -> dict[tuple[int, int], float]:
    return {pair: rate - 0.01 * sum(pair) for pair in permutations(range(count), 2)}


def test_it_takes_two_gpus(tmp_path: Path) -> None:
    with pytest.raises(Skip, match="fewer than two GPUs"):
        list(measure(node(tmp_path, H100, 1), SHORT))
    with pytest.raises(Skip, match="no GPU on this node"):
        list(measure(make_context(tmp_path), SHORT))


def test_gpus_that_cannot_be_reached_are_no_reason_to_skip(tmp_path: Path) -> None:
    problem = Finding("driver_not_loaded", "node", "no driver: modprobe nvidia")
    ctx = make_context(tmp_path, inventory=Inventory(problems=(problem,)))
    with pytest.raises(Unable, match="modprobe nvidia"):
        list(measure(ctx, SHORT))
    with pytest.raises(Unable, match="torch"):
        list(measure(node(tmp_path, H100, 2), SHORT))


@pytest.mark.parametrize("count", [2, 3, 8])
def test_copies_that_arrive_whole_have_no_finding(tmp_path: Path, count: int) -> None:
    ctx = node(tmp_path, H100, count)
    for _ in range(4):
        assert facts(ran(ctx)) == []
    found = ran(ctx)
    wiring = classify_wiring(ctx.inventory.devices[1:], ctx)
    for part_id in ids(count):
        assert all((find_value(found, f"{wiring}.{n}", part_id) or 0) > 0 for n in NAMES)


def test_a_changed_bit_names_both_ends(tmp_path: Path) -> None:
    turn = iter(range(10**6))

    def faulty(target: Tensor, source: Tensor) -> None:
        copy(target, source)
        if next(turn) == 4:  # 0-1, 0-2, 1-0, 1-2, 2-0
            target[100] ^= 1

    ctx = node(tmp_path, H100, 3)
    (finding,) = facts(ran(ctx, faulty))
    assert (finding.code, finding.part_id) == ("p2p_corrupted", "GPU-2")
    evidence = finding.evidence
    assert (evidence["from"], evidence["to"]) == ("GPU-2", "GPU-0")
    assert evidence["offset"] == hex(800)
    assert int(evidence["found"], 16) ^ int(evidence["expected"], 16) == 1
    assert evidence["right"] == evidence["expected"] == evidence["at_the_source"]
    judgement = judge_items(CHECK, [finding], ctx.inventory)
    assert (judgement.verdict, judgement.remedy) == (Verdict.FAIL, Remedy.INSPECT)
    assert "between GPU 2 and GPU 0" in judgement.reason


def test_a_copy_that_never_happens_is_found_on_every_pair(tmp_path: Path) -> None:
    assert len(facts(ran(node(tmp_path, H100, 3), idle))) == 6


def idle(_target: Tensor, _source: Tensor) -> None:
    """Copy nothing."""


@pytest.mark.parametrize("key", ["l40s", "h100-nvl-94gb", "v100-sxm2-16gb"])
@pytest.mark.parametrize("count", [2, 4])
def test_pairs_that_all_fail_over_pcie_are_a_fault_of_the_set_up(
    tmp_path: Path, key: str, count: int
) -> None:
    ctx = node(tmp_path, BY_KEY[key], count)
    judgement = judge_items(CHECK, facts(ran(ctx, idle)), ctx.inventory)
    assert (judgement.verdict, judgement.remedy, judgement.cause) == (
        Verdict.ERROR,
        Remedy.FIX_CONFIGURATION,
        Cause.MISCONFIGURED,
    )
    assert f"between all {count * (count - 1)} pairs" in judgement.reason
    assert "amd_iommu=off" in judgement.reason


def test_pairs_that_all_fail_over_nvlink_or_the_host_are_a_fault_of_hardware(
    tmp_path: Path,
) -> None:
    nvlink, by_host = node(tmp_path), node(tmp_path, BY_KEY["l40s"], 2)
    assert codes(ran(nvlink, idle)) == {"p2p_corrupted"}
    assert "p2p_corrupted" in codes(ran(by_host, idle, reached=False))


def test_one_gpu_that_fails_over_pcie_fails_and_the_set_up_is_named_too(tmp_path: Path) -> None:
    turn = iter(range(10**6))

    def faulty(target: Tensor, source: Tensor) -> None:
        copy(target, source)
        if next(turn) in (2, 3):  # 1-0, 1-2
            target[100] ^= 1

    ctx = node(tmp_path, BY_KEY["l40s"], 3)
    found = facts(ran(ctx, faulty))
    assert [(f.code, f.part_id) for f in found] == [("p2p_corrupted", "GPU-1")] * 2
    judgement = judge_items(CHECK, found, ctx.inventory)
    assert judgement.verdict is Verdict.FAIL
    assert "the IOMMU or ACS" in judgement.reason


def test_words_of_another_gpu_are_found(tmp_path: Path) -> None:
    sent: list[Tensor] = []

    def misled(target: Tensor, source: Tensor) -> None:
        sent.append(source)
        copy(target, sent[0])

    found = list(p2p.verify_pairs(rig(node(tmp_path, H100, 3), misled), 1000))
    assert [f.part_id for f in found] == ["GPU-1", "GPU-1", "GPU-2", "GPU-2"]


def test_memory_that_is_wrong_at_the_source_is_no_fault_of_the_link(tmp_path: Path) -> None:
    def spoilt(target: Tensor, source: Tensor) -> None:
        source[5] = 42
        copy(target, source)

    ctx = node(tmp_path, H100, 2)
    found = facts(ran(ctx, spoilt))
    assert codes(found) == {"words_wrong"}
    assert [f.part_id for f in found] == ids(2)
    judgement = judge_items(CHECK, found, ctx.inventory)
    assert (judgement.verdict, judgement.remedy) == (Verdict.FAIL, Remedy.REPLACE)


def test_a_target_that_computes_wrongly_is_blamed_itself(tmp_path: Path) -> None:
    ctx = node(tmp_path, H100, 2)
    truth = int(make_pattern(ctx.seed, range(3, 4), HOST))
    mismatch = Mismatch(count=1, index=3, found=truth, expected=12)
    finding = p2p.explain_corruption(rig(ctx), (0, 1), mismatch, truth)
    assert (finding.code, finding.part_id) == ("words_wrong", "GPU-1")


@pytest.mark.parametrize(
    ("key", "verdict"),
    [
        ("h100-sxm5-80gb", "warn"),
        ("a100-sxm4-80gb", "warn"),
        ("v100-sxm2-16gb", "pass"),
        ("l40s", "pass"),
        ("h100-nvl-94gb", "pass"),
    ],
)
def test_pairs_without_a_direct_way_matter_where_nvlink_joins_all(
    tmp_path: Path, key: str, verdict: str
) -> None:
    ctx = node(tmp_path, BY_KEY[key], 3)
    found = facts(ran(ctx, reached=False))
    judgement = judge_items(CHECK, found, ctx.inventory)
    assert judgement.verdict.value == verdict
    assert found[0].text.startswith("no peer access to GPU 1, GPU 2")


@pytest.mark.parametrize("sheet", BY_KEY.values(), ids=BY_KEY)
@pytest.mark.parametrize("count", [2, 4, 8])
def test_healthy_nodes_of_every_part_pass(tmp_path: Path, sheet: Spec, count: int) -> None:
    ctx = node(tmp_path, sheet, count)
    wiring = classify_wiring(ctx.inventory.devices[1:], ctx)
    reached = 0.85 * (read_number(sheet, "nvlink_total") or 0) / 2
    rates = pairs(count, reached if wiring in ("p2p", "tray") else reached / 3 or 25.0)
    if wiring == "peer":  # a mesh with holes, bridges, PCIe switches and two sockets
        rates = {(i, j): r if i % 2 == j % 2 else 9.0 for (i, j), r in rates.items()}
    assert passes(rated(ctx, rates))


def test_a_gpu_with_dead_links_fails_and_none_of_its_partners(tmp_path: Path) -> None:
    ctx = node(tmp_path)
    slow = {pair: r / 2 if 3 in pair else r for pair, r in pairs(8).items()}
    judgement = rated(ctx, slow)
    assert judgement.verdict is Verdict.FAIL
    assert "GPU 3: p2p.write" in judgement.reason
    assert "GPU 3: p2p.read" in judgement.reason
    assert set(accused(judgement, ctx)) <= {"GPU 2", "GPU 3"}  # 2 sends to 3 in the ring


def test_one_slow_pair_fails_the_node(tmp_path: Path) -> None:
    ctx = node(tmp_path)
    judgement = rated(ctx, pairs(8) | {(5, 1): 200.0})
    assert judgement.verdict is Verdict.FAIL
    assert judgement.reason.startswith("node: p2p.slowest 54")


def test_a_node_whose_pairs_are_all_slow_fails_by_the_data_sheet(tmp_path: Path) -> None:
    judgement = rated(node(tmp_path), pairs(8, 180.0))
    assert judgement.verdict is Verdict.FAIL
    assert "data sheet" in judgement.reason


@pytest.mark.parametrize("key", ["gb200", "gb300"])
@pytest.mark.parametrize("count", [2, 4])
def test_a_tray_is_behind_switches_however_few_gpus_it_has(
    tmp_path: Path, key: str, count: int
) -> None:
    ctx = node(tmp_path, BY_KEY[key], count)
    assert classify_wiring(ctx.inventory.devices[1:], ctx) == "tray"
    assert passes(rated(ctx, pairs(count, 770.0)))
    judgement = rated(ctx, pairs(count, 385.0))
    assert judgement.verdict is Verdict.WARN  # GB200 NVL4 has no switches
    assert "data sheet" in judgement.reason


@pytest.mark.parametrize("key", ["a100-sxm4-80gb", "h100-sxm5-80gb"])
def test_four_gpus_on_a_board_are_a_mesh(tmp_path: Path, key: str) -> None:
    ctx = node(tmp_path, BY_KEY[key], 4)
    assert classify_wiring(ctx.inventory.devices[1:], ctx) == "mesh"


@pytest.mark.parametrize("key", ["b200-sxm", "b300-sxm"])
def test_eight_equally_slow_gpus_fail(tmp_path: Path, key: str) -> None:
    ctx = node(tmp_path, BY_KEY[key])
    assert passes(rated(ctx, pairs(8, 740.0)))
    assert rated(ctx, pairs(8, 370.0)).verdict is Verdict.FAIL


def test_coverage_shows_all_pairs_and_names_the_slowest(tmp_path: Path) -> None:
    ctx = node(tmp_path, H100, 3)
    rates = pairs(3) | {(2, 0): 100.0}
    found = list(p2p.report_rates(rig(ctx), rates, dict.fromkeys(range(3), 1.0), "mesh"))
    (covered,) = (f.text for f in found if isinstance(f, Coverage))
    assert covered == "the slowest pair: GPU 2 to GPU 0, 100 GB/s"
    table = p2p.tabulate_rates(rig(ctx).gpus, rates)
    assert table.rates[2] == (rates[2, 0], rates[2, 1], None)
    assert [row.index(None) for row in table.rates] == [0, 1, 2]
    assert {f.unit for f in found if isinstance(f, Measurement)} == {"GB/s", "ratio"}


def test_a_gpu_that_hung_in_an_earlier_check_is_said_to_be_left_out(tmp_path: Path) -> None:
    ctx = node(tmp_path, H100, 3)
    *kept, hung = ctx.inventory.devices
    problem = Finding(NOT_USED, hung.part, "did not return from its work in gemm")
    left = replace(ctx.inventory, devices=tuple(kept), problems=(problem,))
    told = [f for f in ran(replace(ctx, inventory=left)) if isinstance(f, Coverage)]
    [about] = [one for one in told if one.part_id == hung.part]
    assert about.text.startswith(f"{hung.label} was left out of all pairs: did not return")
    assert not any("left out" in f.text for f in ran(ctx) if isinstance(f, Coverage))
