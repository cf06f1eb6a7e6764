"""Equal faults are grouped: what counts as equal, and what may have one cause."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from hpcverify.check import add_faults
from hpcverify.fleet.states import State
from hpcverify.insight.overview import build_overview
from hpcverify.model import (
    Cause,
    Fault,
    Finding,
    FindingRule,
    Inventory,
    Limit,
    Measurement,
    Part,
    Remedy,
    Result,
    Shortfall,
    Verdict,
)
from hpcverify.testing import judge_by
from hpcverify_reports.faults import FaultGroup, group_faults
from tests.reports.fleets import NOW, bad, list_last, name_of, said, well
from tests.summary.test_diagnosis import measure

NODE = Inventory(
    parts=(
        *(Part("gpu", f"gpu-{i}", f"GPU {i}") for i in range(8)),
        Part("dimm", "a1", "DIMM_A1"),
        Part("dimm", "b2", "P1-DIMMB2"),
        Part("cpu", "cpu", "CPU"),
    )
)
RULINGS = {
    "gone": FindingRule(Verdict.FAIL, Remedy.REBOOT, shared=True),
    "differs": FindingRule(Verdict.FAIL, Remedy.REBOOT),
    "corrected": FindingRule(Verdict.FAIL, Remedy.REBOOT),
}
LIMITS = [Limit(name="*", low=700.0, high=1e6, source="spec", remedy=Remedy.REBOOT)]
Found = list[Measurement | Finding]


def value(metric: str, value: float | None, part_id: str = "gpu-3") -> Found:
    return [Measurement(metric, value, "TFLOP/s", part_id)]


def findings(code: str, text: str, *part_ids: str) -> Found:
    return [Finding(code, part_id, text) for part_id in part_ids]


def complain(found: Found, check: str = "gemm") -> tuple[Fault, ...]:
    limits = LIMITS if any(isinstance(item, Measurement) for item in found) else ()
    return judge_by(found, limits, RULINGS, NODE, check).faults


def group(*found: Found, well_too: int = 0) -> tuple[FaultGroup, ...]:
    """Group the faults of nodes on which this was *found*, among some that passed."""
    names = [name_of(i) for i in range(len(found) + well_too)]
    runs = [said(name) for name in names[len(found) :]]
    runs += [
        bad(name, "gemm", Verdict.FAIL, Remedy.REBOOT, "", complain(each))
        for name, each in zip(names, found, strict=False)
    ]
    nodes = {name: well(name) for name in names}
    return group_faults(build_overview(nodes, (), runs, now=NOW).rows)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (value("bf16", 612.0), value("bf16", 598.5, "gpu-0")),
        (value("loss", None), value("loss", 9.0, "gpu-2")),
        (findings("gone", "Xid 79", "gpu-1"), findings("gone", "Xid 79", "gpu-7")),
        (
            findings("gone", "Xid 79", *(f"gpu-{i}" for i in range(8))),
            findings("gone", "Xid 79", "gpu-3"),
        ),
        (findings("differs", "1 word", "gpu-1"), findings("differs", "3 words", "gpu-1", "gpu-2")),
        (findings("corrected", "3 errors", "a1"), findings("corrected", "1 error", "b2")),
    ],
)
def test_faults_that_differ_in_parts_and_numbers_are_equal(first: Found, second: Found) -> None:
    (fault,) = group(first, second)

    assert len(fault.sightings) == 2


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (value("bf16.burst", 6.0), value("bf16.sustained", 6.0)),
        (findings("differs", "words", "gpu-1"), findings("corrected", "words", "gpu-1")),
        (value("temperature", 9.0, "gpu-1"), value("temperature", 9.0, "cpu")),
    ],
)
def test_faults_of_other_metrics_codes_or_kinds_of_part_are_kept_apart(
    first: Found, second: Found
) -> None:
    assert len(group(first, second)) == 2


def test_one_fault_with_two_remedies_is_two() -> None:
    (worn,) = complain(findings("differs", "no spare rows", "gpu-1"), "ecc")
    runs = [
        bad(name, "ecc", Verdict.FAIL, remedy, "no spare rows", (replace(worn, remedy=remedy),))
        for name, remedy in (("n1", Remedy.REPLACE), ("n2", Remedy.REBOOT))
    ]
    nodes = {name: well(name) for name in ("n1", "n2")}

    assert len(group_faults(build_overview(nodes, (), runs, now=NOW).rows)) == 2


def test_several_checks_that_meet_a_lost_gpu_are_one_fault() -> None:
    checks = ("ecc", "nvlink", "pcie")
    lost = [
        judge_by(findings("gone", f"it is lost, says {check}", "gpu-2"), (), RULINGS, NODE, check)
        for check in checks
    ]
    runs = list_last("n1", *lost)
    slow = complain(value("width", 8.0, "gpu-1"), "pcie")
    runs.append(bad("n2", "pcie", Verdict.FAIL, Remedy.REBOOT, "", slow))
    nodes = {name: well(name) for name in ("n1", "n2")}
    faults = group_faults(build_overview(nodes, (), runs, now=NOW).rows)

    assert {fault.checks for fault in faults} == {checks, ("pcie",)}


def test_a_slow_gpu_is_one_fault_and_the_same_on_another_node_with_other_losses() -> None:
    runs = [
        *list_last("n1", *measure({"gpu-3": 0.7}).results),
        *list_last("n2", *measure({"gpu-6": 0.5}).results),
    ]
    nodes = {name: well(name) for name in ("n1", "n2")}
    (fault,) = group_faults(build_overview(nodes, (), runs, now=NOW).rows)

    assert {sighting.row.node.name for sighting in fault.sightings} == {"n1", "n2"}
    assert fault.checks == ("gemm", "gpu_memory", "p2p")


@pytest.mark.parametrize(("texts", "count"), [(("busy", "busy"), 1), (("no fio", "no NCCL"), 2)])
def test_checks_that_could_not_run_are_one_fault_if_they_say_the_same(
    texts: tuple[str, str], count: int
) -> None:
    results = [
        Result(
            check=check,
            verdict=Verdict.ERROR,
            shortfalls=(Shortfall("node", text, Cause.MISSING),),
        )
        for check, text in zip(("gemm", "storage"), texts, strict=True)
    ]
    runs = list_last("n1", *(add_faults(result, NODE) for result in results))

    faults = group_faults(build_overview({"n1": well("n1")}, (), runs, now=NOW).rows)
    assert len(faults) == count


def test_nodes_that_are_out_for_one_check_are_one_fault_though_no_result_says_why() -> None:
    sick = [
        replace(
            well(name), state=State.SUSPECT, checks=("gemm",), reason=f"gemm: GPU {i}: {600 + i}"
        )
        for i, name in enumerate(("n1", "n2"))
    ]
    rows = build_overview({node.name: node for node in sick}, (), (), now=NOW).rows
    (fault,) = group_faults(rows)

    assert len(fault.sightings) == 2
    assert {sighting.reason for sighting in fault.sightings} == {node.reason for node in sick}


def test_the_worst_fault_comes_first_and_then_that_of_the_most_nodes() -> None:
    slow = [value("bf16", 600.0 + i) for i in range(2)]
    counts = [len(fault.sightings) for fault in group(findings("differs", "", "gpu-0"), *slow)]

    assert counts == [2, 1]


@pytest.mark.parametrize(
    ("count", "well_too", "common"),
    [(3, 0, True), (2, 0, False), (3, 64, False), (50, 900, True), (49, 900, False)],
)
def test_a_common_cause_is_likely_if_very_many_nodes_have_the_fault(
    count: int, well_too: int, *, common: bool
) -> None:
    (fault,) = group(*[findings("differs", "1 word", "gpu-0")] * count, well_too=well_too)

    assert fault.common is common


def test_a_fault_is_named_by_its_metric_and_not_by_a_code() -> None:
    (slow,) = group(value("bf16.sustained", 600.0))
    (gone,) = group(findings("gone", "Xid 79", "gpu-1"))

    assert (slow.name, gone.name) == ("gemm bf16.sustained", "gemm")
