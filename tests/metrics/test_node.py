"""The text file of a run says of it what the table has, and nothing else."""

from __future__ import annotations

from inline_snapshot import external_file
from msgspec.structs import replace

from hpcverify.metrics.node import list_run_families, name_run_file
from hpcverify.metrics.table import NODE_METRICS
from hpcverify.metrics.text import render
from hpcverify.model import (
    Fault,
    FaultKind,
    Inventory,
    Maturity,
    Part,
    Remedy,
    Result,
    Run,
    Verdict,
)
from tests.doubles import a_result, a_run
from tests.metrics.reading import list_strays, read_samples

GPUS = tuple(Part("gpu", f"GPU-{i}-uuid", f"GPU {i}") for i in (0, 3))
NIC = Part("nic", "0000:17:00.0", "mlx5_1")


def complain(part: str, kind: str, name: str, verdict: Verdict = Verdict.FAIL) -> Fault:
    return Fault(
        kind=FaultKind.FINDING,
        part_id=part,
        part_kind=kind,
        check="ecc",
        code=name,
        text="it is bad",
        verdict=verdict,
        remedy=Remedy.REPLACE,
    )


def fail(check: str, *faults: Fault) -> Result:
    return a_result(check, verdict=Verdict.FAIL, faults=faults)


def write(run: Run) -> str:
    return render(list_run_families(run)).decode()


def make_run(*results: Result) -> Run:
    return a_run(
        suite="idle",
        verdict=Verdict.FAIL,
        inventory=Inventory(parts=(*GPUS, NIC)),
        results=results,
        versions={"hpcverify": "1.2.3"},
    )


RUN = make_run(
    fail("ecc", complain("GPU-3-uuid", "gpu", "dbe"), complain("0000:17:00.0", "nic", "down")),
    a_result("gemm", round=1),
    a_result("gemm", round=2, verdict=Verdict.WARN),
)


def test_every_metric_of_a_node_is_in_its_file_and_no_other() -> None:
    text = write(RUN)
    assert list_strays(text, NODE_METRICS) == []
    assert {*read_samples(text)} == {metric.name for metric in NODE_METRICS}


def test_the_file_of_a_run_reads_as_kept() -> None:
    """A verdict of all, dated by the end; a check by its worst round; a part without its id."""
    assert write(RUN) == external_file("run.prom", format=".txt")


def test_a_check_in_beta_can_do_no_more_than_warn() -> None:
    bad = fail("new", complain("GPU-3-uuid", "gpu", "dbe"))
    text = write(make_run(replace(bad, maturity=Maturity.BETA)))
    (finding,) = read_samples(text)["hpcverify_finding_info"]
    assert 'check="new",verdict="warn"' in text
    assert dict(finding)["verdict"] == "warn"


def test_a_finding_of_the_node_has_no_number() -> None:
    run = make_run(fail("host", complain("node", "", "oom")))
    (labels,) = read_samples(write(run))["hpcverify_finding_info"]
    assert (dict(labels)["kind"], dict(labels)["index"]) == ("node", "")


def test_a_remark_is_not_a_finding() -> None:
    run = make_run(fail("ecc", complain("GPU-0-uuid", "gpu", "note", Verdict.PASS)))
    assert 'kind="gpu"' not in write(run)


def test_a_finding_of_two_rounds_is_one_series() -> None:
    again = fail("ecc", complain("GPU-3-uuid", "gpu", "dbe"))
    assert [*read_samples(write(make_run(again, again)))["hpcverify_finding_info"].values()] == [1]


def test_each_suite_has_a_file_of_its_own_that_is_collected() -> None:
    assert name_run_file("idle") == "hpcverify_run_idle.prom"
    assert name_run_file("../../etc/x y") == "hpcverify_run_.._.._etc_x_y.prom"
