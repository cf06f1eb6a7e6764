"""Which nodes differ from their peers, and what is a rollout and no fault."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcverify.fleet.rollouts import ROLLOUT_WINDOW_S
from hpcverify.fleet.states import DAY_S, HOUR_S
from hpcverify.insight.drift import (
    LONG_CHARACTERS,
    MAX_LINE_FACTS,
    STALE_S,
    Deviation,
    Drift,
    compare_nodes,
    gather_node_facts,
    keep_nodes,
    list_drift_lines,
    summarize_drift,
)
from hpcverify.records.reported_facts import ReportedFacts
from hpcverify.units import convert_time

NOW = 1_800_000_000.0
H100 = {"system": "Supermicro SYS-821GE", "CPU": "2 x Xeon 8480", "GPU": "NVIDIA H100"}
OLD, NEW = "570.86.15", "575.51.03"


def make_told(
    node: str, facts: Mapping[str, str], first: float = 30, last: float = 0.1, source: str = "parts"
) -> ReportedFacts:
    """Let *node* tell *facts* from *first* to *last* days ago."""
    return ReportedFacts(
        node=node,
        source=source,
        first=NOW - first * DAY_S,
        last=NOW - last * DAY_S,
        facts=H100 | {name.replace("_", " "): value for name, value in facts.items()},
    )


def tell(
    node: str, first: float = 30, last: float = 0.1, source: str = "parts", **facts: str
) -> ReportedFacts:
    """Let *node* tell *facts*, given by keyword."""
    return make_told(node, facts, first, last, source)


def name_nodes(count: int, start: int = 1) -> list[str]:
    return [f"gpu{i:03d}" for i in range(start, start + count)]


def stay(nodes: Iterable[str], **facts: str) -> list[ReportedFacts]:
    """Let *nodes* tell the same for a month."""
    return [make_told(node, facts) for node in nodes]


def move(
    nodes: Iterable[str], days: float, old: str = OLD, new: str = NEW, name: str = "GPU_driver"
) -> list[ReportedFacts]:
    """Let *nodes* change from *old* to *new* that many *days* ago."""
    return [
        row
        for node in nodes
        for row in (
            make_told(node, {name: old}, last=days + 0.2),
            make_told(node, {name: new}, first=days),
        )
    ]


def compare(told: Iterable[ReportedFacts], out_of_service: Iterable[str] = ()) -> Drift:
    ordered = sorted(told, key=lambda row: row.last)
    return compare_nodes(gather_node_facts(ordered, set(out_of_service)), NOW)


def describe(drift: Drift) -> list[tuple[str, str, str]]:
    return [(line.kind, line.hosts, line.text) for line in list_drift_lines(drift, NOW)]


def test_a_node_that_differs_from_the_majority_is_named_with_both_values() -> None:
    drift = compare([*stay(name_nodes(63), GPU_driver=OLD), tell("gpu064", GPU_driver="565.57")])
    assert describe(drift) == [
        ("differs", "gpu064", "GPU driver 565.57, not 570.86.15 as on 63 of 64")
    ]


def test_a_fleet_of_one_mind_says_nothing() -> None:
    assert compare(stay(name_nodes(64), GPU_driver=OLD, BIOS="2.1")) == Drift()


@pytest.mark.parametrize(("moved", "behind"), [(41, 23), (63, 1), (7, 57)])
def test_nodes_that_are_not_updated_yet_are_behind_a_rollout_and_do_not_deviate(
    moved: int, behind: int
) -> None:
    names = name_nodes(64)
    drift = compare([*move(names[:moved], days=3), *stay(names[moved:], GPU_driver=OLD)])

    (rollout,) = drift.rollouts
    assert (rollout.before, rollout.after, rollout.count, rollout.total) == ((OLD,), NEW, moved, 64)
    assert (rollout.behind, len(rollout.behind)) == (tuple(names[moved:]), behind)
    assert not drift.deviations


def test_a_change_on_all_nodes_at_once_is_a_rollout() -> None:
    drift = compare(move(name_nodes(64), days=0.5))
    assert describe(drift) == [
        ("rollout", "", f"GPU driver from {OLD} to {NEW}: all 64 nodes, 12 h ago")
    ]


def test_a_rollout_is_over_two_weeks_after_the_last_node_and_then_the_rest_deviates() -> None:
    names = name_nodes(64)
    days = ROLLOUT_WINDOW_S / DAY_S + 1
    drift = compare([*move(names[:60], days), *stay(names[60:], GPU_driver=OLD)])
    assert not drift.rollouts
    assert [one.nodes for one in drift.deviations] == [tuple(names[60:])]


def test_one_node_that_moved_away_alone_deviates() -> None:
    names = name_nodes(64)
    drift = compare([*move(names[:1], days=2), *stay(names[1:], GPU_driver=OLD)])

    assert not drift.rollouts
    ((kind, hosts, text),) = describe(drift)
    assert (kind, hosts) == ("differs", "gpu001")
    assert text == f"GPU driver {NEW}, not {OLD} as on 63 of 64, changed 2 days ago"


def test_a_few_nodes_that_are_kept_newer_on_purpose_are_told_together() -> None:
    names = name_nodes(64)
    newer = {"GPU_driver": NEW, "kernel": "6.8.0-50", "CUDA_toolkit": "12.9"}
    usual = {"GPU_driver": OLD, "kernel": "6.8.0-40", "CUDA_toolkit": "12.8"}
    drift = compare([*stay(names[:4], **newer), *stay(names[4:], **usual)])

    ((kind, hosts, text),) = describe(drift)
    assert (kind, hosts) == ("differs", "gpu[001-004]")
    assert text.split("; ") == [
        f"GPU driver {NEW}, not {OLD} as on 60 of 64",
        "kernel 6.8.0-50, not 6.8.0-40 as on 60 of 64",
        "CUDA toolkit 12.9, not 12.8 as on 60 of 64",
    ]
    assert summarize_drift(drift) == "4 nodes differ from their peers"


def test_a_fleet_half_and_half_has_no_majority_and_nobody_deviates() -> None:
    names = name_nodes(23)
    drift = compare([*stay(names[:12], BIOS="2.1"), *stay(names[12:], BIOS="2.3")])

    assert not drift.deviations
    assert describe(drift) == [
        ("no majority", "", "BIOS: 2.1 on 12 (gpu[001-012]), 2.3 on 11 (gpu[013-023])")
    ]


def test_what_each_node_has_for_itself_is_no_version() -> None:
    drift = compare([tell(name, label=f"of {name}") for name in name_nodes(20)])
    assert drift == Drift()


def test_racks_differ_in_their_nvlink_domain_and_a_tray_that_is_in_none_by_its_clique() -> None:
    # NMX-C's default partition is 32766 in each domain (NMX-C gRPC API, partitionId).
    racks = [
        *stay(name_nodes(18), NVLink_domain="00000001-a", NVLink_clique="32766"),
        *stay(name_nodes(5, start=19), NVLink_domain="00000002-a", NVLink_clique="32766"),
    ]
    assert compare(racks) == Drift()
    outside = stay(["gpu024"], NVLink_domain="none", NVLink_clique="0")
    (odd,) = compare([*racks, *outside]).deviations
    assert (odd.name, odd.value, odd.majority, odd.nodes) == (
        *("NVLink clique", "0", "32766"),
        ("gpu024",),
    )


def test_only_like_nodes_are_compared() -> None:
    others = [
        ReportedFacts(
            node=f"cpu{i}",
            source="parts",
            first=NOW - DAY_S,
            last=NOW - HOUR_S,
            facts={"system": "Dell R760", "BIOS": "9.9", "kernel": "6.8"},
        )
        for i in range(2)
    ]
    drift = compare([*stay(name_nodes(64), BIOS="2.1", kernel="6.9"), *others])

    assert drift == Drift(uncompared=("cpu0", "cpu1"))


def test_nodes_of_which_nobody_knows_what_they_are_are_not_compared() -> None:
    told = [
        ReportedFacts(
            node=name,
            source="bmc chassis",
            first=NOW - DAY_S,
            last=NOW - HOUR_S,
            facts={"BIOS SMT (bmc)": "on" if name == "gpu001" else "off"},
        )
        for name in name_nodes(5)
    ]

    assert compare(told) == Drift(uncompared=tuple(name_nodes(5)))


def test_a_node_out_of_service_does_not_count_and_is_listed() -> None:
    names = name_nodes(5)
    told = [*stay(names[:2], BIOS="2.1"), *stay(names[2:], BIOS="1.9")]
    drift = compare(told, out_of_service=names[2:])

    assert drift.uncompared == tuple(names)  # two in service are too few

    more = [*told, *stay(name_nodes(1, start=6), BIOS="2.1")]
    (one,) = compare(more, out_of_service=names[2:]).deviations
    assert (one.majority, one.count, one.total) == ("2.1", 3, 3)
    assert one.nodes == one.uncounted == tuple(names[2:])
    ((_, hosts, _),) = describe(compare(more, out_of_service=names[2:]))
    assert hosts == "gpu[003-005] (out of service or not heard of lately)"


def test_a_node_that_told_nothing_for_long_does_not_count() -> None:
    days = STALE_S / DAY_S + 1
    silent = [tell(name, last=days, BIOS="1.9") for name in name_nodes(9, start=10)]
    (one,) = compare([*stay(name_nodes(4), BIOS="2.1"), *silent]).deviations
    assert (one.value, one.total) == ("1.9", 4)
    assert one.nodes == one.uncounted


def test_a_rollout_in_two_steps_leaves_nobody_deviating() -> None:
    names = name_nodes(30)
    told = [
        *move(names[:12], days=1, old="B", new="C"),
        *move(names[12:20], days=6, old="A", new="B"),
        *stay(names[20:], GPU_driver="A"),
    ]
    (rollout,), deviations = (drift := compare(told)).rollouts, drift.deviations

    assert (rollout.after, set(rollout.behind)) == ("C", set(names[12:]))
    assert not deviations


def test_what_jobs_switch_to_and_fro_is_no_rollout() -> None:
    names = name_nodes(40)
    told = [
        *move(names[:12], 1, "performance", "powersave", "CPU_governor"),
        *move(names[12:], 1, "powersave", "performance", "CPU_governor"),
    ]
    drift = compare(told)

    assert not drift.rollouts
    assert [(one.value, len(one.nodes)) for one in drift.deviations] == [("powersave", 12)]


def test_a_rollout_that_was_taken_back_is_one_to_the_old_version() -> None:
    nodes = name_nodes(10)
    rows = [
        row
        for node in nodes
        for row in (tell(node, last=0.1, kernel="A"), tell(node, 4, 2, kernel="B"))
    ]
    (rollout,) = compare(rows).rollouts

    assert (rollout.before, rollout.after, rollout.count) == (("B",), "A", 10)


def test_a_driver_that_was_not_loaded_for_a_while_is_no_change() -> None:
    nodes = name_nodes(10)
    told = [
        *stay(nodes, GPU_driver=OLD),
        *(tell(node, first=5, last=4, BIOS="2") for node in nodes[:9]),
    ]
    drift = compare(told)

    assert not drift.rollouts
    assert not drift.deviations


def test_new_nodes_with_the_new_version_count_for_the_rollout() -> None:
    names = name_nodes(20)
    told = [
        *move(names[:10], days=2),
        *stay(names[10:16], GPU_driver=OLD),
        *(tell(name, first=1, GPU_driver=NEW) for name in names[16:]),
    ]
    (rollout,) = compare(told).rollouts

    assert (rollout.count, rollout.total, len(rollout.behind)) == (14, 20, 6)


def test_sources_that_speak_at_other_times_are_put_together() -> None:
    names = name_nodes(4)
    told = [
        *stay(names, BIOS="2.1"),
        *(tell(name, last=3, source="gpu_setup", GPU_InfoROM="G520") for name in names[:3]),
        tell("gpu004", last=3, source="gpu_setup", GPU_InfoROM="G510"),
    ]
    (one,) = compare(told).deviations

    assert (one.name, one.value, one.nodes) == ("GPU InfoROM", "G510", ("gpu004",))


def test_a_node_that_is_down_does_not_count_though_its_bmc_answers() -> None:
    names = name_nodes(5)
    down = STALE_S / DAY_S + 1
    told = [
        *stay(names[:4], BIOS="2.1"),
        tell(names[4], last=down, BIOS="1.9"),
        *(tell(name, source="bmc chassis", BMC_firmware="1.04") for name in names),
    ]
    drift = compare(told)

    assert [(one.name, one.uncounted) for one in drift.deviations] == [("BIOS", (names[4],))]


def test_a_change_that_two_sources_tell_is_one_change() -> None:
    names = name_nodes(20)
    twice = [
        row
        for source in ("parts", "bmc chassis")
        for name in names[:2]
        for row in (
            make_told(name, {"BIOS": "1"}, last=2, source=source),
            make_told(name, {"BIOS": "2"}, first=1.9, source=source),
        )
    ]
    drift = compare([*twice, *stay(names[2:], BIOS="1")])

    assert not drift.rollouts  # two nodes of twenty are too few
    assert [one.nodes for one in drift.deviations] == [tuple(names[:2])]


def test_of_a_long_value_only_the_words_that_differ_are_told() -> None:
    names = name_nodes(10)
    usual = "iommu=pt nouveau.modeset=0 pci=realloc quiet transparent_hugepage=madvise rw"
    odd = usual.replace("iommu=pt ", "").replace("quiet", "quiet mitigations=off")
    assert len(usual) > LONG_CHARACTERS

    ((*_, text),) = describe(
        compare([*stay(names[1:], command_line=usual), tell("gpu001", command_line=odd)])
    )
    assert text == "command line with mitigations=off and without iommu=pt, unlike 9 of 10"

    ((*_, text),) = describe(compare(move(names, 1, usual, odd, "command_line")))
    assert text.startswith("command line with mitigations=off and without iommu=pt: all 10 nodes")


def test_of_a_bios_that_was_reset_the_first_settings_are_told_and_the_others_counted() -> None:
    usual = {f"setting {i}": "Enabled" for i in range(300)}
    names = name_nodes(10)
    told = [make_told(name, usual) for name in names[1:]]
    ((_, hosts, text),) = describe(
        compare([*told, make_told(names[0], dict.fromkeys(usual, "Auto"))])
    )

    assert hosts == names[0]
    assert text.count("Auto, not Enabled as on 9 of 10") == MAX_LINE_FACTS
    assert text.endswith("; and 292 more: hpcverify nodes --json")


def test_of_one_node_is_told_what_is_about_it() -> None:
    names = name_nodes(20)
    told = [
        *move(names[:10], days=2),
        *stay(names[10:], GPU_driver=OLD),
        *(tell(name, source="inventory", SMT="on") for name in names[:18]),
        *(tell(name, source="inventory", SMT="off") for name in names[18:]),
    ]
    drift = compare(told)

    kept = keep_nodes(drift, {"gpu020"})
    assert [one.behind for one in kept.rollouts] == [("gpu020",)]
    assert [(one.name, one.nodes, one.count) for one in kept.deviations] == [
        ("SMT", ("gpu020",), 18)
    ]
    assert keep_nodes(drift, {"gpu001"}) == Drift()


VALUES = st.sampled_from(["A", "B", "C"])
HISTORIES = st.lists(st.lists(VALUES, min_size=1, max_size=4), min_size=1, max_size=24)


def write_history(histories: list[list[str]], days: float) -> list[ReportedFacts]:
    """Let each node have the values of its history, one after the other, *days* apart."""
    return [
        tell(
            name,
            first=days * (len(values) - place) + 0.1,
            last=days * (len(values) - place - 1) + 0.2,
            BIOS=value,
        )
        for name, values in zip(name_nodes(len(histories)), histories, strict=True)
        for place, value in enumerate(values)
    ]


@given(HISTORIES, st.sampled_from([0.5, 3.0]), st.randoms())
def test_every_node_is_in_one_place_whatever_its_fleet_went_through(
    histories: list[list[str]], days: float, chance: random.Random
) -> None:
    told = write_history(histories, days)
    drift = compare(told)
    usual = {one.after for one in drift.rollouts} | {one.majority for one in drift.deviations}
    behind = [node for one in drift.rollouts for node in one.behind]
    odd = [node for one in drift.deviations for node in one.nodes]

    assert len(usual) <= 1
    assert len({*behind, *odd}) == len(behind) + len(odd)
    assert not (drift.splits and (drift.rollouts or drift.deviations))
    for one in drift.rollouts:
        assert one.count + len(behind) + len(odd) == one.total == len(histories)
    for other in drift.deviations:
        assert other.value != other.majority
        assert drift.rollouts or 3 * other.count >= 2 * other.total
    # The order in which nodes are listed decides nothing.
    names = name_nodes(len(histories))
    chance.shuffle(names)
    renamed = dict(zip(name_nodes(len(histories)), names, strict=True))
    again = compare(
        [
            ReportedFacts(
                node=renamed[t.node], source=t.source, first=t.first, last=t.last, facts=t.facts
            )
            for t in told
        ]
    )
    assert summarize_drift(again) == summarize_drift(drift)


@given(st.integers(3, 200), st.floats(0.05, 13), st.floats(0, 1))
def test_a_change_of_a_whole_fleet_is_told_once_and_accuses_nobody(
    count: int, days: float, spread: float
) -> None:
    names = name_nodes(count)
    told = [
        row
        for place, name in enumerate(names)
        for row in move([name], days * (1 - spread * place / count))
    ]
    drift = compare(told)

    assert [one.count for one in drift.rollouts] == [count]
    assert not drift.deviations
    assert not drift.splits


@given(st.integers(3, 200))
def test_a_node_that_leaves_its_fleet_alone_is_never_a_rollout(count: int) -> None:
    drift = compare([*move(["odd"], 1), *stay(name_nodes(count), GPU_driver=OLD)])
    assert not drift.rollouts
    assert [one.nodes for one in drift.deviations] == [("odd",)]


def test_a_large_fleet_in_which_every_tenth_node_differs_is_told_in_a_few_lines() -> None:
    usual = H100 | {f"fact {i}": f"version {i}" for i in range(60)}
    before = usual | {"fact 1": "version 0"}
    told: list[ReportedFacts] = []
    for place, name in enumerate(name_nodes(3000)):
        odd = {f"fact {place % 60}": f"odd {place % 7}"} if place % 10 == 0 else {}
        told += (
            ReportedFacts(
                node=name, source="parts", first=NOW - first, last=NOW - last, facts=facts
            )
            for first, last, facts in ((9e5, 3e5, before), (2e5, 100, {**usual, **odd}))
        )
    drift = compare(told)

    assert [one.count for one in drift.rollouts] == [3000]
    assert sum(len(one.nodes) for one in drift.deviations) == 300
    assert len(list_drift_lines(drift, NOW)) == 1 + 6 * 7  # six facts, seven odd values


def test_a_deviation_says_who_changed_lately() -> None:
    names = name_nodes(10)
    drift = compare([*move(names[:1], days=1), *stay(names[1:], GPU_driver=OLD)])

    assert drift.deviations == (
        Deviation(
            name="GPU driver",
            value=NEW,
            majority=OLD,
            count=9,
            total=10,
            nodes=("gpu001",),
            since=convert_time(NOW - DAY_S),
        ),
    )
