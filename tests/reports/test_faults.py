"""Equal faults are grouped: what counts as equal, and what may have one cause."""

from __future__ import annotations

import pytest

from hpcverify.insight.overview import build_overview
from hpcverify.model import Remedy, Verdict
from hpcverify_reports.faults import Fault, extract_topic, group_faults, parse_metric
from tests.reports.fleets import NOW, bad, name_of, said, well

SLOW = "GPU {}: bf16.sustained {} TFLOP/s < 702.2 (0.71 of spec 989, H100 SXM5)"


def faults(*reasons: str, well_too: int = 0) -> tuple[Fault, ...]:
    """Group the faults of nodes that failed for *reasons*, among some that passed."""
    names = [name_of(i) for i in range(len(reasons) + well_too)]
    runs = [said(name) for name in names[len(reasons) :]]
    runs += [
        bad(name, "gemm", Verdict.FAIL, Remedy.REPLACE, reason)
        for name, reason in zip(names, reasons, strict=False)
    ]
    nodes = {name: well(name) for name in names}
    return group_faults(build_overview(nodes, (), runs, now=NOW).rows)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (SLOW.format("3 (…4f21)", 612), SLOW.format("0 (…9a0c)", 598.5)),
        ("GPU 1 (…a): Xid 79: it is gone", "GPU 7 (…b): Xid 79: it is gone"),
        ("GPU 1 (…a): 1 word differs", "GPU 1 (…a), GPU 2 (…b): 3 word differs"),
        ("all 8 GPUs: Xid 79: it is gone", "GPU 7 (…b): Xid 79: it is gone"),
        ("DIMM_A1: 3 errors that ECC corrected", "P1-DIMMB2: 1 errors that ECC corrected"),
        ("GPU 1: loss not a number", "GPU 2: loss 9 > 4 (us)"),
        ("GPU 4: crc.rate 186 1/s > 100 (DCGM)", "GPU 2: crc.rate 210 1/s > 100 (us)"),
    ],
)
def test_faults_that_differ_in_parts_and_numbers_are_equal(one: str, other: str) -> None:
    (fault,) = faults(one, other)

    assert len(fault.sightings) == 2


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("GPU 1: bf16.burst 6 TFLOP/s < 7", "GPU 1: bf16.sustained 6 TFLOP/s < 7"),
        ("GPU 1: 3 words differ", "GPU 1: 3 words are gone"),
        ("no nccl", ""),
    ],
)
def test_faults_of_other_metrics_or_words_are_kept_apart(one: str, other: str) -> None:
    assert len(faults(one, other)) == 2


def test_one_fault_with_two_remedies_is_two() -> None:
    runs = [
        bad("n1", "ecc", Verdict.FAIL, Remedy.REPLACE, "no spare rows"),
        bad("n2", "ecc", Verdict.FAIL, Remedy.REBOOT, "no spare rows"),
    ]
    nodes = {name: well(name) for name in ("n1", "n2")}

    assert len(group_faults(build_overview(nodes, (), runs, now=NOW).rows)) == 2


def test_several_checks_that_report_the_same_of_a_node_are_one_fault() -> None:
    lost = "node: GPU with NVML index 2: GPU is lost"
    runs = [
        bad("n1", check, Verdict.FAIL, Remedy.REBOOT, lost) for check in ("ecc", "nvlink", "pcie")
    ]
    runs.append(bad("n2", "pcie", Verdict.FAIL, Remedy.REBOOT, "GPU 1: it is slow"))
    nodes = {name: well(name) for name in ("n1", "n2")}
    found = group_faults(build_overview(nodes, (), runs, now=NOW).rows)

    assert {fault.checks for fault in found} == {("ecc", "nvlink", "pcie"), ("pcie",)}


def test_the_worst_fault_comes_first_and_then_that_of_the_most_nodes() -> None:
    slow = [SLOW.format(i, 600) for i in range(2)]
    counts = [len(fault.sightings) for fault in faults("1 word differs", *slow)]

    assert counts == [2, 1]


@pytest.mark.parametrize(
    ("count", "well_too", "common"),
    [(3, 0, True), (2, 0, False), (3, 64, False), (50, 900, True), (49, 900, False)],
)
def test_a_common_cause_is_likely_if_very_many_nodes_have_the_fault(
    count: int, well_too: int, *, common: bool
) -> None:
    (fault,) = faults(*["1 word differs"] * count, well_too=well_too)

    assert fault.common is common


def test_the_metric_is_read_from_a_complaint_about_a_limit() -> None:
    assert parse_metric(SLOW.format("3 (…4f21)", 612)) == "bf16.sustained"
    assert parse_metric("GPU 1: Xid 79 < 80 is odd") == ""
    assert extract_topic("GPU 0 (…a), GPU 5 (…b): reset it") == extract_topic(
        "GPU 7 (…c): reset it"
    )
