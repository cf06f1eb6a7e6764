"""NVLink: every link's state, speed and errors, and the fabric."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from msgspec.structs import replace

from hpcverify.check import Context, Skip
from hpcverify.limits.specs import Spec
from hpcverify.model import (
    CarryOver,
    Cause,
    CheckItem,
    Fact,
    Finding,
    Remedy,
    Result,
    Verdict,
)
from hpcverify.telemetry.gpus import GpuAnswers, Linkage, NvLink, NvlinkFabric
from hpcverify.testing import find_value, judge_items
from hpcverify_checks import nvlink
from hpcverify_checks.node.parts import LINKS_PER_BRIDGE
from hpcverify_checks.nvlink import CHECK, NvlinkParams
from tests.checks.links import (
    BY_KEY,
    H100,
    accused,
    clock,
    codes,
    ids,
    marks,
    node,
    on_lab,
    passes,
    series,
    watch,
)
from tests.nvml_lab.nvmllab import Lab

WELL = NvlinkFabric(state="completed", status="ok", trouble=(), summary="healthy")
OLD = {"replay": 0, "recovery": 0, "crc": 0}
NEW = {"receive": 0, "recovered": 0, "recovery_failed": 0, "effective": 0, "symbol": 0}
Answers = dict[str, Linkage]


def linkage(
    up: int = 18,
    of: int = 18,
    *,
    speed: float = 26.562,
    errors: Mapping[str, int] = OLD,
    fabric: NvlinkFabric | None = WELL,
) -> Linkage:
    """Make the links of a GPU, of which the first ones are *up*."""
    links = (
        NvLink(
            number=n,
            active=n < up,
            speed_gbs=speed if n < up else 0.0,
            errors=dict(errors) if n < up else {},
        )
        for n in range(of)
    )
    return Linkage(links=tuple(links), fabric=fabric)


def all_of(linked: Linkage | None = None, count: int = 8, **odd: Linkage) -> Answers:
    """Make GPUs alike, but for those that are *odd* (by g and their number)."""
    answers = dict.fromkeys(ids(count), linked or linkage())
    return answers | {f"GPU-{name.removeprefix('g')}": o for name, o in odd.items()}


def changed(number_: int, **changes: object) -> Linkage:
    whole = linkage()
    assert whole.links
    links = (replace(k, **changes) if k.number == number_ else k for k in whole.links)
    return replace(whole, links=tuple(links))


def read(
    answers: Answers, ctx: Context, root: Path, links: int | None = None, *trouble: Finding
) -> list[CheckItem]:
    reply = GpuAnswers(answers=answers, findings=trouble)
    return list(nvlink.report_linkage(reply, ctx, NvlinkParams(links=links), root))


def later(before: Answers, after: Answers, tmp_path: Path, sheet: Spec = H100) -> list[CheckItem]:
    """Measure twice, with an hour between."""
    count = len(before)
    first = read(before, node(tmp_path, sheet, count), clock(tmp_path / "root", 100))
    ctx = node(tmp_path, sheet, count, carry_overs=marks(first))
    return read(after, ctx, clock(tmp_path / "root", 3700))


def verdict(found: list[CheckItem], ctx: Context) -> Result:
    return judge_items(CHECK, found, ctx.inventory)


def healthy(sheet: Spec) -> Linkage:
    if not sheet.nvlink_links:
        return Linkage()
    gen5 = sheet.nvlink_link_gbs == 100
    speed = {25.0: 25.0, 14.0625: 14.062, 50.0: 53.125}[sheet.nvlink_link_gbs / 2]
    hopper = sheet.compute_capability >= "9"
    return linkage(
        sheet.nvlink_links,
        sheet.nvlink_links,
        speed=26.562 if hopper and not gen5 else speed,
        errors=NEW if gen5 else OLD,
        fabric=WELL if hopper and sheet.key not in LINKS_PER_BRIDGE else None,
    )


@pytest.mark.parametrize("sheet", BY_KEY.values(), ids=BY_KEY)
@pytest.mark.parametrize("count", [1, 2, 4, 8])
def test_healthy_gpus_of_every_part_pass_run_after_run(
    tmp_path: Path, sheet: Spec, count: int
) -> None:
    answers, kept = all_of(healthy(sheet), count), tuple[CarryOver, ...]()
    for hour in range(1, 4):
        ctx = node(tmp_path, sheet, count, carry_overs=kept)
        root = clock(tmp_path / "root", 3600 * hour)
        if not sheet.nvlink_links:
            with pytest.raises(Skip, match="no GPU of this node has NVLink"):
                read(answers, ctx, root)
            return
        found = read(answers, ctx, root)
        assert passes(verdict(found, ctx))
        kept = marks(found)


@pytest.mark.parametrize("key", LINKS_PER_BRIDGE)
def test_boards_without_a_bridge_are_well_beside_bridged_ones(tmp_path: Path, key: str) -> None:
    sheet = BY_KEY[key]
    whole = healthy(sheet)
    bare = linkage(0, sheet.nvlink_links, fabric=None)
    ctx = node(tmp_path, sheet)
    answers = all_of(bare, g0=whole, g1=whole)
    assert passes(verdict(read(answers, ctx, tmp_path), ctx))


@pytest.mark.parametrize("key", ["gh200-96gb", "h100-sxm5-80gb", "v100-sxm2-16gb"])
def test_a_gpu_alone_needs_no_link(tmp_path: Path, key: str) -> None:
    ctx = node(tmp_path, BY_KEY[key], 1)
    answers = all_of(linkage(0, fabric=None), 1)
    assert passes(verdict(read(answers, ctx, tmp_path), ctx))


def test_a_part_that_nobody_knows_is_held_against_its_siblings(tmp_path: Path) -> None:
    ctx = node(tmp_path, None)
    eight = linkage(8, speed=26.562)
    assert passes(verdict(read(all_of(eight), ctx, tmp_path), ctx))
    judgement = verdict(read(all_of(eight, g3=linkage(7)), ctx, tmp_path), ctx)
    assert judgement.verdict is Verdict.FAIL
    assert accused(judgement, ctx) == ["GPU 3"]


@pytest.mark.parametrize("count", [1, 2, 8])
def test_a_link_that_is_down_fails_and_is_named(tmp_path: Path, count: int) -> None:
    ctx = node(tmp_path, count=count)
    part_id = f"g{count - 1}"
    answers = all_of(count=count, **{part_id: changed(5, active=False, speed_gbs=0.0)})
    judgement = verdict(read(answers, ctx, tmp_path), ctx)
    assert (judgement.verdict, judgement.remedy) == (Verdict.FAIL, Remedy.INSPECT)
    assert judgement.reason.startswith(f"GPU {count - 1}: NVLink 5 down, 17 are up")
    assert accused(judgement, ctx) == [f"GPU {count - 1}"]


def test_a_gpu_with_no_link_among_others_fails(tmp_path: Path) -> None:
    ctx = node(tmp_path)
    judgement = verdict(read(all_of(g3=linkage(0)), ctx, tmp_path), ctx)
    assert (judgement.verdict, accused(judgement, ctx)) == (Verdict.FAIL, ["GPU 3"])


def test_a_switch_that_died_fails_although_all_gpus_are_alike(tmp_path: Path) -> None:
    found = later(all_of(), all_of(linkage(14)), tmp_path)
    judgement = verdict(found, node(tmp_path))
    assert judgement.verdict is Verdict.FAIL
    assert len(accused(judgement, node(tmp_path))) == 8


def test_a_board_that_is_wired_with_fewer_links_is_warned_of(tmp_path: Path) -> None:
    sheet = BY_KEY["v100-sxm2-16gb"]
    four = all_of(linkage(4, 6, speed=25.781, fabric=None), 4)
    ctx = node(tmp_path, sheet, 4)
    for found in (read(four, ctx, tmp_path), later(four, four, tmp_path, sheet)):
        judgement = verdict(found, ctx)
        assert (judgement.verdict, judgement.remedy) == (Verdict.WARN, Remedy.INSPECT)
        assert "4 of 6 NVLinks are up, as on all 4 GPUs of this model" in judgement.reason
    uneven = four | {"GPU-2": linkage(3, 6, speed=25.781, fabric=None)}
    assert verdict(read(uneven, ctx, tmp_path), ctx).verdict is Verdict.FAIL


@pytest.mark.parametrize("fabric", [WELL, None])
def test_a_gpu_that_shows_no_nvlink_among_others_fails(
    tmp_path: Path, fabric: NvlinkFabric | None
) -> None:
    ctx, bare = node(tmp_path), all_of(linkage(fabric=fabric), g3=Linkage())
    for found in (read(bare, ctx, tmp_path), later(all_of(linkage(fabric=fabric)), bare, tmp_path)):
        judgement = verdict(found, ctx)
        assert (judgement.verdict, accused(judgement, ctx)) == (Verdict.FAIL, ["GPU 3"])
        assert "0 are up" in judgement.reason


def test_a_gpu_alone_that_shows_none_of_the_links_it_had_fails(tmp_path: Path) -> None:
    found = later(all_of(count=1), all_of(Linkage(), 1), tmp_path)
    judgement = verdict(found, node(tmp_path, count=1))
    assert judgement.verdict is Verdict.FAIL
    assert "up in an earlier run" in judgement.reason


@pytest.mark.parametrize("key", ["h100-nvl-94gb", "a40"])
@pytest.mark.parametrize("links", [(), None])
def test_a_board_of_which_no_bridge_is_known_need_show_no_link(
    tmp_path: Path, key: str, links: tuple[NvLink, ...] | None
) -> None:
    ctx = node(tmp_path, BY_KEY[key])
    whole, bare = healthy(BY_KEY[key]), Linkage(links=links)
    assert passes(verdict(read(all_of(bare, g0=whole, g1=whole), ctx, tmp_path), ctx))
    with pytest.raises(Skip, match="no GPU of this node has NVLink"):
        read(all_of(bare), ctx, tmp_path)


@pytest.mark.parametrize("key", ["h100-sxm5-80gb", "gh200-96gb", "l40s"])
@pytest.mark.parametrize("links", [(), None])
def test_a_gpu_alone_need_show_no_link(
    tmp_path: Path, key: str, links: tuple[NvLink, ...] | None
) -> None:
    with pytest.raises(Skip, match="no GPU of this node has NVLink"):
        read(all_of(Linkage(links=links), 1), node(tmp_path, BY_KEY[key], 1), tmp_path)


def test_links_that_could_not_be_read_are_not_passed(tmp_path: Path) -> None:
    ctx, mute = node(tmp_path), Linkage(links=None, fabric=WELL)
    some, every = all_of(g3=mute), all_of(mute)
    for found, whose in (
        (read(some, ctx, tmp_path), ["GPU 3"]),
        (later(all_of(), some, tmp_path), ["GPU 3"]),
        (read(every, ctx, tmp_path), [f"GPU {i}" for i in range(8)]),
    ):
        judgement = verdict(found, ctx)
        assert (judgement.verdict, judgement.remedy, judgement.cause) == (
            Verdict.ERROR,
            Remedy.RERUN,
            Cause.UNMEASURED,
        )
        assert accused(judgement, ctx) == whose


def test_links_that_one_gpu_alone_had_and_that_cannot_be_read_are_missed(tmp_path: Path) -> None:
    found = later(all_of(count=1), all_of(Linkage(links=None, fabric=WELL), 1), tmp_path)
    assert codes(found) == {"nvlink_unread"}


def test_replays_of_runs_that_come_often_add_up(tmp_path: Path) -> None:
    kept, given = tuple[CarryOver, ...](), list[str]()
    for turn in range(6):
        ctx = node(tmp_path, carry_overs=kept)
        replays = {"replay": (25 if turn < 5 else 26) * turn}
        answers = all_of(g4=changed(11, errors=replays))
        found = read(answers, ctx, clock(tmp_path / "root", 50_000 + 3 * turn))
        given.append(verdict(found, ctx).verdict.value)
        kept = marks(found)
    assert given == ["pass"] * 3 + ["warn"] * 3


def test_links_that_nobody_set_up_are_no_fault_of_the_hardware(tmp_path: Path) -> None:
    ctx = node(tmp_path, BY_KEY["a100-sxm4-80gb"])
    off = all_of(linkage(0, 12, fabric=None))
    judgement = verdict(read(off, ctx, tmp_path), ctx)
    assert (judgement.verdict, judgement.cause, judgement.remedy) == (
        Verdict.ERROR,
        Cause.MISCONFIGURED,
        Remedy.FIX_CONFIGURATION,
    )
    assert "systemctl start nvidia-fabricmanager" in judgement.reason


@pytest.mark.parametrize(("up", "verdict_"), [(8, "warn"), (11, "fail"), (7, "fail")])
def test_links_of_a_bridge_go_together(tmp_path: Path, up: int, verdict_: str) -> None:
    sheet = BY_KEY["h100-nvl-94gb"]
    ctx = node(tmp_path, sheet, 2)
    answers = all_of(linkage(up, 12, fabric=None), 2)
    judgement = verdict(read(answers, ctx, tmp_path), ctx)
    assert judgement.verdict is Verdict(verdict_)
    assert judgement.remedy is Remedy.INSPECT


# H100 NVL: links that are down in half of the boots, Azure/azhpc-images issue 443.
@pytest.mark.parametrize("up", [0, 4])
def test_links_of_bridges_that_were_up_are_missed_until_that_is_accepted(
    tmp_path: Path, up: int
) -> None:
    sheet = BY_KEY["h100-nvl-94gb"]
    dead = all_of(linkage(up, 12, fabric=None), 2)
    found = later(all_of(healthy(sheet), 2), dead, tmp_path, sheet)
    for _ in range(2):
        ctx = node(tmp_path, sheet, 2, carry_overs=marks(found))
        judgement = verdict(found, ctx)
        assert judgement.verdict is Verdict.FAIL
        assert "up in an earlier run; if that is meant, run once with --accept-parts" in (
            judgement.reason
        )
        found = read(dead, ctx, tmp_path)
    accepting = node(tmp_path, sheet, 2, carry_overs=marks(found), accepts_parts=True)
    ctx = node(tmp_path, sheet, 2, carry_overs=marks(read(dead, accepting, tmp_path)))
    assert "nvlink_down" not in codes(read(dead, ctx, tmp_path))


def test_links_that_optional_bridges_never_had_are_a_fact(tmp_path: Path) -> None:
    sheet = BY_KEY["h100-nvl-94gb"]
    bare = all_of(linkage(0, 12, fabric=None), 2)
    found = later(bare, bare, tmp_path, sheet)
    assert passes(verdict(found, node(tmp_path, sheet, 2)))
    assert {f.value for f in found if isinstance(f, Fact) and f.name == "NVLinks up"} == {"0"}


def test_a_suite_can_say_how_many_links_are_right(tmp_path: Path) -> None:
    ctx = node(tmp_path, BY_KEY["v100-sxm2-16gb"], 4)
    four = all_of(linkage(4, 6, speed=25.781, fabric=None), 4)
    assert verdict(read(four, ctx, tmp_path), ctx).verdict is Verdict.WARN
    assert passes(verdict(read(four, ctx, tmp_path, 4), ctx))
    three = all_of(linkage(3, 6, speed=25.781, fabric=None), 4)
    judgement = verdict(read(three, ctx, tmp_path, 4), ctx)
    assert "the suite wants 4" in judgement.reason


@pytest.mark.parametrize("key", ["a100-sxm4-80gb", "h100-nvl-94gb"])
def test_a_suite_can_say_that_no_link_need_be_up(tmp_path: Path, key: str) -> None:
    off = all_of(linkage(0, 12, fabric=None))
    kept = marks(read(all_of(healthy(BY_KEY[key])), node(tmp_path, BY_KEY[key]), tmp_path))
    ctx = node(tmp_path, BY_KEY[key], carry_overs=kept)
    assert verdict(read(off, ctx, tmp_path), ctx).verdict is not Verdict.PASS
    found = read(off, ctx, tmp_path, 0)
    assert passes(verdict(found, ctx))
    assert {m.value for m in marks(found) if m.name == nvlink.LINKS_UP} == {""}


MIG = Linkage(mig=True)
"""NVIDIA Fabric Manager User Guide 2.3, "Interoperability With Multi-Instance GPUs": NVLinks of
an A100 are trained off in MIG mode, those of an H100 stay active, and neither is used."""


@pytest.mark.parametrize("key", ["a100-sxm4-80gb", "h100-sxm5-80gb"])
def test_gpus_in_mig_mode_and_their_siblings_at_switches_are_as_before(
    tmp_path: Path, key: str
) -> None:
    sheet = BY_KEY[key]
    whole = all_of(healthy(sheet))
    kept = marks(read(whole, node(tmp_path, sheet), tmp_path))
    cut_up = whole | dict.fromkeys(ids(4), MIG)
    for before in ((), kept):
        ctx = node(tmp_path, sheet, carry_overs=before)
        found = read(cut_up, ctx, tmp_path)
        assert passes(verdict(found, ctx))
        assert {m.part_id for m in marks(found)} == set(ids(8)[4:])
        down = cut_up | {"GPU-7": linkage(11, 12, speed=25.0, fabric=healthy(sheet).fabric)}
        assert accused(verdict(read(down, ctx, tmp_path), ctx), ctx) == ["GPU 7"]


@pytest.mark.parametrize(("key", "count"), [("a100-pcie-80gb", 2), ("a100-sxm4-80gb", 4)])
def test_links_to_a_gpu_in_mig_mode_are_not_missed(tmp_path: Path, key: str, count: int) -> None:
    sheet = BY_KEY[key]
    whole = all_of(healthy(sheet), count)
    kept = marks(read(whole, node(tmp_path, sheet, count), tmp_path))
    ctx = node(tmp_path, sheet, count, carry_overs=kept)
    beside = linkage(0 if count == 2 else 8, 12, speed=25.0, fabric=None)
    found = read(all_of(beside, count, g0=MIG), ctx, tmp_path)
    assert passes(verdict(found, ctx))
    later_on = node(tmp_path, sheet, count, carry_overs=marks(found))
    missed = read(all_of(beside, count), later_on, tmp_path)
    assert verdict(missed, later_on).verdict is not Verdict.PASS


def test_links_of_gpus_that_are_all_in_mig_mode_cannot_be_observed(tmp_path: Path) -> None:
    with pytest.raises(Skip, match="MIG mode") as skip:
        read(all_of(MIG), node(tmp_path, BY_KEY["a100-sxm4-80gb"]), tmp_path)
    assert skip.value.cause is Cause.NOT_OBSERVABLE


def test_links_of_unknown_state_are_not_taken_for_dead(tmp_path: Path) -> None:
    ctx = node(tmp_path)
    links = linkage().links or ()
    unknown = Linkage(links=tuple(replace(k, active=None) for k in links))
    assert passes(verdict(read(all_of(unknown), ctx, tmp_path), ctx))


def test_a_slow_link_fails_and_is_named(tmp_path: Path) -> None:
    ctx = node(tmp_path)
    answers = all_of(g3=changed(7, speed_gbs=13.281))
    judgement = verdict(read(answers, ctx, tmp_path), ctx)
    assert judgement.verdict is Verdict.FAIL
    assert "GPU 3: link.7.of_fastest 50 % < 95 % (links are trained" in judgement.reason
    assert accused(judgement, ctx) == ["GPU 3"]


def test_links_that_are_all_slow_fail_by_the_data_sheet(tmp_path: Path) -> None:
    ctx = node(tmp_path)
    slow = all_of(linkage(speed=13.281))
    judgement = verdict(read(slow, ctx, tmp_path), ctx)
    assert "speed.of_spec 53.12 % < 90 %" in judgement.reason


@pytest.mark.parametrize(
    ("errors", "verdict_", "reason"),
    [
        ({"recovery": 1}, "fail", "recovery.delta 1 > 0 (DCGM 4 diag"),
        ({"recovery_failed": 1}, "fail", "recovery_failed.delta 1 > 0"),
        ({"replay": 61}, "warn", "replay.rate 61 1/h > 60"),
        ({"replay": 59}, "pass", ""),
        ({"crc": 3600 * 100}, "pass", ""),
        ({"crc": 3600 * 101}, "fail", "crc.rate 101 1/s > 100"),
        ({"receive": 3600 * 101}, "warn", "receive.rate 101 1/s > 100"),
        ({"effective": 3600 * 101}, "warn", "effective.rate 101 1/s > 100"),
        ({"symbol": 10**12}, "pass", ""),
        ({"recovered": 3}, "warn", "NVLink 11 lost its connection and recovered 3 times"),
    ],
)
def test_each_kind_of_error_counts_as_it_matters(
    tmp_path: Path, errors: dict[str, int], verdict_: str, reason: str
) -> None:
    none = all_of(g4=changed(11, errors=dict.fromkeys(errors, 0)))
    found = later(none, all_of(g4=changed(11, errors=errors)), tmp_path)
    judgement = verdict(found, node(tmp_path))
    assert judgement.verdict.value == verdict_
    assert reason in judgement.reason
    assert accused(judgement, node(tmp_path)) == (["GPU 4"] if reason else [])


def test_the_worst_link_is_named_with_its_counters(tmp_path: Path) -> None:
    noisy = changed(11, errors={"replay": 7, "crc": 900, "recovery": 0})
    found = later(all_of(), all_of(g4=noisy), tmp_path)
    (finding,) = (f for f in found if isinstance(f, Finding))
    assert finding.text == ("NVLink 11 has 907 of 907 errors since the last run: replay 7, crc 900")
    assert finding.evidence == {"link": "11", "replay": "7", "crc": "900"}


def test_what_a_link_corrected_makes_no_worst_link(tmp_path: Path) -> None:
    corrected = {"symbol": 10**12, "recovered": 3}
    found = later(all_of(), all_of(g4=changed(11, errors=corrected)), tmp_path)
    assert "nvlink_errors" not in codes(found)


def test_errors_of_before_the_last_run_are_not_new(tmp_path: Path) -> None:
    old = all_of(g4=changed(11, errors={"replay": 9000, "crc": 10**9}))
    found = later(old, old, tmp_path)
    assert passes(verdict(found, node(tmp_path)))
    assert codes(found) == set()


def test_counters_that_were_not_read_for_once_are_not_new_afterwards(tmp_path: Path) -> None:
    old = all_of(g4=changed(11, errors={"recovery": 3}))
    unread = all_of(g4=changed(11, errors={}))
    found = later(old, unread, tmp_path)
    assert find_value(found, "recovery.delta", "GPU-4") == 0
    ctx = node(tmp_path, carry_overs=marks(found))
    found = read(old, ctx, tmp_path / "root")
    assert find_value(found, "recovery.delta", "GPU-4") == 0


def test_a_recovery_of_before_the_first_run_warns(tmp_path: Path) -> None:
    ctx = node(tmp_path)
    answers = all_of(g4=changed(11, errors={"recovery": 1}))
    assert verdict(read(answers, ctx, tmp_path), ctx).verdict is Verdict.WARN


def test_marks_are_three_of_a_gpu_and_small(tmp_path: Path) -> None:
    found = read(all_of(linkage(errors=NEW)), node(tmp_path), tmp_path)
    assert len(marks(found)) == 24
    assert max(len(m.value) for m in marks(found)) < 500


@pytest.mark.parametrize(
    ("state", "remedy", "says"),
    [
        ("in_progress", "rerun", "in progress; it may take minutes after a boot: run again"),
        ("not_started", "fix_configuration", "systemctl start nvidia-fabricmanager"),
    ],
)
def test_a_fabric_that_is_not_up_wants_its_manager_or_time(
    tmp_path: Path, state: str, remedy: str, says: str
) -> None:
    ctx = node(tmp_path)
    waiting = linkage(fabric=replace(WELL, state=state, summary="limited", trouble=("manager",)))
    judgement = verdict(read(all_of(g7=waiting), ctx, tmp_path), ctx)
    assert (judgement.cause, judgement.remedy) == (Cause.MISCONFIGURED, remedy)
    assert says in judgement.reason
    assert ("nvidia-fabricmanager" in judgement.reason.partition("journalctl")[0]) == (
        state == "not_started"
    )
    assert accused(judgement, ctx) == ["GPU 7"]


def test_a_gpu_outside_the_fabric_of_its_siblings_is_found(tmp_path: Path) -> None:
    ctx = node(tmp_path)
    judgement = verdict(read(all_of(g7=linkage(fabric=None)), ctx, tmp_path), ctx)
    assert (judgement.verdict, accused(judgement, ctx)) == (Verdict.ERROR, ["GPU 7"])


RACK = NvlinkFabric(
    state="completed",
    status="ok",
    trouble=(),
    summary="healthy",
    domain="00000001-0000-0000-0000-000000000001",
    clique=2,
)
"""As nvidia-smi has it of a healthy GB200 (580.173; NVIDIA/k8s-test-infra). A clique is a
partition, from 1 to 32766 (NMX-C's gRPC API), and the zero UUID is no domain (NCCL, init.cc)."""
ELSEWHERE = replace(RACK, domain="00000002-0000-0000-0000-000000000002")
OTHER_CLIQUE = replace(RACK, clique=7)
NOWHERE = replace(RACK, domain="", clique=0)
TRAY = BY_KEY["gb200"]


@pytest.mark.parametrize(
    "odd", [replace(RACK, state="in_progress"), replace(RACK, trouble=("manager",)), None]
)
def test_a_node_of_a_rack_has_no_fabric_manager_to_start(
    tmp_path: Path, odd: NvlinkFabric | None
) -> None:
    """Take a healthy GB200 without nvidia-fabricmanager (leptonai/gpud#1106)."""
    (judged,) = in_turn(tmp_path, tray(g1=odd))
    assert judged.verdict is Verdict.ERROR
    assert "NMX-C" in judged.reason
    assert {c.fix for c in judged.faults} == {""}


def tray(fabric: NvlinkFabric | None = RACK, **odd: NvlinkFabric | None) -> Answers:
    """Make the GPUs of a tray of a rack, but for those that are *odd*."""
    whole = replace(healthy(TRAY), fabric=fabric)
    return all_of(whole, 4, **{name: replace(whole, fabric=place) for name, place in odd.items()})


def in_turn(tmp_path: Path, *answers: Answers, accepted: int = -1) -> list[Result]:
    """Judge one run after the other; the one *accepted* accepts the parts."""
    kept: dict[tuple[str, str], CarryOver] = {}
    judged: list[Result] = []
    for number, each in enumerate(answers):
        ctx = node(tmp_path, TRAY, 4, carry_overs=tuple(kept.values()))
        if number == accepted:
            ctx = replace(ctx, accepts_parts=True)
        found = read(each, ctx, tmp_path)
        kept |= {(mark.name, mark.part_id): mark for mark in marks(found)}
        judged.append(verdict(found, ctx))
    return judged


def accused_in(judged: Result, tmp_path: Path) -> list[str]:
    return accused(judged, node(tmp_path, TRAY, 4))


@pytest.mark.parametrize("gone", [None, NOWHERE, replace(RACK, clique=0)])
def test_a_tray_that_left_its_nvlink_domain_fails_until_that_is_accepted(
    tmp_path: Path, gone: NvlinkFabric | None
) -> None:
    out = tray(gone)
    first, then, still, accepting, after = in_turn(tmp_path, tray(), out, out, out, out, accepted=3)
    assert first.verdict is accepting.verdict is after.verdict is Verdict.PASS
    for judged in (then, still):
        assert (judged.verdict, judged.remedy) == (Verdict.FAIL, Remedy.INSPECT)
        assert "before in NVLink domain 00000001-" in judged.reason
        assert len(accused_in(judged, tmp_path)) == 4


@pytest.mark.parametrize("place", [None, NOWHERE, RACK, WELL])
def test_no_gpu_need_be_in_a_domain_that_it_never_was_in(
    tmp_path: Path, place: NvlinkFabric | None
) -> None:
    for judged in in_turn(tmp_path, tray(place), tray(place)):
        assert passes(judged)


def test_a_board_with_its_own_switches_that_left_the_fabric_fails(tmp_path: Path) -> None:
    found = later(all_of(), all_of(linkage(fabric=None)), tmp_path)
    judgement = verdict(found, node(tmp_path))
    assert judgement.verdict is Verdict.FAIL
    assert len(accused(judgement, node(tmp_path))) == 8


def test_gpus_whose_links_are_all_off_are_not_said_to_have_left_the_fabric_too(
    tmp_path: Path,
) -> None:
    found = later(all_of(), all_of(linkage(0, fabric=None)), tmp_path)
    assert codes(found) == {"nvlink_off"}


@pytest.mark.parametrize("elsewhere", [ELSEWHERE, OTHER_CLIQUE])
def test_a_tray_that_moves_as_a_whole_is_warned_of_once(
    tmp_path: Path, elsewhere: NvlinkFabric
) -> None:
    moved = tray(elsewhere)
    _, then, after = in_turn(tmp_path, tray(), moved, moved)
    assert (then.verdict, accused_in(then, tmp_path)) == (Verdict.WARN, [])
    assert passes(after)


@pytest.mark.parametrize("elsewhere", [ELSEWHERE, OTHER_CLIQUE, NOWHERE])
@pytest.mark.parametrize("earlier", [(), (tray(),)])
def test_a_gpu_elsewhere_in_the_fabric_than_its_siblings_fails_until_accepted(
    tmp_path: Path, elsewhere: NvlinkFabric, earlier: tuple[Answers, ...]
) -> None:
    odd = tray(g1=elsewhere)
    runs = (*earlier, odd, odd, odd, odd)
    *_, then, still, accepting, after = in_turn(tmp_path, *runs, accepted=len(runs) - 2)
    for judged in (then, still):
        assert (judged.verdict, judged.remedy) == (Verdict.FAIL, Remedy.INSPECT)
        assert accused_in(judged, tmp_path) == ["GPU 1"]
    assert accepting.verdict is after.verdict is Verdict.PASS


def test_a_gpu_that_stayed_when_its_siblings_moved_fails_until_it_follows(tmp_path: Path) -> None:
    left = tray(ELSEWHERE, g1=RACK)
    _, then, still, after = in_turn(tmp_path, tray(), left, left, tray(ELSEWHERE))
    assert accused_in(then, tmp_path) == accused_in(still, tmp_path) == ["GPU 1"]
    assert passes(after)


def test_of_as_many_here_as_there_those_that_moved_fail(tmp_path: Path) -> None:
    half = tray(g2=ELSEWHERE, g3=ELSEWHERE)
    _, then = in_turn(tmp_path, tray(), half)
    assert (then.verdict, accused_in(then, tmp_path)) == (Verdict.FAIL, ["GPU 2", "GPU 3"])
    (new,) = in_turn(tmp_path, half)
    assert (new.verdict, accused_in(new, tmp_path)) == (Verdict.WARN, [])


def test_a_gpu_that_still_registers_keeps_its_place(tmp_path: Path) -> None:
    waiting = tray(replace(NOWHERE, state="in_progress"))
    _, then, after = in_turn(tmp_path, tray(), waiting, tray())
    assert (then.verdict, then.cause) == (Verdict.ERROR, Cause.MISCONFIGURED)
    assert passes(after)


def test_the_place_in_the_fabric_is_a_fact(tmp_path: Path) -> None:
    found = read(tray(g1=NOWHERE), node(tmp_path, TRAY, 4), tmp_path)
    facts = {(f.name, f.part_id): f.value for f in found if isinstance(f, Fact)}
    assert facts["NVLink domain", "GPU-0"] == RACK.domain
    assert facts["NVLink domain", "GPU-1"] == "none"
    assert (facts["NVLink clique", "GPU-0"], facts["NVLink clique", "GPU-1"]) == ("2", "0")


@pytest.mark.parametrize(
    ("fabric", "verdict_", "remedy"),
    [
        ({"status": "Insufficient Resources"}, "fail", "reboot"),
        ({"trouble": ("degraded_bandwidth",)}, "fail", "inspect"),
        ({"trouble": ("route_recovery",)}, "warn", "rerun"),
        ({"trouble": ("route_unhealthy",)}, "fail", "reset_gpu"),
        ({"trouble": ("access_timeout",)}, "warn", "reset_gpu"),
        ({"trouble": ("incorrect_configuration",)}, "error", "fix_configuration"),
        ({"trouble": ("partition",)}, "error", "fix_configuration"),
        ({"trouble": ("manager",)}, "error", "fix_configuration"),
        ({"summary": "unhealthy"}, "fail", "reset_gpu"),
        ({"summary": "limited"}, "warn", "inspect"),
        ({"summary": ""}, "pass", "none"),
    ],
)
def test_what_the_fabric_says_has_its_remedy(
    tmp_path: Path, fabric: dict[str, object], verdict_: str, remedy: str
) -> None:
    ctx = node(tmp_path)
    ill = linkage(fabric=replace(WELL, **fabric))
    judgement = verdict(read(all_of(g2=ill), ctx, tmp_path), ctx)
    assert (judgement.verdict.value, judgement.remedy.value) == (verdict_, remedy)
    assert accused(judgement, ctx) == ([] if verdict_ == "pass" else ["GPU 2"])


def test_every_flag_that_a_fabric_can_raise_is_ruled_on() -> None:
    assert {f"fabric_{flag}" for flag in nvlink.FABRIC_FLAG_TEXTS} < CHECK.finding_rules.keys()


def test_a_lost_gpu_fails_where_no_other_has_links(tmp_path: Path) -> None:
    ctx = node(tmp_path, BY_KEY["l4"])
    lost = Finding("gpu_lost", "GPU-3", "GPU is lost")
    judgement = verdict(read(all_of(Linkage()), ctx, tmp_path, None, lost), ctx)
    assert (judgement.verdict, judgement.remedy) == (Verdict.FAIL, Remedy.REBOOT)


@pytest.mark.parametrize(("a_second", "verdict_"), [(0, "pass"), (99, "pass"), (250, "fail")])
def test_errors_under_load_count_by_their_worst_seconds(
    tmp_path: Path, a_second: int, verdict_: str
) -> None:
    ctx = node(tmp_path)
    quiet = [40.0] * 3600
    burst = [40.0 + t * a_second for t in range(1, 30)]
    seen = watch(series("nvlink.errors", "GPU-4", [*quiet, *burst]))
    found = list(nvlink.observe(seen, ctx, NvlinkParams()))
    assert verdict(found, ctx).verdict.value == verdict_
    assert find_value(found, "errors.rate", "GPU-4") == a_second


def test_a_link_that_is_not_read_for_once_makes_no_burst(tmp_path: Path) -> None:
    seen = watch(series("nvlink.errors", "GPU-4", [9e6, 9e6, 4e6, 4e6, 9e6, 9e6 + 1]))
    found = list(nvlink.observe(seen, node(tmp_path), NvlinkParams()))
    assert find_value(found, "errors.rate", "GPU-4") == pytest.approx(0.1)


def test_a_counter_that_was_reset_under_way_counts_from_zero(tmp_path: Path) -> None:
    seen = watch(series("nvlink.errors", "GPU-4", [9e6, 9e6, 0, 2000, 2000]))
    found = list(nvlink.observe(seen, node(tmp_path), NvlinkParams()))
    assert find_value(found, "errors.rate", "GPU-4") == 200


def test_a_run_that_nobody_watched_has_nothing_to_judge(tmp_path: Path) -> None:
    ctx = node(tmp_path)
    assert passes(verdict(list(nvlink.observe(watch(), ctx, NvlinkParams())), ctx))


def test_a_lab_of_healthy_gpus_passes_at_rest_and_at_work(lab: Lab) -> None:
    ctx, found = on_lab(lab, "nvlink")
    assert passes(verdict(found, ctx))
    lab.load("healthy-8xh100")
    ctx, found = on_lab(lab, "nvlink", marks(found))
    assert passes(verdict(found, ctx))
    seen = lab.watch("healthy-8xh100", 30)
    found = list(nvlink.observe(seen, ctx, NvlinkParams()))
    assert len(found) == 8
    assert passes(verdict(found, ctx))


def test_a_lab_with_bad_links_is_understood(lab: Lab) -> None:
    lab.load("degraded-links", "gpu.*.fabric.state = COMPLETED", "freeze_t = 0")
    _, before = on_lab(lab, "nvlink")
    lab.load(
        "degraded-links",
        *("gpu.7.fabric.state = 1", "gpu.7.fabric.health_summary = 2", "freeze_t = 60"),
    )
    ctx, found = on_lab(lab, "nvlink", marks(before))
    judgement = verdict(found, ctx)
    assert (judgement.verdict, judgement.remedy) == (Verdict.FAIL, Remedy.RESET_GPU)
    assert "NVLink 5 down, 17 are up" in judgement.reason
    assert "recovery.delta 2 > 0" in judgement.reason
    assert accused(judgement, ctx) == ["GPU 3", "GPU 4", "GPU 7"]
    assert {"fabric_not_ready", "nvlink_errors"} < codes(found)
    seen = lab.watch("degraded-links", 30)
    judgement = verdict(list(nvlink.observe(seen, ctx, NvlinkParams())), ctx)
    assert (judgement.verdict, accused(judgement, ctx)) == (Verdict.FAIL, ["GPU 4"])


def test_a_lab_without_links_was_not_set_up(lab: Lab) -> None:
    lab.write("gpu.*.nvlink.count = 0", "gpu.*.fabric.state = 0")
    ctx, found = on_lab(lab, "nvlink")
    judgement = verdict(found, ctx)
    assert (judgement.verdict, judgement.cause) == (Verdict.ERROR, Cause.MISCONFIGURED)


@pytest.mark.parametrize(
    ("count", "verdict_", "remedy"), [("0", "fail", "inspect"), ("na", "error", "rerun")]
)
def test_a_lab_gpu_that_shows_no_links_is_not_passed(
    lab: Lab, count: str, verdict_: str, remedy: str
) -> None:
    lab.write(f"gpu.3.nvlink.count = {count}")
    ctx, found = on_lab(lab, "nvlink")
    judgement = verdict(found, ctx)
    assert (judgement.verdict.value, judgement.remedy.value) == (verdict_, remedy)
    assert accused(judgement, ctx) == ["GPU 3"]


def test_a_gpu_that_is_lost_fails_beside_the_links_of_the_others(lab: Lab) -> None:
    lab.write("fault = nvmlDeviceGetFieldValues gpu=2 return=GPU_IS_LOST")
    ctx, found = on_lab(lab, "nvlink")
    judgement = verdict(found, ctx)
    assert (judgement.verdict, judgement.remedy) == (Verdict.FAIL, Remedy.REBOOT)
    assert accused(judgement, ctx) == ["GPU 2"]
