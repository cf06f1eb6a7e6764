"""The past of a node: what came of its runs, and what has moved."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from hpcverify.model import Result, Run
from hpcverify_reports.history import MAX_SHOWN_RUNS, MIN_EARLIER_VALUES, History, build_history
from tests.reports import samples


def history(count: int = 12, run: Run | None = None) -> History:
    return built(run or samples.run(samples.gemm()), samples.past(count))


def built(run: Run, others: Sequence[Run]) -> History:
    made = build_history(run, others)
    assert made is not None
    return made


def test_without_earlier_runs_there_is_no_section() -> None:
    run = samples.well_node()
    later = replace(samples.past(1)[0], started=samples.STARTED.replace(year=2027))

    assert build_history(run, []) is None
    assert build_history(run, [run, later]) is None


def test_runs_are_listed_newest_first_and_the_rest_counted() -> None:
    made = history(MAX_SHOWN_RUNS + 5)

    days = [run.started for run, _, _ in made.runs]
    assert days == sorted(days, reverse=True)
    assert len(days) == MAX_SHOWN_RUNS
    assert made.older == 5


def test_what_moved_most_comes_first_with_its_part() -> None:
    first = history().trends[0]

    assert (first.name, first.part) == ("bf16.sustained", "GPU 3 (…4f21)")
    assert first.last == "612 TFLOP/s"
    assert first.change.startswith("\N{MINUS SIGN}17")
    assert first.count == 12


def test_each_judged_metric_is_listed_once() -> None:
    names = [moved.name for moved in history().trends]

    assert len(names) == len(set(names)) == 6
    assert "bf16.spread" not in names


def test_a_metric_that_never_changed_is_not_listed() -> None:
    still = built(samples.well_node(), samples.past())
    names = {moved.name for moved in still.trends}

    assert "rows.pending" not in names
    assert "bf16.sustained" in names


def test_too_few_runs_give_no_median() -> None:
    assert history(MIN_EARLIER_VALUES - 1).trends == ()
    assert history(MIN_EARLIER_VALUES).trends != ()


def test_runs_of_another_suite_are_listed_and_not_compared() -> None:
    made = history(run=replace(samples.run(samples.gemm()), suite="burnin"))

    assert len(made.runs) == 12
    assert made.trends == ()


def test_one_odd_run_does_not_spoil_the_median() -> None:
    past = samples.past()
    odd = [replace(samples.run(samples.gemm(drift=0.01)), id="odd"), *past]
    odd[0] = replace(odd[0], started=past[0].started)
    well = samples.well_node()

    moved = built(well, odd).trends

    medians = {m.name: float(m.median.split()[0]) for m in moved}
    assert 700 < medians["bf16.sustained"] < 800


def test_a_run_in_which_nothing_was_judged_is_only_listed() -> None:
    made = history(run=samples.run(samples.allreduce()))

    assert len(made.runs) == 12
    assert made.trends == ()


def test_a_run_of_several_rounds_is_one_value_its_median() -> None:
    run = samples.worn_node(5)
    past = [
        replace(p, suite=run.suite, rounds=2, results=(*p.results, *_again(p)))
        for p in samples.past()
    ]
    moved = built(run, past).trends
    by_name = {m.name: m for m in moved}

    assert {m.count for m in moved} == {12}
    # Of the five rounds only the last one is slow.
    assert by_name["bf16.sustained"].last != "612 TFLOP/s"


def _again(run: Run) -> list[Result]:
    return [replace(result, round=2) for result in run.results]


def test_a_check_that_decided_is_named_once_however_many_rounds() -> None:
    worn = samples.worn_node()
    twice = replace(worn, id="before", results=(*worn.results, *_again(worn)))
    made = built(samples.well_node(), [twice])

    assert made.runs[0][2] == "gemm"
