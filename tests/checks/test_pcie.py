"""The PCIe link of each GPU: width, generation under load, errors at both ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from hpcverify.check import Context, Skip, Watch
from hpcverify.limits.specs import Spec
from hpcverify.model import (
    CarryOver,
    CheckItem,
    Coverage,
    Finding,
    Measurement,
    Remedy,
    Result,
    Verdict,
)
from hpcverify.telemetry.gpus import GpuAnswers, PcieLink
from hpcverify.testing import find_value, judge_items
from hpcverify_checks import pcie
from hpcverify_checks.pcie import CHECK, PcieParams
from tests.checks.links import (
    BY_KEY,
    accused,
    address,
    clock,
    ids,
    marks,
    node,
    on_lab,
    passes,
    series,
    watch,
)
from tests.limits.physics import read_number
from tests.nvml_lab.nvmllab import HERE, Lab
from tests.telemetry.trees import grow, link

SCENARIOS = HERE / "scenarios"
LINK = PcieLink(
    address="",
    generation=1,
    width=16,
    max_generation=5,
    gpu_max_generation=5,
    max_width=16,
    counters={"replays": 0, "fatal": 0, "non_fatal": 0, "correctable": 0},
)


ALLOWED = 1843
"""Bit errors an hour on 16 lanes of generation 5: 32e9 * 16 * 3600 / 1e12."""


def links(count: int = 8, **odd: Any) -> GpuAnswers[PcieLink]:
    """Make healthy links but for GPU 3, of which *odd* things are reported."""
    answers = {w: with_(address=address(i)) for i, w in enumerate(ids(count))}
    if odd:
        answers["GPU-3"] = replace(answers["GPU-3"], **odd)
    return GpuAnswers(answers=answers)


def with_(**changes: Any) -> PcieLink:
    return replace(LINK, **changes)


def read(reply: GpuAnswers[PcieLink], ctx: Context, root: Path) -> list[CheckItem]:
    return list(pcie.report_links(reply, ctx, root))


def later(
    before: GpuAnswers[PcieLink], after: GpuAnswers[PcieLink], tmp_path: Path, hours: float = 1
) -> list[CheckItem]:
    first = read(before, node(tmp_path), clock(tmp_path / "root", 1000))
    ctx = node(tmp_path, carry_overs=marks(first))
    return read(after, ctx, clock(tmp_path / "root", 1000 + 3600 * hours))


def count_an_hour(found: list[CheckItem]) -> float:
    """Count the replays of GPU 3 an hour."""
    return (find_value(found, "replays.rate", "GPU-3") or 0.0) * ALLOWED


def observed(seen: Watch, ctx: Context) -> list[CheckItem]:
    return list(pcie.observe(seen, ctx, PcieParams()))


def run_of(*generations: float, busy: float = 1.0, part_id: str = "GPU-3") -> Watch:
    return watch(
        series("pcie.generation", part_id, generations),
        series("utilization", part_id, [busy] * len(generations)),
    )


def verdict(found: list[CheckItem], ctx: Context) -> Result:
    return judge_items(CHECK, found, ctx.inventory)


@pytest.mark.parametrize("sheet", BY_KEY.values(), ids=BY_KEY)
@pytest.mark.parametrize("count", [1, 2, 8])
def test_idle_gpus_of_every_part_pass_run_after_run(
    tmp_path: Path, sheet: Spec, count: int
) -> None:
    root, kept = clock(tmp_path / "root", 500), tuple[CarryOver, ...]()
    for _ in range(3):
        ctx = node(tmp_path, sheet, count, carry_overs=kept)
        found = read(links(count), ctx, root)
        assert passes(verdict(found, ctx))
        kept = marks(found)


@pytest.mark.parametrize("sheet", BY_KEY.values(), ids=BY_KEY)
def test_loaded_gpus_of_every_part_pass(tmp_path: Path, sheet: Spec) -> None:
    ctx, best = node(tmp_path, sheet), int(read_number(sheet, "pcie_gen") or 5)
    tracks = [
        track
        for part_id in ids(8)
        for track in (
            series("pcie.generation", part_id, [1, 1, *[best] * 20, 1, 1]),
            series("utilization", part_id, [0, 0.9, *[1] * 20, 1, 0]),
            series("pcie.width", part_id, [16] * 24),
            series("pcie.replays", part_id, [7, 7, *[8] * 22]),
            series("pcie.recoveries", part_id, range(24)),
        )
    ]
    found = observed(watch(*tracks), ctx)
    assert passes(verdict(found, ctx))
    assert find_value(found, "generation", "GPU-0") == best


def test_a_link_that_lost_lanes_fails_on_its_gpu(tmp_path: Path) -> None:
    ctx = node(tmp_path)
    judgement = verdict(read(links(width=8), ctx, tmp_path), ctx)
    assert (judgement.verdict, judgement.remedy) == (Verdict.FAIL, Remedy.INSPECT)
    assert "GPU 3: width.missing 8 > 0" in judgement.reason
    assert accused(judgement, ctx) == ["GPU 3"]


# AWS g6e.2xlarge and g4dn.xlarge, healthy: `nvidia-smi -q` has link widths "Max : 16x" and
# "Current : 8x", and no host (595.91; NVIDIA/k8s-test-infra).
@pytest.mark.parametrize("key", ["l40s", "a10", "v100-sxm2-16gb"])
def test_lanes_that_no_gpu_of_the_node_ever_had_are_warned_of_once(
    tmp_path: Path, key: str
) -> None:
    ctx = node(tmp_path, BY_KEY[key], 1)
    reply = GpuAnswers(answers={"GPU-0": with_(address=address(0), width=8)})
    found = read(reply, ctx, tmp_path)
    judgement = verdict(found, ctx)
    assert (judgement.verdict, judgement.remedy) == (Verdict.WARN, Remedy.INSPECT)
    assert "width.unused 8" in judgement.reason
    again = node(tmp_path, BY_KEY[key], 1, carry_overs=marks(found))
    assert passes(verdict(read(reply, again, tmp_path), again))


@pytest.mark.parametrize("count", [1, 2, 8])
def test_lanes_that_a_gpu_had_in_an_earlier_run_are_missed_until_accepted(
    tmp_path: Path, count: int
) -> None:
    narrow = {w: with_(address=address(i), width=8) for i, w in enumerate(ids(count))}
    kept = marks(read(links(count), node(tmp_path, count=count), tmp_path))
    for _ in range(2):
        ctx = node(tmp_path, count=count, carry_overs=kept)
        found = read(GpuAnswers(answers=narrow), ctx, tmp_path)
        judgement = verdict(found, ctx)
        assert judgement.verdict is Verdict.FAIL
        assert len(accused(judgement, ctx)) == count
        kept = marks(found)
    accepting = node(tmp_path, count=count, carry_overs=kept, accepts_parts=True)
    kept = marks(read(GpuAnswers(answers=narrow), accepting, tmp_path))
    ctx = node(tmp_path, count=count, carry_overs=kept)
    assert passes(verdict(read(GpuAnswers(answers=narrow), ctx, tmp_path), ctx))


@pytest.mark.parametrize(
    ("count", "narrow", "verdict_"),
    [(2, 1, Verdict.WARN), (3, 1, Verdict.FAIL), (8, 3, Verdict.FAIL), (8, 4, Verdict.WARN)],
)
def test_gpus_with_fewer_lanes_than_most_of_their_model_fail(
    tmp_path: Path, count: int, narrow: int, verdict_: Verdict
) -> None:
    """Warn of one of two, as in a healthy workstation (RTX 4060 Ti in thamada/nvidia-smi)."""
    ctx = node(tmp_path, BY_KEY["l40s"], count)
    answers = {
        w: with_(address=address(i), width=8 if i < narrow else 16)
        for i, w in enumerate(ids(count))
    }
    judgement = verdict(read(GpuAnswers(answers=answers), ctx, tmp_path), ctx)
    assert judgement.verdict is verdict_
    assert accused(judgement, ctx) == [f"GPU {i}" for i in range(narrow)]


def test_gpus_of_another_model_show_nothing_of_a_slot(tmp_path: Path) -> None:
    ctx = node(tmp_path, BY_KEY["l40s"], 1)
    other = replace(
        ctx.inventory.parts[0], id="GPU-1", facts={**ctx.inventory.parts[0].facts, "name": "T400"}
    )
    ctx = replace(ctx, inventory=replace(ctx.inventory, parts=(*ctx.inventory.parts, other)))
    answers = {"GPU-0": with_(address=address(0), width=8), "GPU-1": with_(address=address(1))}
    judgement = verdict(read(GpuAnswers(answers=answers), ctx, tmp_path), ctx)
    assert judgement.verdict is Verdict.WARN


def test_what_all_gpus_lack_alike_is_warned_of(tmp_path: Path) -> None:
    ctx = node(tmp_path, BY_KEY["l4"], 2)
    reply = GpuAnswers(answers=dict.fromkeys(ids(2), with_(width=8)))
    judgement = verdict(read(reply, ctx, tmp_path), ctx)
    assert (judgement.verdict, judgement.remedy) == (Verdict.WARN, Remedy.INSPECT)
    assert judgement.reason.count("width.unused 8") == 2


def test_what_the_slot_takes_is_listed_and_passes(tmp_path: Path) -> None:
    ctx = node(tmp_path)
    found = read(links(max_generation=4, max_width=8, width=8), ctx, tmp_path)
    assert passes(verdict(found, ctx))
    texts = [f.text for f in found if isinstance(f, Finding)]
    assert texts == [
        "the slot supports PCIe generation 4, the GPU 5",
        "the slot supports PCIe width 8, the GPU 16",
    ]


def test_a_superchip_is_not_judged_by_lanes_that_it_does_not_use(tmp_path: Path) -> None:
    ctx = node(tmp_path, BY_KEY["gh200-96gb"], 1)
    reply = GpuAnswers(answers={"GPU-0": with_(width=1)})
    assert passes(verdict(read(reply, ctx, tmp_path), ctx))


def test_a_gpu_that_answers_nothing_is_not_observable(tmp_path: Path) -> None:
    with pytest.raises(Skip, match="no GPU reports"):
        read(GpuAnswers(), node(tmp_path), tmp_path)


def test_a_lost_gpu_fails_beside_the_answers_of_the_others(tmp_path: Path) -> None:
    ctx = node(tmp_path)
    lost = Finding("gpu_lost", "GPU-3", "GPU is lost")
    reply = replace(links(), findings=(lost,))
    judgement = verdict(read(reply, ctx, tmp_path), ctx)
    assert (judgement.verdict, judgement.remedy) == (Verdict.FAIL, Remedy.REBOOT)


@pytest.mark.parametrize(
    ("counters", "verdict_", "reason"),
    [
        ({"fatal": 1}, Verdict.FAIL, "fatal.delta 1 > 0"),
        ({"non_fatal": 2}, Verdict.WARN, "non_fatal.delta 2 > 0"),
        ({"non_fatal": 2, "unsupported": 2}, Verdict.PASS, ""),
        ({"replays": 2 * ALLOWED}, Verdict.WARN, "replays.rate 2x > 100 %"),
        ({"replays": ALLOWED}, Verdict.PASS, ""),
        ({"correctable": 3 * ALLOWED}, Verdict.WARN, "correctable.rate 3x > 100 %"),
        ({"recoveries": 5000}, Verdict.PASS, ""),
    ],
)
def test_each_error_counts_by_what_came_since_the_last_run(
    tmp_path: Path, counters: dict[str, int], verdict_: Verdict, reason: str
) -> None:
    found = later(links(), links(counters=counters), tmp_path)
    judgement = verdict(found, node(tmp_path))
    assert judgement.verdict is verdict_
    assert reason in judgement.reason


@pytest.mark.parametrize(
    ("generation", "width", "minute"),
    [(3, 16, 8), (4, 8, 8), (4, 16, 15), (5, 16, 30), (6, 16, 61)],
)
def test_a_faster_link_may_have_more_errors(
    tmp_path: Path, generation: int, width: int, minute: int
) -> None:
    """Allow what DCGM 4.6 does: on P5 nodes its old limit failed good links (DCGM issue 184)."""
    for many, expected in ((60 * minute, Verdict.PASS), (60 * (minute + 1), Verdict.WARN)):
        kind = {"max_generation": generation, "width": width, "max_width": width}
        before = GpuAnswers(answers={"GPU-3": with_(**kind)})
        after = GpuAnswers(answers={"GPU-3": with_(**kind, counters={"replays": many})})
        found = later(before, after, tmp_path)
        assert verdict(found, node(tmp_path)).verdict is expected
    facts = {"pcie_generation": str(generation), "pcie_width": str(width)}
    ctx = node(tmp_path)
    parts = tuple(replace(part, facts=part.facts | facts) for part in ctx.inventory.parts)
    ctx = replace(ctx, inventory=replace(ctx.inventory, parts=parts))
    for many, expected in ((15 * minute, Verdict.PASS), (15 * (minute + 1), Verdict.FAIL)):
        samples = series("pcie.replays", "GPU-3", [many * t // 900 for t in range(901)])
        assert verdict(observed(watch(samples), ctx), ctx).verdict is expected


def test_errors_of_before_the_last_run_are_not_new(tmp_path: Path) -> None:
    old = links(counters={"replays": 9000, "correctable": 9000, "non_fatal": 5})
    assert passes(verdict(later(old, old, tmp_path), node(tmp_path)))


def test_a_fatal_error_of_before_the_first_run_warns(tmp_path: Path) -> None:
    ctx = node(tmp_path)
    judgement = verdict(read(links(counters={"fatal": 1}), ctx, tmp_path), ctx)
    assert judgement.verdict is Verdict.WARN


def test_counters_of_a_driver_that_was_started_anew_count_from_zero(tmp_path: Path) -> None:
    before, after = links(counters={"replays": 9000}), links(counters={"replays": 500})
    found = later(before, after, tmp_path)
    assert count_an_hour(found) == pytest.approx(500, rel=1e-3)


def test_after_a_reboot_nothing_is_new(tmp_path: Path) -> None:
    first = read(links(), node(tmp_path), clock(tmp_path / "root", 9000))
    ctx = node(tmp_path, carry_overs=marks(first))
    root = clock(tmp_path / "root", 60, boot="boot-2")
    found = read(links(counters={"non_fatal": 3}), ctx, root)
    assert passes(verdict(found, ctx))


def test_a_mark_that_an_older_version_left_is_as_none(tmp_path: Path) -> None:
    ctx = node(tmp_path, carry_overs=(CarryOver("counters", "replays=3", "GPU-3"),))
    assert passes(verdict(read(links(), ctx, tmp_path), ctx))


def test_a_counter_that_was_not_read_for_once_is_not_new_afterwards(tmp_path: Path) -> None:
    old, unread = links(counters={"fatal": 2}), links(counters={"replays": 1})
    ctx = node(tmp_path, carry_overs=marks(later(old, unread, tmp_path)))
    found = read(old, ctx, tmp_path / "root")
    assert find_value(found, "fatal.delta", "GPU-3") == 0


def test_marks_are_few_and_small(tmp_path: Path) -> None:
    found = read(links(), node(tmp_path), clock(tmp_path / "root", 10))
    assert sorted(m.part_id for m in marks(found)) == sorted(2 * ids(8))
    assert max(len(m.value) for m in marks(found)) < 200


def plugged(root: Path, upstream: dict[int, str]) -> Path:
    """Put each GPU below the ports that *upstream* says."""
    for index, ports in upstream.items():
        target = f"sys/devices/pci0000:00/{ports}/{address(index)}"
        link(root, f"sys/bus/pci/devices/{address(index)}", target)
        for depth, port in enumerate(ports.split("/"), start=1):
            above = "/".join(ports.split("/")[:depth])
            name = f"sys/bus/pci/devices/{port}"
            if not (root / name).exists():
                link(root, name, f"sys/devices/pci0000:00/{above}")
    return root


def test_an_error_at_the_port_above_is_its_gpus(tmp_path: Path) -> None:
    root = plugged(tmp_path / "root", {3: "0000:00:01.0"})
    clock(root, 1000)
    port = "sys/devices/pci0000:00/0000:00:01.0"
    grow(root, {f"{port}/aer_dev_fatal": "DLP 0\nTOTAL_ERR_FATAL 0"})
    first = read(links(), node(tmp_path), root)
    grow(root, {f"{port}/aer_dev_fatal": "DLP 1\nTOTAL_ERR_FATAL 1"})
    ctx = node(tmp_path, carry_overs=marks(first))
    found = read(links(), ctx, root)
    judgement = verdict(found, ctx)
    assert judgement.verdict is Verdict.FAIL
    assert accused(judgement, ctx) == ["GPU 3"]
    (errors,) = (f for f in found if isinstance(f, Finding))
    assert errors.evidence == {"0000:00:01.0 fatal DLP": "1"}


def test_an_error_at_a_port_that_gpus_share_is_the_nodes(tmp_path: Path) -> None:
    shared = "0000:00:01.0"
    root = plugged(tmp_path / "root", {2: f"{shared}/0000:01:02.0", 3: f"{shared}/0000:01:03.0"})
    clock(root, 1000)
    grow(root, {f"sys/devices/pci0000:00/{shared}/aer_dev_fatal": "DLP 1"})
    judgement = verdict(read(links(), node(tmp_path), root), node(tmp_path))
    assert judgement.reason.startswith("node: fatal 1 > 0")
    assert accused(judgement, node(tmp_path)) == []


def test_a_port_stays_the_nodes_when_a_gpu_below_it_hangs(tmp_path: Path) -> None:
    shared = "0000:00:01.0"
    below = {2: f"{shared}/0000:01:02.0", 3: f"{shared}/0000:01:03.0"}
    root = plugged(tmp_path / "root", below)
    port = f"sys/devices/pci0000:00/{shared}"
    grow(clock(root, 1000), {f"{port}/aer_dev_fatal": "DLP 1"})
    first = read(links(), node(tmp_path), root)
    left = {w: k for w, k in links().answers.items() if w != "GPU-2"}
    ctx = node(tmp_path, carry_overs=marks(first))
    assert accused(verdict(read(GpuAnswers(answers=left), ctx, root), ctx), ctx) == []
    grow(root, {f"{port}/aer_dev_fatal": "DLP 2"})
    judgement = verdict(read(GpuAnswers(answers=left), ctx, root), ctx)
    assert judgement.reason.startswith("node: fatal.delta 1 > 0")


def test_a_counter_that_was_never_read_before_is_not_new(tmp_path: Path) -> None:
    before, after = links(counters={}), links(counters={"fatal": 0, "non_fatal": 9})
    found = later(before, after, tmp_path)
    assert passes(verdict(found, node(tmp_path)))
    ctx = node(tmp_path, carry_overs=marks(found))
    risen = links(counters={"fatal": 1, "non_fatal": 9})
    judgement = verdict(read(risen, ctx, clock(tmp_path / "root", 9000)), ctx)
    assert (judgement.verdict, accused(judgement, ctx)) == (Verdict.FAIL, ["GPU 3"])


def repeated(tmp_path: Path, name: str, each: int, runs: int, seconds: float) -> list[str]:
    """Measure often, while a counter grows by so much *each* time; give the verdicts"""
    given, kept = list[str](), tuple[CarryOver, ...]()
    for turn in range(runs):
        ctx = node(tmp_path, carry_overs=kept)
        root = clock(tmp_path / "root", 50_000 + seconds * turn)
        found = read(links(counters={name: 7 + each * turn}), ctx, root)
        given.append(verdict(found, ctx).verdict.value)
        kept = marks(found)
    return given


@pytest.mark.parametrize("name", ["replays", "correctable"])
def test_runs_that_come_often_add_up_to_a_rate(tmp_path: Path, name: str) -> None:
    given = repeated(tmp_path, name, ALLOWED - 50, 5, seconds=3)
    assert given == ["pass", "pass", "warn", "warn", "warn"]
    assert repeated(tmp_path, name, 5, 50, seconds=3) == ["pass"] * 50


@pytest.mark.parametrize(("each", "verdict_"), [(ALLOWED // 6 - 1, "pass"), (ALLOWED, "warn")])
def test_a_rate_is_the_same_however_often_runs_come(
    tmp_path: Path, each: int, verdict_: str
) -> None:
    given = repeated(tmp_path, "replays", each, 40, seconds=600)
    assert max(given, key=["pass", "warn", "fail"].index) == verdict_


def test_what_an_hour_held_is_forgotten_after_it(tmp_path: Path) -> None:
    found = later(links(), links(counters={"replays": 470}), tmp_path, hours=0.1)
    ctx = node(tmp_path, carry_overs=marks(found))
    found = read(links(counters={"replays": 480}), ctx, clock(tmp_path / "root", 5000))
    assert count_an_hour(found) == pytest.approx(9.89, abs=0.01)
    for moment, rate in ((5003, 300), (5006, 600)):
        ctx = node(tmp_path, carry_overs=marks(found))
        heard = links(counters={"replays": 480 + rate})
        found = read(heard, ctx, clock(tmp_path / "root", moment))
        assert count_an_hour(found) == pytest.approx(rate, rel=1e-3)


def test_looking_for_devices_is_no_error(tmp_path: Path) -> None:
    root = plugged(tmp_path / "root", {3: "0000:00:01.0"})
    port = "sys/devices/pci0000:00/0000:00:01.0"
    grow(root, {f"{port}/aer_dev_nonfatal": "UnsupReq 0"})
    grow(root, {f"{port}/aer_dev_correctable": "NonFatalErr 0"})
    first = read(links(), node(tmp_path), clock(root, 1000))
    grow(root, {f"{port}/aer_dev_nonfatal": "UnsupReq 7"})
    grow(root, {f"{port}/aer_dev_correctable": "NonFatalErr 9000"})
    ctx = node(tmp_path, carry_overs=marks(first))
    assert passes(verdict(read(links(), ctx, root), ctx))


@pytest.mark.parametrize(("before", "verdict_"), [(5, Verdict.FAIL), (4, Verdict.PASS)])
def test_a_link_that_is_slow_under_load_fails_if_it_was_faster_in_an_earlier_run(
    tmp_path: Path, before: int, verdict_: Verdict
) -> None:
    ctx = node(tmp_path, BY_KEY["h100-nvl-94gb"], 1)
    found = observed(run_of(*[before] * 9, part_id="GPU-0"), ctx)
    first = verdict(found, ctx)
    assert first.verdict is (Verdict.PASS if before == 5 else Verdict.WARN)
    ctx = node(tmp_path, BY_KEY["h100-nvl-94gb"], 1, carry_overs=marks(found))
    judgement = verdict(observed(run_of(1, *[4] * 10, 1, part_id="GPU-0"), ctx), ctx)
    assert judgement.verdict is verdict_


def test_a_link_that_slows_down_within_a_run_fails(tmp_path: Path) -> None:
    ctx = node(tmp_path)
    judgement = verdict(observed(run_of(*[5] * 5, *[4] * 5), ctx), ctx)
    assert (judgement.verdict, accused(judgement, ctx)) == (Verdict.FAIL, ["GPU 3"])


def test_a_slow_link_among_fast_ones_names_its_gpu(tmp_path: Path) -> None:
    ctx = node(tmp_path)
    tracks = [run_of(*[5] * 9, part_id=w).samples for w in ids(8) if w != "GPU-3"]
    seen = watch(*map(list, tracks), list(run_of(*[3] * 9).samples))
    judgement = verdict(observed(seen, ctx), ctx)
    assert "GPU 3: generation.missing 2 > 0" in judgement.reason
    assert accused(judgement, ctx) == ["GPU 3"]


def test_generations_that_all_gpus_lack_are_warned_of(tmp_path: Path) -> None:
    ctx = node(tmp_path)
    tracks = [list(run_of(*[4] * 9, part_id=w).samples) for w in ids(8)]
    judgement = verdict(observed(watch(*tracks), ctx), ctx)
    assert judgement.verdict is Verdict.WARN
    assert "generation.unused 1" in judgement.reason


def test_a_single_sample_of_a_change_is_no_slow_link(tmp_path: Path) -> None:
    ctx = node(tmp_path)
    assert passes(verdict(observed(run_of(5, 5, 3, 5, 5), ctx), ctx))


def test_without_load_the_generation_is_not_judged_and_that_is_said(tmp_path: Path) -> None:
    ctx = node(tmp_path)
    found = observed(run_of(1, 1, 1, 1, busy=0.1), ctx)
    assert not any(isinstance(f, Measurement) for f in found)
    assert [f.text for f in found if isinstance(f, Coverage)] == [
        "generation not judged: never under load in this run"
    ]


def test_load_counts_between_two_moments_of_use() -> None:
    samples = series("pcie.generation", "GPU-3", range(6))
    usage = [replace(s, t=s.t - 0.5) for s in series("utilization", "GPU-3", [0, 1, 1, 1, 0, 0])]
    assert [s.t for s in pcie.select_loaded(samples, usage, 0.5)] == [1, 2]


def test_lanes_that_are_lost_under_load_fail(tmp_path: Path) -> None:
    ctx = node(tmp_path)
    found = observed(watch(series("pcie.width", "GPU-3", [16, 16, 8, 8, 16])), ctx)
    judgement = verdict(found, ctx)
    assert "width.missing.run 8 > 0" in judgement.reason


@pytest.mark.parametrize(
    ("a_second", "verdict_"),
    [(0.001, Verdict.PASS), (0.5, Verdict.PASS), (0.6, Verdict.WARN), (5, Verdict.FAIL)],
)
def test_replays_under_load_count_by_their_worst_minutes(
    tmp_path: Path, a_second: float, verdict_: Verdict
) -> None:
    ctx = node(tmp_path)
    quiet = [7.0] * 3600
    burst = [7.0 + int(t * a_second) for t in range(120)]
    samples = series("pcie.replays", "GPU-3", [*quiet, *burst])
    judgement = verdict(observed(watch(samples), ctx), ctx)
    assert judgement.verdict is verdict_


def test_a_run_that_nobody_watched_has_nothing_to_judge(tmp_path: Path) -> None:
    ctx = node(tmp_path)
    assert passes(verdict(observed(watch(), ctx), ctx))


def test_a_lab_of_healthy_gpus_passes_at_rest_and_at_work(lab: Lab) -> None:
    kept = tuple[CarryOver, ...]()
    for name in ("at-rest", "healthy-8xh100"):
        lab.load(name) if name == "healthy-8xh100" else lab.write()
        ctx, found = on_lab(lab, "pcie", kept)
        assert passes(verdict(found, ctx))
        kept = marks(found)
    found = observed(lab.watch("healthy-8xh100", 90), ctx)
    assert passes(verdict(found, ctx))
    lowest = [f.value for f in found if isinstance(f, Measurement) and f.name == "generation"]
    assert lowest == [5] * 8


def test_a_lab_with_half_a_link_fails_now_and_under_load(lab: Lab) -> None:
    busy = "gpu.*.utilization.gpu = 100"
    lab.load("degraded-links", busy, "freeze_t = 0")
    ctx, before = on_lab(lab, "pcie")
    lab.load("degraded-links", busy, "freeze_t = 90")
    _, found = on_lab(lab, "pcie", marks(before))
    judgement = verdict(found, ctx)
    assert (judgement.verdict, accused(judgement, ctx)) == (Verdict.FAIL, ["GPU 1"])
    assert "width.missing 8 > 0" in judgement.reason
    story = (SCENARIOS / "degraded-links.txt").read_text()
    judgement = verdict(observed(lab.sampled([story, busy], range(91)), ctx), ctx)
    assert accused(judgement, ctx) == ["GPU 1"]
    for gripe in ("generation.missing 1", "width.missing.run 8", "replays.quarter"):
        assert gripe in judgement.reason


def test_a_lab_counts_what_is_new_on_each_gpu(lab: Lab) -> None:
    lab.write("gpu.5.pcie.fatal_errors = 2")
    _, before = on_lab(lab, "pcie")
    lab.write("gpu.5.pcie.fatal_errors = 2", "gpu.6.pcie.fatal_errors = 1")
    ctx, found = on_lab(lab, "pcie", marks(before))
    judgement = verdict(found, ctx)
    assert (judgement.verdict, accused(judgement, ctx)) == (Verdict.FAIL, ["GPU 6"])
