"""Who is named on real fleets and on made ones, and that nobody else is."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from hpcverify.model import Verdict
from hpcverify.peers.fleet import Judgeability, judge_metric
from hpcverify.peers.floors import PeerFloor
from hpcverify.peers.values import NODE_PART, PartValue, find_resolution
from tests.peers.fleets import (
    FLOOR,
    NAME,
    Draw,
    draw_heavy_tailed,
    judge_longhorn,
    judge_values,
    make_fleet,
)

SEEDS = range(20)


def make_part(
    i: int, value: float, *, node: str = "", rack: str = "r1", **sensors: float
) -> PartValue:
    groups = {"rack": rack}
    return PartValue(node or f"n{i}", f"gpu{i}", value, 5, 0.1, groups, sensors)


def name_all(values: Sequence[Sequence[float]], gpus: int = 1) -> list[tuple[str, str]]:
    return [(each.level, each.name) for each in judge_values(values, gpus).outliers]


def test_the_slow_node_of_bert_is_named_and_not_its_four_gpus() -> None:
    judged = judge_longhorn("bert")
    (node,) = judged.outliers
    assert (node.level, node.name, node.verdict) == ("node", "c002-5", Verdict.WARN)
    assert len(node.members) == 4
    assert node.distance == pytest.approx(0.036, abs=0.003)
    assert "not throttled" in node.cause


def test_the_slow_gpus_of_sgemm_are_named_with_their_cause() -> None:
    judged = judge_longhorn("sgemm")
    assert [each.name for each in judged.outliers] == ["g076", "g124"]
    assert judged.outliers[0].cause.startswith("throttles by heat: clock 1312 MHz (peers 1365)")
    assert "low power" in judged.outliers[1].cause


def test_nobody_is_named_on_pagerank_where_a_few_gpus_are_faster() -> None:
    judged = judge_longhorn("pagerank")
    assert (judged.outliers, judged.note) == ((), "")


def test_in_resnet_slow_nodes_are_named_each_with_the_gpu_that_holds_it_back() -> None:
    judged = judge_longhorn("resnet")
    assert [each.name for each in judged.outliers] == ["c007-12", "c006-12", "c008-8"]
    assert judged.outliers[0].cause.startswith("c007-12-3: throttles by heat")
    assert judged.outliers[2].cause.startswith("c008-8-3: throttles by heat")


def test_defects_of_3_percent_are_found_among_a_thousand_nodes() -> None:
    caught, false = [], 0
    for seed in SEEDS:
        rng = random.Random(seed)
        values = [[100 * (1 if i % 50 else 0.97) * rng.gauss(1, 0.0045)] for i in range(1000)]
        named = {name for _, name in name_all(values)}
        bad = {f"n{i} gpu0" for i in range(0, 1000, 50)}
        caught.append(len(named & bad))
        false += len(named - bad)

    assert min(caught) >= 18
    assert false == 0


@pytest.mark.parametrize("parts", [8, 40, 400, 4000])
@pytest.mark.parametrize("noise", ["normal", "heavy tails", "skewed", "quantised", "equal"])
def test_nobody_is_named_among_healthy_parts_on_two_nights(parts: int, noise: str) -> None:
    draws: dict[str, Draw] = {
        "normal": lambda rng: rng.gauss(0, 1),
        "heavy tails": draw_heavy_tailed,
        "skewed": lambda rng: -rng.expovariate(1),
        "quantised": lambda rng: 5 * round(rng.gauss(0, 0.3)),
        "equal": lambda _: 0.0,
    }
    for seed in range(max(2, 400 // parts)):
        rng = random.Random(seed)
        nights = [
            [[100 + draws[noise](rng) for _ in range(9)] for _ in range(parts)] for _ in range(2)
        ]
        for gpus in (1, 4):
            first, second = (set(name_all(values, gpus)) for values in nights)
            assert first & second == set(), seed


@pytest.mark.parametrize("parts", [8, 40, 400, 4000])
def test_one_bad_part_is_named_in_a_fleet_of_any_size(parts: int) -> None:
    rng = random.Random(parts)
    values = [[100 * rng.gauss(1, 0.002) for _ in range(5)] for _ in range(parts)]
    values[5] = [0.95 * value for value in values[5]]
    assert name_all(values) == [("part", "n5 gpu0")]


def test_a_bad_part_is_named_among_equal_ones() -> None:
    assert name_all([[90.0], *[[100.0]] * 39]) == [("part", "n0 gpu0")]


def test_two_bad_parts_among_equal_ones_do_not_hide_each_other() -> None:
    named = name_all([[600.0], [500.0], *[[700.0]] * 38])
    assert set(named) == {("part", "n0 gpu0"), ("part", "n1 gpu0")}


@pytest.mark.parametrize(
    ("values", "step"),
    [
        ([1e-05] * 9 + [2e-05], 1e-05),
        ([1e-05] * 9 + [1.5e-05], 1e-06),
        ([3e-07, 3e-07], 1e-07),
        ([100.0, 90.0], 1.0),
        ([0.25, 0.5], 0.01),
        ([1e20, 3e20], 1.0),
        ([*[5.0] * 9, *[5.5] * 8, *[7.0] * 2], 0.5),
        ([*[700.0] * 98, 600.0, 500.0], 1.0),
        ([*[5.0] * 30, *[5.5] * 8, 5.01], 0.5),
        ([*[5.0] * 90, *[5.5] * 3, *[4.5] * 4], 0.5),
        ([*[5.0] * 90, *[5.5] * 3, 4.5], 0.1),
        ([100.1, 100.3, 99.2, 98.6], 0.1),
        ([], 1.0),
    ],
)
def test_the_step_of_a_record_is_that_of_its_last_place(values: list[float], step: float) -> None:
    assert find_resolution(values) == pytest.approx(step)


def test_a_bad_part_is_named_among_equal_ones_however_small_the_unit() -> None:
    parts = make_fleet([[1.02e-05]] * 39 + [[2e-05]])
    assert [one.name for one in judge_metric(NAME, parts, FLOOR, "high").outliers] == ["n39 gpu0"]


def test_the_runs_of_a_part_that_are_no_number_are_left_out() -> None:
    rng = random.Random(1)
    values = [[100 * rng.gauss(1, 0.002), float("nan"), float("inf")] for _ in range(20)]
    values[3] = [float("nan")]
    judged = judge_values(values)
    assert (judged.parts, judged.outliers) == (19, ())


def test_what_is_usually_zero_is_not_compared() -> None:
    judged = judge_values([[0.0]] * 39 + [[7.0]])
    assert judged.judgeability is Judgeability.ZERO
    assert judged.outliers == ()


def test_who_is_not_at_the_usual_zero_is_listed() -> None:
    parts = make_fleet([[0.0]] * 79 + [[900.0]])
    assert "n79 gpu0 (900)" in judge_metric(NAME, parts, FLOOR, "high").note


@pytest.mark.parametrize("nodes", [2, 3, 8, 20, 200])
def test_a_node_whose_gpus_are_all_slow_is_named_once(nodes: int) -> None:
    rng = random.Random(nodes)
    values = [[100 * rng.gauss(1, 0.003)] for _ in range(8 * nodes)]
    for i in range(8):
        values[i] = [0.94 * value for value in values[i]]
    assert name_all(values, gpus=8) == [("node", "n0")]


def test_one_slow_gpu_is_named_and_not_its_node() -> None:
    rng = random.Random(1)
    values = [[100 * rng.gauss(1, 0.003)] for _ in range(160)]
    values[3] = [90.0]
    assert name_all(values, gpus=8) == [("part", "n0 gpu3")]


def test_a_gpu_that_is_slower_than_its_slow_node_is_named_too() -> None:
    rng = random.Random(1)
    values = [[100 * rng.gauss(1, 0.003)] for _ in range(160)]
    values[:8] = [[0.96 * value for value in runs] for runs in values[:8]]
    values[3] = [80.0]
    assert name_all(values, gpus=8) == [("node", "n0"), ("part", "n0 gpu3")]


def test_a_rack_whose_nodes_are_all_slow_is_named_once() -> None:
    rng = random.Random(1)
    values = [[100 * rng.gauss(1, 0.003)] for _ in range(400)]  # 100 nodes in 10 racks
    values[:40] = [[0.96 * value for value in runs] for runs in values[:40]]
    assert name_all(values, gpus=4) == [("rack", "r0")]


def test_two_drivers_explain_two_kinds_of_parts_and_a_bad_one_is_still_found() -> None:
    rng = random.Random(1)
    parts = [
        replace(
            make_part(i, rng.gauss(100 if i % 2 else 96, 0.3)),
            groups={"driver": "580.2" if i % 2 else "590.1"},
        )
        for i in range(200)
    ]
    parts[7] = replace(parts[7], value=94.0)  # like the others but for its driver

    judged = judge_metric(NAME, parts, FLOOR, "low")

    assert [each.name for each in judged.outliers] == ["n7 gpu7"]
    assert "two kinds by driver" in judged.note
    assert "590.1: 100 parts, 4.1 % worse" in judged.note


def make_kinds(
    share: float, apart: float, *, node: float = 0.0, gpu: float = 0.0
) -> list[tuple[str, str]]:
    """Name the outliers of a fleet whose last node is of the better kind and off it."""
    rng, nodes = random.Random(1), 64
    values = []
    for n in range(nodes):
        loss = apart * (n < share * nodes) + node * (n == nodes - 1) + rng.gauss(0, 0.003)
        gpus = [1 - loss - gpu * (n == nodes - 1 and g == 3) for g in range(8)]
        values += [[500 * (level + rng.gauss(0, 0.004))] for level in gpus]
    parts = [replace(part, groups={}) for part in make_fleet(values, gpus=8)]
    return [(each.level, each.name) for each in judge_metric(NAME, parts, FLOOR, "low").outliers]


@pytest.mark.parametrize(
    ("share", "apart", "off", "named"),
    [
        (0.2, 0.03, {}, []),
        (0.3, 0.05, {}, []),
        (0.5, 0.03, {}, []),
        (0.5, 0.08, {}, []),
        (0.5, 0.03, {"gpu": 0.035}, [("part", "n63 gpu3")]),
        (0.5, 0.03, {"gpu": 0.06}, [("part", "n63 gpu3")]),
        (0.5, 0.08, {"gpu": 0.04}, [("part", "n63 gpu3")]),
        (0.3, 0.05, {"gpu": 0.05}, [("part", "n63 gpu3")]),
        (0.5, 0.08, {"node": 0.03}, [("node", "n63")]),
    ],
)
def test_two_kinds_that_nothing_explains_are_judged_each_by_itself(
    share: float, apart: float, off: dict[str, float], named: list[tuple[str, str]]
) -> None:
    assert make_kinds(share, apart, **off) == named


@pytest.mark.parametrize(("share", "apart"), [(0.03, 0.03), (0.08, 0.03), (0.15, 0.06), (0.3, 0.1)])
def test_nodes_that_are_too_few_or_too_bad_to_be_a_kind_are_named(
    share: float, apart: float
) -> None:
    named = make_kinds(share, apart)
    assert {level for level, _ in named} == {"node"}
    assert len(named) == -(-64 * share // 1)


def test_a_split_that_nothing_explains_is_told_in_a_sentence() -> None:
    rng = random.Random(1)
    judged = judge_values([[rng.gauss(100 if i % 3 else 92, 0.3)] for i in range(90)])
    assert judged.judgeability is Judgeability.SPLIT
    assert judged.outliers == ()
    assert "30 of 90 parts are 8 % worse than the others" in judged.note
    assert "add [[kinds]] to site.toml; the worse parts: n0, n3, n6" in judged.note


@pytest.mark.parametrize("broken", [1.0, 30.0, 300.0])
@pytest.mark.parametrize("slow", [60, 90])
def test_one_broken_part_gets_no_part_of_another_kind_named(broken: float, slow: int) -> None:
    rng = random.Random(1)
    values = [[rng.gauss(94 if i < slow else 100, 0.3)] for i in range(200)]
    assert {each.name for each in judge_values([*values, [broken]]).outliers} <= {"n200 gpu0"}


@pytest.mark.parametrize("claims", [[200.0], [0.0, -5e6], [150.0 + i for i in range(16)], [104.0]])
def test_what_one_node_claims_hides_no_other_one(claims: list[float]) -> None:
    rng = random.Random(1)
    fleet = make_fleet([[rng.gauss(100 if i else 93, 0.4)] for i in range(232)], gpus=8)
    liar = [replace(one, node="liar") for one in make_fleet([[value] for value in claims], 16)]

    judged = judge_metric(NAME, [*fleet, *liar], FLOOR, "low")

    assert ("part", "n0 gpu0") in {(each.level, each.name) for each in judged.outliers}
    assert {each.node for each in judged.outliers} <= {"n0", "liar"}


@pytest.mark.parametrize("bad", [5, 8, 15])
def test_bad_nodes_are_named_and_said_to_be_many_if_they_are(bad: int) -> None:
    rng = random.Random(1)
    loss = [0.06 + 0.24 * i / 15 if i < bad else 0.0 for i in range(100)]
    values = [[100 * (1 - loss[i * 37 % 100]) * rng.gauss(1, 0.004)] for i in range(100)]

    judged = judge_values(values)

    assert len(judged.outliers) == bad
    assert judged.judgeability is (Judgeability.MANY if bad > 10 else Judgeability.JUDGED)
    assert (f"{bad} of 100 nodes are outliers" in judged.note) is (bad > 10)


def test_who_is_far_and_not_named_is_listed() -> None:
    rng = random.Random(1)
    values = [[100 * rng.gauss(1, 0.05)] for _ in range(99)] + [[84.0]]
    judged = judge_values(values)
    assert judged.outliers == ()
    assert "n99 gpu0 (16 %)" in judged.note


def test_an_outlier_is_a_fail_only_where_its_limit_or_the_site_says_the_same() -> None:
    rng = random.Random(1)
    parts = [make_part(i, rng.gauss(100, 0.3)) for i in range(40)]
    bad = replace(parts[7], value=90.0)
    strict = replace(FLOOR, otherwise=Verdict.FAIL)

    def judge(limit: float = 0.0, floor: PeerFloor = FLOOR) -> Verdict:
        fleet = [*parts[:7], bad, *parts[8:]]
        (outlier,) = judge_metric(NAME, fleet, floor, "low", lambda p: p.value < limit).outliers
        return outlier.verdict

    assert judge() is Verdict.WARN
    assert judge(85.0) is Verdict.WARN
    assert judge(95.0) is Verdict.FAIL
    assert judge(floor=strict) is Verdict.FAIL


def test_what_is_beyond_its_limit_with_all_its_peers_is_no_outlier() -> None:
    rng = random.Random(1)
    parts = [make_part(i, rng.gauss(100, 0.3)) for i in range(40)]
    assert judge_metric(NAME, parts, FLOOR, "low", lambda p: p.value < 110.0).outliers == ()


@pytest.mark.parametrize(
    ("sensors", "cause"),
    [
        ({"clock": 1300.0, "temperature": 88.0, "power": 600.0}, "throttles by heat"),
        ({"clock": 1300.0, "temperature": 60.0, "power": 700.0}, "low clock at the power"),
        ({"clock": 1300.0, "temperature": 50.0, "power": 500.0}, "limited by power"),
        ({"clock": 1700.0, "temperature": 60.0, "power": 700.0}, "normal clock"),
        ({"clock": 1700.0, "temperature": 60.0, "power": 600.0}, "low power"),
        ({}, ""),
    ],
)
def test_the_cause_is_what_the_sensors_show_and_no_more(
    sensors: dict[str, float], cause: str
) -> None:
    rng = random.Random(1)
    parts = [
        make_part(
            i,
            rng.gauss(100, 0.3),
            clock=rng.gauss(1700, 3),
            temperature=rng.gauss(60, 1),
            power=rng.gauss(700, 2),
        )
        for i in range(40)
    ]
    parts[7] = replace(parts[7], value=90.0, sensors=sensors)

    (outlier,) = judge_metric(NAME, parts, FLOOR, "low").outliers

    assert outlier.cause.startswith(cause)
    assert bool(outlier.cause) == bool(cause)


@pytest.mark.parametrize(
    ("temperature", "cause"),
    [
        (90.0, "throttles by heat"),
        (66.0, "limited by heat, power or software"),
        (54.0, "limited by power or software"),
    ],
)
def test_a_part_that_is_warmer_than_its_low_power_explains_may_be_held_back_by_heat(
    temperature: float, cause: str
) -> None:
    """Where temperatures differ by 8 °C, a cool part that is 15 °C too hot does not stand out."""
    rng = random.Random(1)
    parts = [
        make_part(
            i,
            rng.gauss(100, 0.3),
            clock=rng.gauss(1700, 3),
            temperature=rng.gauss(60, 8),
            power=rng.gauss(700, 2),
        )
        for i in range(40)
    ]
    sensors = {"clock": 1500.0, "temperature": temperature, "power": 616.0}
    parts[7] = replace(parts[7], value=90.0, sensors=sensors)

    (outlier,) = judge_metric(NAME, parts, FLOOR, "low").outliers

    assert outlier.cause.split(": ")[0] == cause


def test_a_metric_of_whole_nodes_names_the_node() -> None:
    rng = random.Random(1)
    parts = [replace(make_part(i, rng.gauss(100, 0.3)), part=NODE_PART) for i in range(40)]
    parts[7] = replace(parts[7], value=90.0)
    (outlier,) = judge_metric(NAME, parts, FLOOR, "low").outliers
    assert (outlier.level, outlier.name) == ("node", "n7")
