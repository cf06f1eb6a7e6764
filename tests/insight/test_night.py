"""A night is judged once, when it is over; only what two runs show is told."""

from __future__ import annotations

import random
from collections.abc import Iterable
from datetime import date, timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from hpcverify.fleet.states import State
from hpcverify.history.database import find_database
from hpcverify.insight import night as night_module
from hpcverify.insight.judgement import (
    FleetJudgement,
    JudgedOutlier,
    keep_judged_nodes,
    list_judgement_lines,
    name_judged,
    read_judgement,
    write_judgement,
)
from hpcverify.insight.night import (
    choose_named,
    find_crowds,
    follow_up,
    judge_finished_night,
    list_by_chance,
    list_changes,
)
from hpcverify.insight.nodes_text import show_judgement
from hpcverify.model import Verdict
from hpcverify.peers import document as document_module
from hpcverify.peers.fleet import MetricJudgement, judge_metric
from hpcverify.peers.floors import PeerFloor
from hpcverify.peers.values import MetricName
from hpcverify.plan.config import Fabric, Fleet, Quarantine, Site
from hpcverify.summary.terminal import Console
from hpcverify.trends.fleet import STEP, PartChange, TrendJudgement, find_date
from hpcverify.trends.slope import Crossing
from tests.fleet.builders import Ticking, make_controller
from tests.fleet.paper import ME, PaperNode, PaperSlurm
from tests.history.fleets import find_noon_after, make_history

NODES = [f"r{number // 10}n{number}" for number in range(24)]
TONIGHT = date(2026, 11, 20)
METRIC = "gemm bf16.sustained"


class Nights(Ticking):
    """A controller beside a made history, and the day on which it looks."""

    def __init__(self, folder: Path, *floors: PeerFloor) -> None:
        """Make it, with a site that has lines of its own."""
        self.now = 0.0
        self.said: list[str] = []
        self.state = folder / "state"
        self.state.mkdir()
        (folder / "spool").mkdir()
        self.paper = PaperSlurm({name: PaperNode() for name in NODES})
        site = Site(
            fleet=Fleet(spool=str(folder / "spool"), user=ME),
            quarantine=Quarantine(enforce=("*",)),
            fabric=Fabric(switches={"leaf1": "r0n[0-7]", "leaf2": "r0n[8-9],r1n[10-15]"}),
            peers=floors,
        )
        self.controller = make_controller(
            self.state, site, self.paper, self.clock, self.said.append
        )

    def judge(self, *nights: int) -> FleetJudgement:
        """Judge the last of so many nights, for each of *nights* in turn."""
        for count in nights:
            self.now = find_noon_after(count)
            judge_finished_night(self.controller)
        judged = read_judgement(self.state)
        assert judged is not None
        return judged


@pytest.fixture
def nights(tmp_path: Path) -> Nights:
    """Give a controller without a history yet."""
    return Nights(tmp_path)


def test_a_slow_gpu_is_told_on_its_second_night_with_its_clock(nights: Nights) -> None:
    slow = "if(n = 17 and g = 1 and t >= 1, 0.95, 1)"
    clock = "if(n = 17 and g = 1 and t >= 1, 1410, 1500 + random())"
    make_history(nights.state, nights=3, level=slow, clock=clock, gpus=2)

    assert list_judgement_lines(nights.judge(2)) == []
    judged = nights.judge(3)

    (line,) = list_judgement_lines(judged)
    assert line.startswith("peers: WARN r1n17 GPU 1: ")
    assert line.endswith("since 3 Nov")
    by_metric = {one.metric.split()[1]: one for one in judged.outliers}
    assert by_metric["bf16.sustained"].distance == pytest.approx(0.05, abs=0.01)
    assert "clock 1410 MHz (peers 150" in by_metric["bf16.sustained"].cause
    assert judged.unconfirmed == ()


def test_what_could_not_be_judged_in_full_is_a_note_that_is_shown(nights: Nights) -> None:
    make_history(nights.state, nights=1, level="if(n % 2 = 0, 0.9, 1)")

    judged = nights.judge(1)

    (note,) = judged.notes
    assert note.startswith("gemm bf16.sustained")
    assert "two kinds" in note
    assert [line for line in list_judgement_lines(judged) if note in line]


def test_a_metric_that_cannot_be_reckoned_with_ends_no_other(
    nights: Nights, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_history(nights.state, nights=2, level="if(n = 5, 0.9, 1)", clock="if(n = 3, 900, 1500)")
    judge = judge_metric

    def overflow(name: MetricName, *others: Any) -> MetricJudgement:
        if name.check == "thermal":
            raise OverflowError("(34, 'Numerical result out of range')")
        return judge(name, *others)

    monkeypatch.setattr(document_module, "judge_metric", overflow)
    judged = nights.judge(1, 2)

    assert [one.node for one in judged.outliers] == ["r0n5"]
    assert [note for note in judged.notes if note.startswith("thermal clock.mean")]


@pytest.mark.parametrize("bad", [3, 5, 8])
def test_slow_nodes_are_told_however_many_they_are_and_however_different(
    nights: Nights, bad: int
) -> None:
    slow = f"if(n % 8 = 0 and n < 8 * {bad}, 0.94 - 0.003 * n, 1)"
    make_history(nights.state, nodes=67, nights=2, level=slow)
    assert len({one.node for one in nights.judge(1, 2).outliers}) == bad


def test_a_night_without_an_outlier_says_what_would_have_been_seen(nights: Nights) -> None:
    make_history(nights.state, nights=1)
    told = StringIO()

    judged = nights.judge(1)
    show_judgement(Console(file=told, width=200), keep_judged_nodes(judged, ["r1n17"]))

    assert judged.outliers == ()
    assert "no outliers" in told.getvalue()
    assert "a part is reported if it is 2" in told.getvalue()


def test_one_bad_night_names_nobody(nights: Nights) -> None:
    make_history(nights.state, nights=3, level="if(n = 17 and t = 1, 0.9, 1)")
    assert [one.name for one in nights.judge(2).unconfirmed] == ["r1n17 GPU 0"]
    judged = nights.judge(3)
    assert (judged.outliers, judged.changes) == ((), ())
    assert [one.shown for one in judged.unconfirmed] == [(True, False)]


def test_a_slow_node_is_named_as_one(nights: Nights) -> None:
    make_history(nights.state, nights=2, level="if(n = 5, 0.95, 1)", gpus=4)
    (one,) = nights.judge(1, 2).outliers
    assert (one.level, one.name, one.nodes) == ("node", "r0n5", ("r0n5",))


def test_a_slow_switch_is_named_as_the_site_calls_it(nights: Nights) -> None:
    make_history(nights.state, nights=2, level="if(n < 8, 0.95, 1)")
    (one,) = nights.judge(1, 2).outliers
    assert (one.level, one.name, len(one.nodes)) == ("switch", "leaf1", 8)


def test_a_node_that_slowed_with_a_driver_of_its_own_is_told_once(nights: Nights) -> None:
    since = "n = 5 and t >= 20"
    make_history(nights.state, nights=25, level=f"if({since}, 0.985, 1)", new_driver=since, gpus=2)

    judged = nights.judge(24, 25)

    (change,) = judged.changes
    assert (name_judged(change)[1], change.kind, change.day) == (
        "r0n5 GPU 0-1",
        "step",
        date(2026, 11, 22),
    )
    assert "driver 565.57.01 to 580.1" in change.why
    assert judged.outliers == ()


def test_nodes_that_step_alike_are_told_in_one_line(nights: Nights) -> None:
    level = "if(n < 4 and t >= 20, 0.95, 1)"
    make_history(nights.state, nights=25, level=level, nodes=60, gpus=2)

    judged = nights.judge(25)

    (change,) = judged.changes
    assert name_judged(change)[1] == "8 parts on r0n[0-3]"
    assert change.size == pytest.approx(0.05, abs=0.005)
    assert change.day == date(2026, 11, 22)
    assert change.why == "look for what they share, such as a switch or a setting"
    assert keep_judged_nodes(judged, ["r0n2"]).changes == (change,)
    assert keep_judged_nodes(judged, ["r0n4"]).changes == ()


def test_a_node_with_many_parts_hides_no_crowd() -> None:
    def step(node: str, part: int, size: float, day: float) -> PartChange:
        return PartChange(
            node=node,
            part=f"GPU {part}",
            verdict=Verdict.WARN,
            kind=STEP,
            size=size,
            before=100.0,
            after=100.0 * (1 + size),
            day=find_date(day),
            time=day,
        )

    eight_of_one_node = [step("n0", gpu, 0.1, 20000.0) for gpu in range(8)]
    one_of_four_nodes = [step(f"n{number}", 0, 0.02, 20010.0) for number in range(1, 5)]

    assert find_crowds([*eight_of_one_node, *one_of_four_nodes]) == [one_of_four_nodes]


def test_a_trend_keeps_the_day_on_which_it_crosses_the_limit() -> None:
    trend = PartChange(
        node="n1",
        part="GPU 0",
        verdict=Verdict.WARN,
        kind="trend",
        size=0.1,
        before=100.0,
        after=90.0,
        day=find_date(20000.0),
        time=20000.0,
        crossing=Crossing(20010.0, 20005.0, None),
    )
    name = MetricName("bf16.sustained", "gemm", "idle, H100", "TFLOP/s")
    (change,) = list_changes({name: TrendJudgement(parts=1, changes=(trend,), shared=())})

    assert (change.check, change.measurement) == ("gemm", "bf16.sustained")
    assert change.crossing is not None
    assert change.crossing.day == 20010
    assert change.why.startswith("crosses its limit about ")


def test_what_the_fleet_reached_is_kept_for_the_suite_of_the_sweep(nights: Nights) -> None:
    make_history(nights.state, nights=1, level="if(n = 3, 0.5, 1)")
    judged = nights.judge(1)
    suite = nights.controller.site.fleet.suite
    metric, reached = next(one for one in judged.levels if one[0].metric == "bf16.sustained")

    assert suite == "idle"
    assert (metric.check, metric.unit, reached.peers) == ("gemm", "TFLOP/s", len(NODES))
    assert reached.low < 0.6 * reached.centre < reached.centre <= reached.high


def test_a_fail_is_told_before_what_is_farther_and_only_warns() -> None:
    far, failed = make_outlier(TONIGHT, 2), make_outlier(TONIGHT, 2)
    failed = replace(failed, name="n2 GPU 0", node="n2", distance=0.03, verdict=Verdict.FAIL)

    assert [one.name for one in follow_up([far, failed], None, {})] == [
        "n2 GPU 0",
        "n1 GPU 0",
    ]


def test_without_a_known_switch_the_name_tells_the_rack(nights: Nights) -> None:
    make_history(nights.state, nights=2, level="if(n // 10 = 4, 0.95, 1)", nodes=60)
    (one,) = nights.judge(1, 2).outliers
    assert (one.level, one.name, len(one.nodes)) == ("rack", "r4", 10)


def test_a_rollout_accuses_no_node(nights: Nights) -> None:
    make_history(nights.state, nights=25, level="if(t >= 20, 0.97, 1)", new_driver="t >= 20")
    judged = nights.judge(24, 25)
    assert (judged.outliers, judged.changes) == ((), ())
    (note,) = judged.notes
    assert "rollout: 24 of 24 parts with driver 565.57.01 to 580.1 became 3" in note


@pytest.mark.system
def test_healthy_nights_name_nobody(nights: Nights) -> None:
    make_history(nights.state, nights=20, nodes=60)
    for count in range(1, 21):
        assert list_judgement_lines(nights.judge(count)) == []


def test_a_night_is_judged_once(nights: Nights) -> None:
    make_history(nights.state, nights=1)
    first = nights.judge(1)
    (nights.state / "measurements").rename(nights.state / "elsewhere")
    assert nights.judge(1) is not None
    assert (read_judgement(nights.state), nights.said) == (first, [])


def test_a_fail_of_the_site_makes_a_suspect_in_service_once(tmp_path: Path) -> None:
    nights = Nights(tmp_path, PeerFloor(check="gemm", floor=0.02, otherwise=Verdict.FAIL))
    make_history(nights.state, nights=3, level="if(n = 17, 0.95, 1)")
    nights.now = find_noon_after(1)
    nights.controller.reconcile()

    nights.judge(1)
    nights.controller.reconcile()
    assert nights.controller.ledger.read_node("r1n17").state is State.UNVERIFIED
    nights.judge(2)
    nights.controller.reconcile()

    node = nights.controller.ledger.read_node("r1n17")
    assert (node.state, node.suite) == (State.SUSPECT, "")
    assert "worse than its peers" in node.full_reason
    assert not nights.paper.nodes["r1n17"].drained
    nights.judge(3)
    nights.controller.reconcile()
    assert len(nights.controller.ledger.list_outer_faults("r1n17")) == 1
    suspects = [
        n for n in nights.controller.ledger.list_nodes().values() if n.state is State.SUSPECT
    ]
    assert len(suspects) == 1


def test_a_night_that_is_judged_again_since_it_was_killed_suspects_nobody_again(
    tmp_path: Path,
) -> None:
    """The ledger has the suspect, and the file of the judgement is that of the night before."""
    nights = Nights(tmp_path, PeerFloor(check="gemm", floor=0.02, otherwise=Verdict.FAIL))
    make_history(nights.state, nights=2, level="if(n = 17, 0.95, 1)")
    nights.judge(1)
    ledger, file = nights.controller.ledger, nights.state / "judgement.json"
    before = file.read_bytes()
    nights.judge(2)
    suspect = ledger.read_node("r1n17")
    assert suspect.state is State.SUSPECT
    ledger.put(replace(suspect, state=State.HEALTHY, checks=()), "healthy")

    file.write_bytes(before)
    assert [one.reported for one in nights.judge(2).outliers] == [True]

    assert ledger.read_node("r1n17").state is State.HEALTHY
    assert ledger.list_outer_faults() == []


def test_without_duckdb_nothing_is_judged(nights: Nights, monkeypatch: pytest.MonkeyPatch) -> None:
    make_history(nights.state, nights=1)
    monkeypatch.setattr(night_module, "is_installed", lambda: False)
    nights.now = find_noon_after(1)
    judge_finished_night(nights.controller)
    assert (nights.said, read_judgement(nights.state)) == ([], None)


def test_a_damaged_history_is_said_and_stops_nothing(nights: Nights) -> None:
    make_history(nights.state, nights=1)
    find_database(nights.state).write_bytes(b"no database")
    nights.now = find_noon_after(1)

    judge_finished_night(nights.controller)

    (told,) = nights.said
    assert told.startswith("judgement of the night of 2026-11-02: the measurements in ")
    assert read_judgement(nights.state) is None


def make_outlier(last: date, nights: int = 1) -> JudgedOutlier:
    return JudgedOutlier(
        level="part",
        name="n1 GPU 0",
        node="n1",
        nodes=("n1",),
        suite="idle",
        metric=METRIC,
        verdict=Verdict.WARN,
        distance=0.04,
        distance_then=0.04,
        since=last,
        last=last,
        shown=(True,) * nights,
    )


def test_what_stood_out_is_kept_until_the_node_runs_again() -> None:
    last = TONIGHT - timedelta(days=60)
    before = FleetJudgement(night=last, unconfirmed=(make_outlier(last),))
    kept = follow_up([], before, {})
    assert kept == [make_outlier(last)]
    (again,) = follow_up([make_outlier(TONIGHT)], replace(before, unconfirmed=(*kept,)), {})
    assert (again.shown, again.since) == ((True, True), last)


def test_a_node_that_runs_once_a_month_is_named_on_its_second_run(nights: Nights) -> None:
    absent = "n = 17 and t not in (0, 30, 60)"
    make_history(nights.state, nights=61, level="if(n = 17, 0.9, 1)", absent=absent)

    assert nights.judge(1).outliers == ()
    assert [one.node for one in nights.judge(31).outliers] == ["r1n17"]
    forgotten = nights.judge(31 + 15)
    assert (forgotten.outliers, [one.node for one in forgotten.unconfirmed]) == ((), ["r1n17"])
    assert [one.node for one in nights.judge(61).outliers] == ["r1n17"]


def test_the_same_run_does_not_count_twice() -> None:
    before = FleetJudgement(night=TONIGHT, unconfirmed=(make_outlier(TONIGHT),))
    (one,) = follow_up([make_outlier(TONIGHT)], before, {})
    assert one.nights == 1


def follow_nights(*found: tuple[str, ...]) -> list[tuple[str, int]]:
    """Follow up who was found on each night; say who is told after the last one, and the nights."""
    before: FleetJudgement | None = None
    followed: list[JudgedOutlier] = []
    for count, names in enumerate(found):
        night = TONIGHT + timedelta(days=count)
        last = {(f"n{node}", "idle"): night for node in range(1, 5)}
        outliers = [
            replace(
                make_outlier(night),
                level="switch" if name == "leaf1" else "part" if "GPU" in name else "node",
                name=name,
                node="" if name == "leaf1" else name.split()[0],
                nodes=("n1", "n2", "n3") if name == "leaf1" else (name.split()[0],),
            )
            for name in names
        ]
        followed = follow_up(outliers, before, last)
        before = FleetJudgement(night=night, outliers=tuple(followed))
    return [(one.name, one.nights) for one in followed]


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ((("n1",), ("n1 GPU 0",)), [("n1 GPU 0", 2)]),
        ((("n1 GPU 0",), ("n1",), ("n1 GPU 3",)), [("n1 GPU 3", 3)]),
        ((("n1 GPU 0", "n1 GPU 3"), ("n1",)), [("n1", 2)]),
        ((("leaf1",), ("n1", "n2"), ("leaf1",)), [("leaf1", 3)]),
    ],
)
def test_who_is_slow_as_a_whole_one_night_and_in_part_the_next_stood_out_on_both(
    found: tuple[tuple[str, ...], ...], expected: list[tuple[str, int]]
) -> None:
    assert follow_nights(*found) == expected


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ((("n1 GPU 0",), ("n1 GPU 3",)), [("n1 GPU 0", 1), ("n1 GPU 3", 1)]),
        ((("n1",), ("n2 GPU 0",)), [("n1", 1), ("n2 GPU 0", 1)]),
        ((("n1",), ("n1", "n1 GPU 0")), [("n1", 2), ("n1 GPU 0", 1)]),
        ((("n1",), ("leaf1",)), [("leaf1", 1)]),
    ],
)
def test_one_night_of_another_part_node_or_place_is_none_of_it(
    found: tuple[tuple[str, ...], ...], expected: list[tuple[str, int]]
) -> None:
    assert follow_nights(*found) == expected


@pytest.mark.parametrize(
    ("count", "expected"),
    [(4, "8 parts on r0n0,r1n3,r2n6,r3n9"), (40, "8 parts on 40 nodes (r0n0, r1n3, r2n6, ...)")],
)
def test_a_long_list_of_nodes_is_told_by_the_first_ones(count: int, expected: str) -> None:
    change = PartChange(
        nodes=tuple(f"r{number}n{3 * number}" for number in range(count)),
        part="8 parts",
        metric="gemm bf16.sustained",
        verdict=Verdict.WARN,
        kind=STEP,
        size=0.03,
        before=500.0,
        after=485.0,
        unit="TFLOP/s",
        day=TONIGHT,
    )

    assert name_judged(change)[1] == expected


def test_what_was_written_is_read(tmp_path: Path) -> None:
    judgement = FleetJudgement(night=TONIGHT, outliers=(make_outlier(TONIGHT, 2),))
    write_judgement(tmp_path, judgement)
    assert read_judgement(tmp_path) == judgement


def name_over_nights(
    shown: Iterable[set[int]], nodes: int = 64, metrics: int = 1
) -> list[set[str]]:
    """Name the nodes after each night, if those in *shown* stand out: numbered on by metric."""
    before, named = FleetJudgement(night=TONIGHT), []
    counts = {f"m{metric}": (8 * nodes, nodes) for metric in range(metrics)}
    for count, slow in enumerate(shown):
        night = TONIGHT + timedelta(days=count)
        outliers = [
            replace(
                make_outlier(night),
                level="node",
                name=f"n{n % nodes}",
                node=f"n{n % nodes}",
                nodes=(f"n{n % nodes}",),
                metric=f"m{n // nodes}",
            )
            for n in sorted(slow)
        ]
        followed = follow_up(outliers, before, {(f"n{n}", "idle"): night for n in range(nodes)})
        by_chance = list_by_chance(followed, before, counts, metrics)
        told = choose_named(followed, by_chance, night)
        before = FleetJudgement(
            night=night,
            outliers=tuple(told),
            unconfirmed=tuple(one for one in followed if one not in told),
        )
        named.append({one.name for one in told})
    return named


@pytest.mark.parametrize("nodes", [64, 232])
@pytest.mark.parametrize("share", [0.01, 0.05, 0.1])
def test_runs_that_are_slow_now_and_then_name_hardly_any_node(nodes: int, share: float) -> None:
    rng = random.Random(1)  # noqa: S311 - no secret
    slow = [{node for node in range(nodes) if rng.random() < share} for _ in range(60)]
    assert len(set().union(*name_over_nights(slow, nodes))) <= 1


@pytest.mark.parametrize("bad", [{3}, {3, 4, 5}, set(range(20))])
def test_bad_nodes_are_named_on_their_second_night(bad: set[int]) -> None:
    expected = {f"n{node}" for node in bad}
    assert name_over_nights([bad, bad], 232)[1] == expected
    assert name_over_nights([{3}, bad | {3, 40, 41}], 64)[1] == {"n3"}


@pytest.mark.parametrize("bad", [{3}, {3, 4, 5}, set(range(20))])
def test_bad_nodes_are_named_on_their_third_night_where_another_stands_out_each_night(
    bad: set[int],
) -> None:
    named = name_over_nights([bad | {99}, bad | {88}, bad | {77}], 232)
    assert named[2] == {f"n{node}" for node in bad}


@pytest.mark.parametrize("share", [0.002, 0.006])
def test_where_all_metrics_are_restless_hardly_any_site_names_a_healthy_node(share: float) -> None:
    rng = random.Random(1)  # noqa: S311 - no secret
    sites = [
        [{n for n in range(5120) if rng.random() < share} for _ in range(20)] for _ in range(8)
    ]
    assert sum(bool(set().union(*name_over_nights(site, 512, 10))) for site in sites) == 0


@pytest.mark.parametrize(("others", "named"), [(0, True), (40, False)])
def test_a_node_that_stood_out_by_its_parts_stands_out_as_often_as_parts_do(
    others: int, *, named: bool
) -> None:
    node = replace(
        make_outlier(TONIGHT), level="node", name="n3", node="n3", shown=(True, *(False,) * 8, True)
    )
    parts = [
        replace(
            node, level="part", name=f"n{n} GPU 0", node=f"n{n}", shown=(False, True, *(False,) * 8)
        )
        for n in range(4, 4 + others)
    ]
    by_chance = list_by_chance([node, *parts], None, {METRIC: (512, 64)}, 300)
    assert (node not in by_chance) is named


def test_a_slow_node_is_named_on_its_second_night_beside_ten_restless_metrics_of_a_hundred() -> (
    None
):
    rng = random.Random(1)  # noqa: S311 - no secret
    nights = [{n for n in range(2320) if rng.random() < 0.005} for _ in range(12)]
    slow = 50 * 232 + 3
    assert name_over_nights([*nights[:-2], *(n | {slow} for n in nights[-2:])], 232, 100)[-1] == {
        "n3"
    }


@pytest.mark.parametrize("others", [0.0, 0.01])
def test_a_node_that_is_slow_every_third_night_is_named_and_stays_so(others: float) -> None:
    rng = random.Random(1)  # noqa: S311 - no secret
    slow = [
        {
            node
            for node in range(64)
            if (3 if night % 3 == 0 else -1) == node or rng.random() < others
        }
        for night in range(20)
    ]
    named = name_over_nights(slow)
    assert all(names == {"n3"} for names in named[9:])


def test_a_bad_node_is_named_in_the_end_where_others_stand_out_each_night() -> None:
    rng = random.Random(1)  # noqa: S311 - no secret
    slow = [{3} | {node for node in range(4, 64) if rng.random() < 0.05} for _ in range(6)]
    assert "n3" in name_over_nights(slow)[-1]


@pytest.mark.parametrize(("bad", "good"), [(2, 3), (10, 2)])
def test_one_good_night_clears_no_name_and_some_in_a_row_do(bad: int, good: int) -> None:
    named = name_over_nights([{3}] * bad + [set()] * good)
    assert named[bad - 1 :] == [{"n3"}] * good + [set()]


def test_what_has_stood_out_for_a_month_unchanged_is_one_line() -> None:
    old = TONIGHT - timedelta(days=30)
    outliers = tuple(
        replace(make_outlier(TONIGHT, 2), name=f"n{n}", node=f"n{n}", since=old) for n in range(5)
    )
    grown = replace(outliers[0], name="n9", node="n9", distance=0.08)
    judgement = FleetJudgement(night=TONIGHT, outliers=(*outliers, grown))

    peers, known = list_judgement_lines(judgement)

    assert peers.startswith("peers: WARN n9: ")
    assert known == "known: n0, n1, n2 and 2 more: unchanged for 30 nights and longer"


def test_a_node_whose_clock_is_a_month_off_is_judged_and_said(nights: Nights) -> None:
    make_history(
        nights.state, nights=2, level="if(n = 17, 0.9, 1)", clock_error="if(n = 17, -30, 0)"
    )

    judged = nights.judge(1, 2)

    assert [one.node for one in judged.outliers] == ["r1n17"]
    (note,) = judged.notes
    assert note.startswith("r1n17: by the node's clock, runs began 30 days before they arrived; ")


def test_the_night_says_how_many_nodes_it_compared_and_why_not_the_others(nights: Nights) -> None:
    make_history(nights.state, nights=12, absent="n < 4 and t > 1")
    nights.now = find_noon_after(2)
    nights.controller.reconcile()
    told = StringIO()

    judged = nights.judge(12)
    show_judgement(Console(file=told, width=200), judged)

    assert "20 of 24 nodes were compared; 4 never ran" in told.getvalue()
