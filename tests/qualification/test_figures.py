"""A figure is the median of like GPUs, beside what it is held against."""

from __future__ import annotations

from hpcverify.check import Trial
from hpcverify.model import Finding, FindingRule, Measurement, Verdict
from hpcverify.qualification import (
    MeasuredFigure,
    collect_figures,
    collect_times,
    count_alarms,
    count_trials,
)
from hpcverify.run.selftest import SelftestResult
from tests.qualification.samples import GPUS, a_result, a_run, measure_all

RATES = (700e3, 712e3, 690e3, 720e3)


def find(figures: list[MeasuredFigure], quantity: str) -> MeasuredFigure:
    (found,) = [figure for figure in figures if figure.quantity == quantity]
    return found


def test_a_figure_has_the_median_and_names_the_slowest_gpu() -> None:
    run = a_run(a_result("gemm", *measure_all("bf16.sustained", RATES, "GFLOP/s")))
    figure = find(list(collect_figures(run)), "bf16.sustained")

    assert (figure.median, figure.lowest, figure.highest) == (706e3, 690e3, 720e3)
    assert (figure.parts, figure.lowest_part) == (4, GPUS[2].label)


def test_gemm_stands_beside_the_bare_loop_and_the_data_sheet() -> None:
    run = a_run(
        a_result("gemm", *measure_all("bf16.sustained", RATES, "GFLOP/s")),
        a_result("bare_gemm", *measure_all("bf16.sustained", [710e3] * 4, "GFLOP/s")),
    )
    figures = list(collect_figures(run))

    assert len(figures) == 1  # the bare loop has no row of its own
    assert figures[0].compared[0] == ("bare loop", 710e3)
    assert figures[0].compared[1][0] == "data sheet"
    assert 980e3 < figures[0].compared[1][1] < 1000e3


def test_a_bus_bandwidth_of_the_node_stands_beside_nccl_tests() -> None:
    run = a_run(
        a_result("allreduce", Measurement("busbw.1GiB", 470.0, "GB/s")),
        a_result("nccl_tests", Measurement("busbw.1GiB", 476.0, "GB/s")),
    )
    (figure,) = collect_figures(run)

    assert (figure.model, figure.compared) == ("", (("nccl-tests", 476.0),))


def test_a_copy_stands_beside_its_link_and_the_power_of_the_soak_beside_tdp() -> None:
    run = a_run(
        a_result(
            "pcie_bandwidth",
            *measure_all("h2d", [55.0] * 4, "GB/s"),
            *measure_all("h2d.link", [63.0] * 4, "GB/s"),
        ),
        a_result("thermal", *measure_all("power.mean", [690.0] * 4, "W")),
    )
    figures = list(collect_figures(run))

    assert find(figures, "h2d").compared == (("link", 63.0),)
    assert find(figures, "power.mean").compared == (("TDP", 700.0),)


def test_replays_stand_beside_the_thousand_that_were_wanted() -> None:
    run = a_run(a_result("training", *measure_all("replays", [870] * 4, "")))

    assert next(collect_figures(run)).compared == (("requested", 1000),)


def test_a_quantity_of_the_sheet_in_another_unit_is_not_compared_with_it() -> None:
    run = a_run(a_result("exactness", *measure_all("bf16.wrong_products", [0] * 4, "")))

    assert next(collect_figures(run)).compared == ()


def test_the_time_of_a_suite_stands_beside_its_budget() -> None:
    run = a_run(a_result("gemm", seconds=34.0), a_result("xid", seconds=0.1), seconds=58.0)
    gemm, xid, whole = collect_times(run, 420)

    assert (gemm.median, xid.median, whole.median) == (34.0, 0.1, 58.0)
    assert (gemm.compared, whole.compared) == ((), (("budget", 420),))


def test_alarms_are_counted_in_all_products_with_their_bound() -> None:
    found = measure_all("products", [1000] * 4, "")
    (count,) = count_alarms(a_run(a_result("sdc", *found)))

    assert (count.what, count.events, count.tries) == ("products called wrong", 0, 4000)
    assert round(count.bound * 4000, 3) == 2.996


def test_what_accuses_is_an_alarm_and_what_is_listed_is_none() -> None:
    rulings = {
        "corruption": FindingRule(Verdict.FAIL),
        "note": FindingRule(Verdict.PASS),
    }
    result = a_result(
        "sdc",
        *measure_all("products", [1000] * 4, ""),
        Finding("corruption", "GPU-1", "a product was wrong"),
        Finding("note", "GPU-1", "for information"),
        rulings=rulings,
    )

    assert next(count_alarms(a_run(result))).events == 1


def test_answers_of_like_gpus_are_compared_within_the_same_work() -> None:
    digests = {"one": ("a", "a", "a", "b"), "two": ("c", "c", "c", "c")}
    answers = [
        Finding("answer", gpu.id, "its answer", data={"group": "h100", "name": n, "digest": d})
        for n, some in digests.items()
        for gpu, d in zip(GPUS, some, strict=True)
    ]
    (count,) = count_alarms(a_run(a_result("sdc", *answers)))

    assert (count.events, count.tries) == (1, 8)


def trial(fault: str, expected: str, outcome: str) -> Trial:
    return Trial(fault=fault, part_id="GPU-0", expected=expected, outcome=outcome)


def test_missed_faults_and_alarms_without_one_are_counted_apart() -> None:
    trials = (
        trial("bf16: none", "nothing found", "found: compute"),
        trial("bf16: a flipped bit", "found: compute", "nothing found"),
        trial("bf16: two tiles swapped", "found: compute", "found: compute"),
        trial("bf16: control, no proof", "nothing found", "nothing found"),
    )
    missed, alarms = count_trials([SelftestResult(check="sdc", trials=trials, shortfalls=())])

    assert (missed.events, missed.tries) == (1, 2)
    assert (alarms.events, alarms.tries) == (1, 1)
