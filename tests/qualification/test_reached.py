"""Lines for the table come from good parts at their default power limit, and fit the table."""

from __future__ import annotations

import csv
from pathlib import Path

import msgspec

from hpcverify.limits import specs
from hpcverify.model import Finding, Measurement, Run, Verdict
from hpcverify.qualification import (
    QualificationStep,
    StepReport,
    build_qualification,
    collect_figures,
    find_held_back,
    list_reached,
    read_run,
)
from tests.qualification.samples import INVENTORY, STARTED, a_result, a_run, measure_all

TABLE = Path(specs.__file__).with_name("gpu_reached.csv")
RATES = (700e3, 712e3, 690e3, 720e3)


def reached(run: Run, held_back: frozenset[str] = frozenset()) -> tuple[list[str], list[str]]:
    return list_reached(run, collect_figures(run), held_back, "0.1.0")


def products(verdict: Verdict = Verdict.PASS) -> Run:
    found = measure_all("bf16.sustained", RATES, "GFLOP/s")
    return a_run(a_result("gemm", *found, verdict=verdict))


def test_a_line_says_by_what_when_and_with_which_driver_it_was_measured() -> None:
    source = "measured by hpcverify 0.1.0 on 2026-11-22, driver 565.57.01: median of 4 GPUs"
    line = f'h100-sxm5-80gb,bf16,sustained,706,TFLOP/s,A,"{source}"'
    assert reached(products()) == ([line], [])


def test_a_line_has_the_columns_of_the_table_and_its_units() -> None:
    heads, *rows = csv.reader(TABLE.read_text().splitlines())
    run = a_run(
        a_result("gemm", *measure_all("int8.burst", RATES, "GOP/s")),
        a_result("gpu_memory", *measure_all("memory.copy", [3000] * 4, "GB/s")),
        a_result("p2p", *measure_all("p2p.write", [380] * 4, "GB/s")),
        a_result("allreduce", Measurement("ring.busbw", 370.0, "GB/s")),
    )
    lines, reasons = reached(run)

    assert (len(lines), reasons) == (4, [])
    for line in csv.reader(lines):
        assert len(line) == len(heads)
        assert {row[4] for row in rows if row[1] == line[1]} <= {line[4]}


def test_a_check_that_failed_gives_no_line_and_says_so() -> None:
    why = "gemm did not pass, so its figures are not from a good part"
    assert reached(products(Verdict.FAIL)) == ([], [why])


def test_lines_of_a_node_that_failed_a_step_are_hints_and_say_so() -> None:
    steps = [
        QualificationStep(name=name, question="", budget=60) for name in ("products", "corruption")
    ]
    failed = StepReport(step=steps[1], verdict=Verdict.FAIL)
    reports = [read_run(steps[0], products()), failed]
    report = build_qualification(INVENTORY, reports, STARTED, 60, complete=True)

    assert [line.split(",")[5] for line in report.reached] == ["C"]
    assert "corruption" in report.not_reached[-1]


def test_gpus_below_their_power_limit_give_no_line_and_the_fix_is_told() -> None:
    capped = a_result("gpu_setup", Finding("power_capped", "GPU-2", "power limit set to 500 W"))
    lines, (why,) = reached(products(), find_held_back(a_run(capped)))

    assert lines == []
    assert "GPU 2" in why
    assert "nvidia-smi -pl 700" in why


def test_a_part_that_is_not_in_the_table_gives_no_line() -> None:
    parts = tuple(
        msgspec.structs.replace(p, facts={"name": "NVIDIA X1"}) if p.kind == "gpu" else p
        for p in INVENTORY.parts
    )
    run = msgspec.structs.replace(
        products(), inventory=msgspec.structs.replace(INVENTORY, parts=parts)
    )

    assert reached(run) == ([], ["bf16.sustained: NVIDIA X1 is not in the table of parts"])


def test_what_the_table_has_no_rows_for_gives_no_line() -> None:
    run = a_run(a_result("p2p", *measure_all("mesh.write", [380] * 4, "GB/s")))

    assert reached(run) == ([], [])
