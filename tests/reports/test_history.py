"""The past of a node: what came of its runs, and what has moved."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from hpcverify.model import Result, Run
from hpcverify.units import DAY_SECONDS
from hpcverify_reports.history import (
    MAX_SHOWN_RUNS,
    MIN_EARLIER_VALUES,
    build_history,
    choose_dates,
)
from hpcverify_reports.tables import PageSection
from tests.reports import samples


def history(count: int = 12, run: Run | None = None) -> PageSection:
    return built(run or samples.run(samples.gemm()), samples.past(count))


def built(run: Run, others: Sequence[Run]) -> PageSection:
    made = build_history(run, others)
    assert made is not None
    return made


def trends(made: PageSection) -> list[dict[str, str]]:
    """List the metrics that moved, as head of the column -> text."""
    table = made.tables[0]
    heads = [column.head for column in table.columns]
    return [dict(zip(heads, (cell.text for cell in row.cells), strict=True)) for row in table.rows]


def runs(made: PageSection) -> list[list[str]]:
    """List the earlier runs: their cells."""
    return [
        [cell.text for cell in row.cells] for row in (*made.tables[1].rows, *made.tables[1].folded)
    ]


def test_without_earlier_runs_there_is_no_section() -> None:
    run = samples.well_node()
    later = replace(samples.past(1)[0], started=samples.STARTED.replace(year=2027))

    assert build_history(run, []) is None
    assert build_history(run, [run, later]) is None


def test_runs_are_listed_newest_first_and_the_rest_counted() -> None:
    made = history(MAX_SHOWN_RUNS + 5)

    days = [row[0] for row in runs(made)]
    assert days == sorted(days, reverse=True)
    assert len(days) == MAX_SHOWN_RUNS
    assert made.tables[1].caption.endswith("(plus 5 older runs)")


def test_a_metric_that_never_changed_is_not_listed() -> None:
    still = built(samples.well_node(), samples.past())
    names = {moved["Metric"] for moved in trends(still)}

    assert "ecc rows.pending" not in names
    assert "gemm bf16.sustained" in names


def test_too_few_runs_give_no_median() -> None:
    assert trends(history(MIN_EARLIER_VALUES - 1)) == []
    assert trends(history(MIN_EARLIER_VALUES)) != []


def test_runs_of_another_suite_are_listed_and_not_compared() -> None:
    made = history(run=replace(samples.run(samples.gemm()), suite="burnin"))

    assert len(runs(made)) == 12
    assert trends(made) == []


def test_one_odd_run_does_not_spoil_the_median() -> None:
    past = samples.past()
    odd = [replace(samples.run(samples.gemm(drift=0.01)), id="odd"), *past]
    odd[0] = replace(odd[0], started=past[0].started)
    well = samples.well_node()

    moved = trends(built(well, odd))

    medians = {m["Metric"]: float(m["Earlier median"].split()[0]) for m in moved}
    assert 700 < medians["gemm bf16.sustained"] < 800


def test_a_run_in_which_nothing_was_judged_is_only_listed() -> None:
    made = history(run=samples.run(samples.allreduce()))

    assert len(runs(made)) == 12
    assert trends(made) == []


def test_a_run_of_several_rounds_is_one_value_its_median() -> None:
    run = samples.worn_node(5)
    past = [
        replace(p, suite=run.suite, rounds=2, results=(*p.results, *_again(p)))
        for p in samples.past()
    ]
    moved = trends(built(run, past))
    by_name = {m["Metric"]: m for m in moved}

    assert {m["Earlier runs"] for m in moved} == {"12"}
    # Of the five rounds only the last one is slow.
    assert by_name["gemm bf16.sustained"]["This run"] != "612 TFLOP/s"


def _again(run: Run) -> list[Result]:
    return [replace(result, round=2) for result in run.results]


def test_a_check_that_decided_is_named_once_however_many_rounds() -> None:
    worn = samples.worn_node()
    twice = replace(worn, id="before", results=(*worn.results, *_again(worn)))
    made = built(samples.well_node(), [twice])

    assert runs(made)[0][2] == "gemm"


def test_dates_do_not_overlap_however_the_runs_are_spread() -> None:
    hours = [3600.0 * i for i in range(12)]
    nights = [DAY_SECONDS * i for i in (10, 11, 12, 13, 30, 31)]

    assert choose_dates(hours) == [0.0]
    assert choose_dates([*hours, *nights]) == [0.0, nights[0], nights[4]]
