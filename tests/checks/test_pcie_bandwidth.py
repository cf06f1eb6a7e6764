"""Copies between host and GPU, here between two buffers of the host."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace
from torch import Tensor

from hpcverify.check import Context, Skip
from hpcverify.model import CheckItem, Coverage, Finding, Measurement, Remedy, Result, Verdict
from hpcverify.telemetry.aer import Link
from hpcverify.testing import find_value, judge_items, make_context
from hpcverify_checks.exact.transfers import Copy, copy, make_pattern
from hpcverify_checks.pcie_bandwidth import (
    CHECK,
    PcieBandwidthParams,
    Route,
    measure,
    measure_route,
)
from tests.checks.links import H100, accused, codes, ids, node, passes

SHORT = PcieBandwidthParams(size=2**20, seconds=0.02, warm_up_seconds=0, rounds=2)
HOST = torch.device("cpu")


def gpu(tmp_path: Path) -> Context:
    ctx = node(tmp_path, H100, 1)
    return replace(ctx, device=ctx.inventory.devices[1])


def nothing() -> None:
    return None


def copied(
    ctx: Context,
    by: Copy = copy,
    link: Callable[[], Link | None] = nothing,
    cores: frozenset[int] = frozenset(),
) -> list[CheckItem]:
    route = Route(HOST, link, cores, by)
    return list(measure_route(route, ctx, SHORT))


def covered(found: list[CheckItem]) -> list[str]:
    return [f.text for f in found if isinstance(f, Coverage)]


def corrupting(which: int) -> Copy:
    """Copy, and flip a bit of word 1000 in the copies of that turn: 0 out, 1 back."""
    turn = iter(range(10**6))

    def faulty(target: Tensor, source: Tensor) -> None:
        copy(target, source)
        if next(turn) == which:
            target[1000] ^= 1 << 40

    return faulty


def rated(ctx: Context, *of_link: float) -> Result:
    found = [
        Measurement("h2d.of_link", share, "ratio", part_id)
        for part_id, share in zip(ids(len(of_link)), of_link, strict=True)
    ]
    return judge_items(CHECK, found, ctx.inventory)


def test_a_cpu_is_skipped(tmp_path: Path) -> None:
    with pytest.raises(Skip, match="no PCIe link"):
        list(measure(make_context(tmp_path), SHORT))


def test_words_that_arrive_whole_pass_every_time(tmp_path: Path) -> None:
    ctx = gpu(tmp_path)
    for _ in range(5):
        found = copied(ctx)
        assert codes(found) == set()  # how fast this machine copies is not on trial
        assert (find_value(found, "h2d", "GPU-0") or 0) > 0
        assert (find_value(found, "d2h", "GPU-0") or 0) > 0


@pytest.mark.parametrize(
    ("turn", "way", "round_"),
    [
        (0, "from the host to the GPU", "0"),
        (1, "from the GPU to the host", "0"),
        (2, "from the host to the GPU", "1"),
    ],
)
def test_a_changed_bit_fails_and_says_where_it_was_lost(
    tmp_path: Path, turn: int, way: str, round_: str
) -> None:
    ctx = gpu(tmp_path)
    found = copied(ctx, corrupting(turn))
    judgement = judge_items(CHECK, found, ctx.inventory)
    assert (judgement.verdict, judgement.remedy) == (Verdict.FAIL, Remedy.INSPECT)
    assert f"1 word changed on the way {way}" in judgement.reason
    (finding,) = (f for f in found if isinstance(f, Finding))
    assert (finding.evidence["offset"], finding.evidence["round"]) == (hex(8000), round_)
    flipped = int(finding.evidence["found"], 16) ^ int(finding.evidence["expected"], 16)
    assert flipped == 1 << 40


@pytest.mark.parametrize("turn", [0, 2])
def test_words_that_change_in_the_hosts_memory_accuse_no_gpu(tmp_path: Path, turn: int) -> None:
    ctx, turns = gpu(tmp_path), iter(range(10**6))

    def forgetting(target: Tensor, source: Tensor) -> None:
        copy(target, source)
        if next(turns) == turn:  # after a copy out, before it is compared
            source[1000 + turn] ^= 1 << 40

    found = copied(ctx, forgetting)
    judgement = judge_items(CHECK, found, ctx.inventory)

    (finding,) = (f for f in found if isinstance(f, Finding))
    assert (finding.part_id, finding.code) == ("memory", "memory_changed")
    assert (judgement.verdict, judgement.remedy) == (Verdict.FAIL, Remedy.INSPECT)
    assert not CHECK.finding_rules[finding.code].conclusive


def test_a_copy_that_never_happens_is_found(tmp_path: Path) -> None:
    def idle(_target: Tensor, _source: Tensor) -> None:
        """Do nothing."""

    assert codes(copied(gpu(tmp_path), idle)) == {"transfer_corrupted"}


def test_a_later_copy_that_does_not_happen_is_found(tmp_path: Path) -> None:
    turn = iter(range(10**6))

    def lazy(target: Tensor, source: Tensor) -> None:
        if next(turn) != 3:
            copy(target, source)

    (finding,) = (f for f in copied(gpu(tmp_path), lazy) if isinstance(f, Finding))
    assert finding.evidence["way"] == "from the GPU to the host"


def test_what_is_reached_is_a_share_of_what_the_link_carries(tmp_path: Path) -> None:
    found = copied(gpu(tmp_path), link=lambda: Link(5, 16))
    rate, share = (find_value(found, n, "GPU-0") for n in ("d2h", "d2h.of_link"))
    assert rate is not None
    assert share == pytest.approx(rate / 63.015, rel=1e-3)
    assert find_value(found, "d2h.link", "GPU-0") == pytest.approx(63.015, rel=1e-3)


# A healthy L40S of AWS has 8 of its 16 lanes (nvidia-smi of a g6e.2xlarge, 595.91, in
# NVIDIA/k8s-test-infra): alone it is no fault.
@pytest.mark.parametrize(
    ("carried", "slow"), [([31.5] * 4, []), ([31.5], []), ([63.0] * 3 + [31.5], ["GPU 3"])]
)
def test_a_link_is_compared_with_those_of_its_siblings(
    tmp_path: Path, carried: list[float], slow: list[str]
) -> None:
    ctx = node(tmp_path, H100, len(carried))
    found = [
        Measurement(name, rate, "GB/s", f"GPU-{gpu}")
        for gpu, link in enumerate(carried)
        for name, rate in (("h2d", link * 0.85), ("h2d.link", link))
    ]
    judgement = judge_items(CHECK, found, ctx.inventory)
    assert judgement.verdict is (Verdict.WARN if slow else Verdict.PASS)
    assert accused(judgement, ctx) == slow


def test_a_link_that_is_not_told_gives_no_share(tmp_path: Path) -> None:
    found = copied(gpu(tmp_path))
    names = {f.name for f in found if isinstance(f, Measurement)}
    assert names == {"h2d", "d2h", "h2d.stall", "d2h.stall"}
    assert "is not known: rates are not compared with it" in covered(found)[1]


def test_of_a_link_that_is_told_no_gap_is_listed(tmp_path: Path) -> None:
    assert len(covered(copied(gpu(tmp_path), link=lambda: Link(5, 16)))) == 1


@pytest.mark.parametrize(
    ("share", "verdict"), [(0.88, "pass"), (0.76, "pass"), (0.7, "warn"), (0.4, "fail")]
)
def test_a_share_of_the_link_is_judged(tmp_path: Path, share: float, verdict: str) -> None:
    assert rated(gpu(tmp_path), share).verdict.value == verdict


def test_a_gpu_below_its_siblings_fails(tmp_path: Path) -> None:
    ctx = node(tmp_path)
    assert passes(rated(ctx, *[0.86] * 7, 0.79))
    judgement = rated(ctx, *[0.9] * 7, 0.76)
    assert judgement.verdict is Verdict.FAIL
    assert "GPU 7: h2d.of_link" in judgement.reason


def test_it_is_told_from_which_cores_the_copies_were_made(tmp_path: Path) -> None:
    found = copied(gpu(tmp_path), cores=frozenset({0, 1, 2, 5}))
    assert covered(found)[0].endswith("from cores 0-2,5, near the GPU")
    found = copied(gpu(tmp_path))
    assert covered(found)[0].endswith("from any core")


def test_a_pattern_is_the_same_in_parts_and_as_a_whole() -> None:
    whole = make_pattern(7, range(1000), HOST)
    assert torch.equal(whole[400:], make_pattern(7, range(400, 1000), HOST))
    assert len(set(whole.tolist()) & set(make_pattern(8, range(1000), HOST).tolist())) == 0
    assert int(make_pattern(2**62, range(1), HOST)) == int(make_pattern(2**62, range(2), HOST)[0])
