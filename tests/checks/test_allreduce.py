"""Every sum is verified, and a rank that is gone ends the check and is not left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor

from hpcverify.check import Skip, Unable
from hpcverify.model import (
    Cause,
    CheckItem,
    Coverage,
    Device,
    Finding,
    Inventory,
    Measurement,
    Remedy,
    Result,
    Verdict,
)
from hpcverify.stats import find_percentile
from hpcverify.testing import CPU, INVENTORY, judge_by, judge_items, make_context
from hpcverify_checks import allreduce
from hpcverify_checks.allreduce import CHECK
from hpcverify_checks.node.parts import has_optional_links
from hpcverify_checks.ranks.collective import (
    CollectiveBenchmark,
    CollectiveJob,
    StepTimes,
    all_reduce,
)
from hpcverify_checks.ranks.operations import ALL_REDUCE
from hpcverify_checks.ranks.peers import start_peers
from hpcverify_checks.ranks.process_group import join_group
from hpcverify_checks.ranks.rendezvous import RankGroup
from hpcverify_checks.ranks.sizes import format_size
from hpcverify_checks.ranks.step_data import StepMismatch, Words
from tests.checks.collectives.every_rank import put_under_every_rank
from tests.checks.collectives.faulty.sitecustomize import BAD_RANK, FOLDER
from tests.checks.links import BY_KEY, inventory, node
from tests.waiting import wait_until

KIB, MIB, GIB = 2**10, 2**20, 2**30
THIS_CPU = torch.device("cpu")
QUICK = allreduce.AllreduceParams(sizes=(KIB, MIB), seconds=0.2)


def children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text().split()]


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    before = children(os.getpid())
    yield
    assert children(os.getpid()) == before


def found_by(
    tmp_path: Path,
    reduce: Callable[[Tensor], object],
    params: allreduce.AllreduceParams = QUICK,
) -> list[CheckItem]:
    """Measure with *reduce* in the place of an all-reduce."""

    def begin(send: Tensor, receive: Tensor) -> list[Any]:
        assert send.data_ptr() == receive.data_ptr()
        reduce(receive)
        return []

    operation = replace(ALL_REDUCE, begin=begin)
    return list(allreduce.measure(make_context(tmp_path), params, operation))


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> list[CheckItem]:
    """Reduce once on this machine, and see what lies about afterwards."""
    folder = tmp_path_factory.mktemp("healthy")
    found = found_by(folder, all_reduce)
    assert not list((folder / "scratch").iterdir())
    assert {path.name for path in folder.iterdir()} == {"scratch", "shared"}
    return found


@pytest.mark.system
def test_healthy_sums_pass_and_every_number_has_its_unit(healthy: list[CheckItem]) -> None:
    found = healthy
    numbers = [f for f in found if isinstance(f, Measurement)]
    assert not [f for f in found if isinstance(f, Finding)]
    assert {m.part_id for m in numbers} == {"node"}
    assert {m.name for m in numbers} >= {"time_p50.1KiB", "time_p99.1MiB"}
    for number in numbers:
        metric = allreduce.CHECK.find_metric(number.name)
        assert metric is not None
        assert metric.unit == number.unit
        assert number.value


@pytest.mark.system
def test_coverage_counts_the_sums_that_were_verified(healthy: list[CheckItem]) -> None:
    texts = [f.text for f in healthy if isinstance(f, Coverage)]
    assert any("2 ranks, gloo" in t and "1KiB, 1MiB" in t for t in texts)


def compare_ranks(found: Iterable[CheckItem]) -> list[Finding]:
    """List what the check finds once all ranks of the CPU are compared."""
    items = [item for item in found if isinstance(item, Measurement | Finding)]
    return [f for f in allreduce.reconcile(items, INVENTORY) if isinstance(f, Finding)]


@pytest.mark.system
@pytest.mark.parametrize(("call", "wrong"), [(7, 1), (8, 1), (8, float("nan"))])
def test_one_wrong_element_in_one_step_fails(tmp_path: Path, call: int, wrong: float) -> None:
    calls = 0

    def faulty(tensor: Tensor) -> None:
        nonlocal calls
        calls += 1
        all_reduce(tensor)
        if calls == call:
            tensor[100] += wrong

    findings = compare_ranks(found_by(tmp_path, faulty))
    assert [f.evidence["index"] for f in findings] == ["100"]
    assert findings[0].evidence["wrong_elements"] == "1"
    assert findings[0].evidence["size"] == "1KiB"
    judgement = judge_by(findings, [], allreduce.CHECK.finding_rules)
    assert judgement.verdict is Verdict.FAIL


@pytest.mark.system
def test_a_share_that_is_missing_is_told_by_the_sum(tmp_path: Path) -> None:
    def loses_rank_one(tensor: Tensor) -> None:
        own = tensor.clone()
        all_reduce(tensor)
        tensor[:5] = own[:5]

    findings = compare_ranks(found_by(tmp_path, loses_rank_one))
    assert findings[0].text.endswith("it is the share of rank 0")
    assert findings[0].evidence["wrong_elements"] == "5"


HINTS = {
    "stale": "it is the sum of step 0",
    "stale_peer": "it is the share of rank 1",  # old words, read as floats, are too small to add
    "lacks_own": "it is the share of rank 0",
    "own": "it is the share of rank 1",
    "has_own_twice": "the share of rank 1 was counted twice",
    "low_bit": "",
    "low_byte": "",
    "flip": "",
    "displaced": "",
    "swapped": "",
    "far": "",
}
"""What the check says of faults under a rank, each at a size of its own."""


@pytest.mark.system
@pytest.mark.parametrize("ranks", [2, 3])
def test_whatever_one_rank_gets_wrong_fails_and_names_that_rank_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranks: int
) -> None:
    by_size = {12 * KIB * (place + 1): fault for place, fault in enumerate(HINTS)}
    monkeypatch.setenv("PYTHONPATH", str(FOLDER))
    monkeypatch.setenv("FAULTS", json.dumps(by_size))
    params = allreduce.AllreduceParams(sizes=tuple(by_size), seconds=0.1, ranks=ranks)

    found = list(allreduce.measure(make_context(tmp_path), params))

    findings = compare_ranks(found)
    assert {f.evidence["rank"] for f in findings} == {str(BAD_RANK)}
    seen = {f.evidence["size"]: f for f in findings}
    for size, fault in by_size.items():
        finding = seen.pop(format_size(size))
        assert (finding.code, finding.part_id) == ("wrong_sum", "cpu")
        if ranks == 2:
            assert finding.evidence["hint"] == HINTS[fault]
    assert not seen
    assert judge_by(findings, [], CHECK.finding_rules).verdict is Verdict.FAIL


@pytest.mark.system
def test_bits_that_all_ranks_lose_are_found_on_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_under_every_rank(monkeypatch, "low_byte")
    params = allreduce.AllreduceParams(sizes=(12 * KIB,), seconds=0.1, ranks=2)

    found = list(allreduce.measure(make_context(tmp_path), params))

    findings = compare_ranks(found)
    assert {(f.code, f.evidence["rank"]) for f in findings} == {
        ("wrong_sum", "0"),
        ("wrong_sum", "1"),
    }
    assert judge_by(findings, [], CHECK.finding_rules).verdict is Verdict.FAIL


@pytest.mark.system
@pytest.mark.parametrize(
    ("fault", "hint"),
    [
        ("sends_nothing", "the share of rank 1 is missing"),
        ("sends_twice", "the share of rank 1 was counted twice"),
    ],
)
def test_a_share_that_all_ranks_miss_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str, hint: str
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(FOLDER))
    monkeypatch.setenv("FAULTS", json.dumps({12 * KIB: fault}))
    params = allreduce.AllreduceParams(sizes=(12 * KIB,), seconds=0.1, ranks=3)

    found = list(allreduce.measure(make_context(tmp_path), params))

    findings = compare_ranks(found)
    assert {f.evidence["rank"] for f in findings} == {"0", "1", "2"}
    assert {f.evidence["hint"] for f in findings} == {hint}


def test_a_peers_wrong_sum_names_the_peer() -> None:
    timed = times_of(MIB, StepMismatch(12, 5, 7, 18, step=3))
    [finding] = allreduce.report_wrong_sums([timed, times_of(KIB)], 1, "cpu")
    assert finding.text.startswith("rank 1 got a wrong sum of 1MiB: 12 elements")


def times_of(
    size: int, wrong: StepMismatch | None = None, wrong_share: StepMismatch | None = None
) -> StepTimes:
    return StepTimes("all_reduce", size, (1.0,), 6, wrong, wrong_share)


def wrong_sums(*steps: tuple[int, int], share: tuple[int, int] | None = None) -> list[Finding]:
    """Report wrong sums of GPUs, by (rank, step), and the wrong *share* of one of them."""
    bad = {rank: StepMismatch(1, 5, 43, 42, step=step) for rank, step in steps}
    own = {} if share is None else {share[0]: StepMismatch(1, 5, 9, 8, step=share[1])}
    return [
        finding
        for rank in sorted(bad.keys() | own.keys())
        for finding in allreduce.report_wrong_sums(
            [times_of(MIB, bad.get(rank), own.get(rank))], rank, f"GPU-{rank}"
        )
    ]


def blame(*found: Finding) -> tuple[set[tuple[str, str]], Result]:
    """Say who is accused, by code and part, and how a node of three GPUs is judged."""
    seen = Inventory(devices=gpus(3))
    items = [f for f in allreduce.reconcile(found, seen) if isinstance(f, Finding)]
    accused = {(f.code, f.part_id) for f in items if f.code != "sum_of_wrong"}
    return accused, judge_by(items, [], CHECK.finding_rules)


def test_a_gpu_that_gets_a_wrong_sum_alone_is_accused() -> None:
    accused, judgement = blame(*wrong_sums((1, 3)))
    assert accused == {("wrong_sum", "GPU-1")}
    assert judgement.verdict is Verdict.FAIL


def test_a_wrong_share_accuses_its_gpu_and_none_that_summed_it() -> None:
    accused, judgement = blame(*wrong_sums((0, 3), (1, 3), (2, 3), share=(1, 3)))
    assert accused == {("words_wrong", "GPU-1")}
    assert (judgement.verdict, judgement.remedy) == (Verdict.FAIL, Remedy.REPLACE)


def test_a_wrong_share_explains_no_sum_that_was_wrong_before() -> None:
    accused, _ = blame(*wrong_sums((2, 2), share=(1, 3)))
    assert accused == {("words_wrong", "GPU-1"), ("wrong_sum", "GPU-2")}


@pytest.mark.parametrize("ranks", [(0, 1, 2), (0, 2)])
def test_a_sum_that_several_got_wrong_fails_the_node_and_no_gpu(ranks: tuple[int, ...]) -> None:
    accused, judgement = blame(*wrong_sums(*((rank, 3) for rank in ranks)))
    assert accused == {("wrong_sums", "node")}
    assert (judgement.verdict, judgement.remedy) == (Verdict.FAIL, Remedy.INSPECT)


def test_what_a_rank_finds_by_itself_fails_no_gpu_before_all_are_compared() -> None:
    """The comparison may not come to its end, and every healthy GPU sees the wrong sum."""
    found = wrong_sums((0, 3), (1, 3), (2, 3))
    assert judge_by(found, [], CHECK.finding_rules).verdict is Verdict.PASS


def test_who_gets_wrong_sums_first_is_accused_and_not_who_got_them_later() -> None:
    accused, _ = blame(*wrong_sums((0, 7), (1, 3)))
    assert accused == {("wrong_sum", "GPU-1")}


@pytest.mark.parametrize("table", ["made", "known"])
@pytest.mark.parametrize("step", [2, 3])
@pytest.mark.parametrize("place", [0, -1])
def test_a_share_is_compared_with_what_it_was_not_made_of(
    tmp_path: Path, place: int, step: int, table: str
) -> None:
    """A comparison with the same table would not show that one of them has changed."""
    job = CollectiveJob(
        str(tmp_path), 1, "gloo", 30.0, ("all_reduce",), (KIB,), 1.0, 3, compare_shares=True
    )
    made, known = (Words.make(job.seed, KIB // 4, THIS_CPU) for _ in range(2))
    benchmark = CollectiveBenchmark(job, 0, THIS_CPU, ALL_REDUCE, KIB, made, known)
    with join_group(job, 0, THIS_CPU):
        before = benchmark.run_steps(step, 1, benchmark.allocate())
        getattr(benchmark, table).a[place] ^= 1
        after = benchmark.run_steps(step, 1, benchmark.allocate())

    assert before.wrong_share is None
    assert after.wrong_share is not None
    share = after.wrong_share
    assert (share.step, share.count, share.index) == (step, 1, place % (KIB // 4))
    assert (share.found == share.expected) == (table == "known")


@pytest.mark.system
def test_a_peer_that_dies_is_an_error_that_names_it(tmp_path: Path) -> None:
    def murderous(tensor: Tensor) -> None:
        for child in children(os.getpid()):
            os.kill(child, signal.SIGKILL)
        all_reduce(tensor)

    with pytest.raises(Unable, match="rank 1 died with status -9") as caught:
        found_by(tmp_path, murderous)
    assert caught.value.cause is Cause.CRASHED


@pytest.mark.system
def test_a_peer_that_stops_is_an_error_within_its_time(tmp_path: Path) -> None:
    def stops_the_other(tensor: Tensor) -> None:
        for child in children(os.getpid()):
            os.kill(child, signal.SIGSTOP)
        all_reduce(tensor)

    params = allreduce.AllreduceParams(sizes=(KIB,), timeout_seconds=5.0)
    with pytest.raises(Unable, match="did not start or answer") as caught:
        found_by(tmp_path, stops_the_other, params)
    assert caught.value.cause is Cause.TIMEOUT


@pytest.mark.system
def test_a_rank_may_load_torch_for_longer_than_it_may_be_silent(tmp_path: Path) -> None:
    impatient = RankGroup(str(tmp_path), 2, "gloo", 1e-3)
    with start_peers(impatient, "hpcverify_checks.ranks.collective") as started:
        assert [peer.rank for peer in started] == [1]
        assert (tmp_path / "ready1").exists()


def test_a_peer_that_never_comes_is_a_timeout(tmp_path: Path) -> None:
    job = RankGroup(str(tmp_path), 2, "gloo", 1.0)
    with pytest.raises(Unable, match="rank 1 was lost: it did not start") as caught:
        join_group(job, 0, torch.device("cpu")).__enter__()
    assert caught.value.cause is Cause.TIMEOUT


@pytest.mark.system
def test_a_group_that_was_never_made_spoils_no_later_one(tmp_path: Path) -> None:
    job = RankGroup(str(tmp_path), 2, "gloo", 1.0)
    with pytest.raises(Unable):
        join_group(job, 0, torch.device("cpu")).__enter__()
    params = allreduce.AllreduceParams(sizes=(KIB,), seconds=0.1)
    later = tmp_path / "later"
    later.mkdir()
    found = list(allreduce.measure(make_context(later), params))
    assert any(isinstance(f, Measurement) for f in found)


@pytest.mark.system
def test_a_peer_dies_with_its_parent(tmp_path: Path) -> None:
    program = (
        "from pathlib import Path; from hpcverify.testing import make_context;"
        "from hpcverify_checks import allreduce;"
        "params = allreduce.AllreduceParams(sizes=(1024,), seconds=60.0);"
        f"list(allreduce.measure(make_context(Path({str(tmp_path)!r})), params))"
    )
    parent = subprocess.Popen([sys.executable, "-c", program])
    wait_until((tmp_path / "shared/ready1").exists)
    orphans = children(parent.pid)
    parent.kill()
    parent.wait()
    assert orphans
    wait_until(lambda: not any(Path(f"/proc/{pid}/exe").exists() for pid in orphans))


def test_bus_bandwidth_is_that_of_nccl_tests() -> None:
    job = CollectiveJob("", 8, "nccl", 1.0, ("all_reduce",), (2**30,), 1.0)
    timed = StepTimes("all_reduce", 2**30, (0.01, 0.004, 0.004), 8)
    found = list(allreduce.report_times(job, [timed], "NCCL 2.27"))
    [busbw] = [m for m in found if isinstance(m, Measurement) and "busbw" in m.name]
    assert busbw.name == "busbw.1GiB"
    assert busbw.value == pytest.approx(2**30 / 0.004 / 1e9 * 2 * 7 / 8)


HEALTHY = {
    ("a100-sxm4-40gb", 8): 233.0,
    ("a100-sxm4-80gb", 8): 233.0,
    ("h100-sxm5-80gb", 8): 475.0,
    ("h200-sxm", 8): 473.1,
    ("b200-sxm", 8): 820.0,
    ("b300-sxm", 8): 820.0,
    ("v100-sxm2-16gb", 8): 115.0,
    ("v100-sxm2-32gb", 8): 115.0,
    ("a100-sxm4-40gb", 4): 230.0,
    ("a100-sxm4-80gb", 4): 230.0,
    ("h100-sxm5-80gb", 4): 360.0,
    ("h200-sxm", 4): 363.0,
    ("b200-sxm", 4): 660.0,
    ("b300-sxm", 4): 660.0,
    ("gb200", 4): 673.1,
    ("gb300", 4): 673.1,
    ("v100-sxm2-16gb", 4): 115.0,
    ("v100-sxm2-32gb", 4): 115.0,
}
"""Bus bandwidth in GB/s that healthy nodes reach with messages of 4 GiB, by part and GPUs."""
WITH_NVLS = ("h100-sxm5-80gb", "h200-sxm", "b200-sxm", "b300-sxm")


def judge_bandwidth(
    tmp_path: Path, key: str, count: int, rate: float, size: int = 4 * GIB
) -> Result:
    """Judge a node of so many GPUs whose largest message reaches *rate* GB/s."""
    return judge_items(
        CHECK, report_rate(tmp_path, key, count, rate, size), inventory(BY_KEY[key], count)
    )


def report_rate(
    tmp_path: Path, key: str, count: int, rate: float, size: int = 4 * GIB
) -> list[CheckItem]:
    ctx = node(tmp_path, BY_KEY[key], count)
    ctx = msgspec.structs.replace(ctx, peers=ctx.inventory.devices[1:])
    bus = 2 * (count - 1) / count
    timed = StepTimes("all_reduce", size, (size * bus / rate / 1e9,), 6)
    return list(allreduce.report_bus_bandwidth(ctx, [timed]))


@pytest.mark.parametrize(("key", "count"), HEALTHY)
def test_a_healthy_node_of_every_part_reaches_its_bus_bandwidth(
    tmp_path: Path, key: str, count: int
) -> None:
    rate = HEALTHY[key, count]
    for share in (1.0, 0.96):  # the latter at 1 GiB
        assert judge_bandwidth(tmp_path, key, count, share * rate, GIB).reason == ""


@pytest.mark.parametrize(("key", "count"), HEALTHY)
def test_links_at_half_their_rate_do_not_pass_on_a_new_node(
    tmp_path: Path, key: str, count: int
) -> None:
    judgement = judge_bandwidth(tmp_path, key, count, HEALTHY[key, count] / 2)
    switched = count == 8 and not key.startswith("v100")
    assert judgement.verdict is (Verdict.FAIL if switched else Verdict.WARN)
    assert "data sheet" in judgement.reason


@pytest.mark.parametrize("key", WITH_NVLS)
def test_a_node_that_reduces_by_rings_where_its_switches_could_warns(
    tmp_path: Path, key: str
) -> None:
    ring = {"h100-sxm5-80gb": 370.0, "h200-sxm": 367.6}.get(key, 680.0)
    if key != "b300-sxm":  # nobody has told how much it reaches, only how much it should
        assert judge_bandwidth(tmp_path, key, 8, ring).verdict is Verdict.WARN
    assert judge_bandwidth(tmp_path, key, 6, ring).reason == ""  # NCCL may, with six


@pytest.mark.parametrize("key", [k for k, sheet in BY_KEY.items() if has_optional_links(sheet)])
def test_a_part_that_nvlink_does_not_join_has_no_floor_and_says_so(
    tmp_path: Path, key: str
) -> None:
    [told] = report_rate(tmp_path, key, 4, 20.0)
    assert isinstance(told, Coverage)
    assert "not held against a data sheet: no NVLink joins all" in told.text


def test_small_messages_are_not_held_against_the_data_sheet(tmp_path: Path) -> None:
    [told] = report_rate(tmp_path, "h100-sxm5-80gb", 8, 20.0, 256 * MIB)
    assert isinstance(told, Coverage)
    assert "no message of 1GiB or more" in told.text


def test_gpus_of_two_kinds_have_no_common_floor(tmp_path: Path) -> None:
    mixed = [inventory(BY_KEY[key], 8) for key in ("h100-sxm5-80gb", "a100-sxm4-80gb")]
    parts = (*mixed[0].parts[:4], *mixed[1].parts[4:])
    whole = Inventory(parts=parts, devices=mixed[0].devices)
    ctx = make_context(tmp_path, inventory=whole, peers=whole.devices[1:])
    assert allreduce.choose_reduction(ctx) == ("", "the GPUs differ")


def gpus(count: int) -> tuple[Device, ...]:
    return tuple(Device("cuda", f"GPU-{i}", f"GPU {i}") for i in range(count))


def test_a_single_gpu_has_nothing_to_reduce_with(tmp_path: Path) -> None:
    [gpu] = gpus(1)
    this = make_context(tmp_path, device=gpu, peers=(gpu,))
    with pytest.raises(Skip, match="one GPU") as caught:
        list(allreduce.measure(this, QUICK))
    assert caught.value.cause is Cause.NOT_APPLICABLE


def test_the_cpu_leaves_it_to_several_gpus(tmp_path: Path) -> None:
    inventory = Inventory(devices=(CPU, *gpus(2)))
    with pytest.raises(Skip, match="GPUs of this node"):
        list(allreduce.measure(make_context(tmp_path, inventory=inventory), QUICK))


def test_a_percentile_is_a_time_that_was_measured() -> None:
    times = [float(t) for t in range(100, 0, -1)]
    assert [find_percentile(times, share) for share in (0.5, 0.95, 0.99)] == [50, 95, 99]
    assert find_percentile([7.0], 0.99) == 7.0


@pytest.mark.parametrize(
    ("size", "text"), [(4, "4B"), (1536, "1536B"), (KIB, "1KiB"), (64 * MIB, "64MiB")]
)
def test_sizes_are_printed_as_in_nccl_tests(size: int, text: str) -> None:
    assert format_size(size) == text


def test_one_rank_is_no_group() -> None:
    with pytest.raises(msgspec.ValidationError, match=r"`int` >= 2 - at `\$.ranks`"):
        msgspec.convert({"ranks": 1}, allreduce.AllreduceParams)
