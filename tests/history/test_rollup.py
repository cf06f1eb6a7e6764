"""Old nights become weeks: nothing is lost on the way, and nothing counts twice."""

from __future__ import annotations

from datetime import date, timedelta
from pathlib import Path

from hpcverify.history import read_measurements
from hpcverify.history.database import list_nights, open_to_read, open_to_write
from hpcverify.history.reader import Choice, export_measurements
from hpcverify.history.writer import roll_up_weeks
from tests.history.nights import FIRST, make_run, write_runs

KEEP = 14
WEEK = 7
MONDAY = FIRST.date()
VALUES = [500.0, 480.0, 510.0, 490.0, 520.0, 470.0, 505.0]
"""Of the nights of the first week."""


def write_week(state: Path) -> None:
    """Write the first week of a node, and one night of the second."""
    for night, value in enumerate([*VALUES, 600.0]):
        write_runs(state, make_run("n1", night, value, gpus=1), night=night)


def roll_up(state: Path, night: int = WEEK + KEEP) -> None:
    """Do what the first collect after *night* does, as if it were the newest."""
    with open_to_write(state) as db:
        db.execute("insert into nights from recent")
        db.execute("delete from recent")
        roll_up_weeks(db, MONDAY + timedelta(days=night), KEEP)


def read_products(state: Path) -> list[tuple[date, float, int]]:
    table = read_measurements(state, metrics=["bf16.sustained"])
    nights = [each.date() for each in table["night"]]
    return list(zip(nights, table["value"], table["runs"], strict=True))


def list_weeks(state: Path) -> list[date]:
    with open_to_read(state) as db:
        rows = db.execute("select distinct week from weeks order by week").fetchall()
    return [week for (week,) in rows]


def test_a_week_has_the_median_of_its_runs_with_their_number_and_spread(tmp_path: Path) -> None:
    write_week(tmp_path)

    roll_up(tmp_path)

    assert read_products(tmp_path) == [
        (MONDAY, 500.0, WEEK),
        (MONDAY + timedelta(days=WEEK), 600.0, 1),
    ]
    week = read_measurements(tmp_path, metrics=["bf16.sustained"], until=MONDAY).iloc[0]
    assert week["mad"] == 10.0
    assert (week["node"], week["label"], week["unit"]) == ("n1", "GPU 0", "TFLOP/s")
    assert week["started"] == FIRST + timedelta(days=WEEK - 1)
    assert list_nights(tmp_path) == [MONDAY + timedelta(days=WEEK)]


def test_a_week_is_left_alone_as_long_as_one_of_its_nights_is_kept(tmp_path: Path) -> None:
    write_week(tmp_path)
    roll_up(tmp_path, WEEK + KEEP - 1)
    assert len(list_nights(tmp_path)) == WEEK + 1
    assert not list_weeks(tmp_path)


def test_a_collect_rolls_up(tmp_path: Path) -> None:
    write_week(tmp_path)
    for night in (38, 39, 40):
        write_runs(tmp_path, make_run("n1", night), night=night, keep_nights=KEEP)
    assert list_weeks(tmp_path) == [MONDAY, MONDAY + timedelta(days=WEEK)]
    assert list_nights(tmp_path) == [MONDAY + timedelta(days=n) for n in (38, 39, 40)]


def test_a_part_that_got_another_driver_has_a_row_for_each(tmp_path: Path) -> None:
    for night in range(WEEK):
        driver = "550" if night < 3 else "565"
        write_runs(tmp_path, make_run("n1", night, driver=driver, gpus=1), night=night)

    roll_up(tmp_path)

    table = read_measurements(tmp_path, metrics=["bf16.sustained"])
    assert sorted(zip(table["driver"], table["runs"], strict=True)) == [("550", 3), ("565", 4)]


def test_values_that_are_no_numbers_do_not_count(tmp_path: Path) -> None:
    for night, value in enumerate([None, 480.0, None]):
        write_runs(tmp_path, make_run("n1", night, value, gpus=1), night=night)
    roll_up(tmp_path)
    assert read_products(tmp_path) == [(MONDAY, 480.0, 1)]


def test_a_week_that_is_over_takes_no_late_runs(tmp_path: Path) -> None:
    write_week(tmp_path)
    roll_up(tmp_path)
    before = read_products(tmp_path)

    write_runs(tmp_path, make_run("late", 2), make_run("n1", 3, 1.0), night=WEEK)

    assert read_products(tmp_path) == before


def test_weeks_and_nights_go_into_one_file(tmp_path: Path) -> None:
    write_week(tmp_path)
    roll_up(tmp_path)
    count = export_measurements(tmp_path, Choice(), "csv", tmp_path / "all.csv")
    assert count == len(read_measurements(tmp_path))
    assert (tmp_path / "all.csv").read_text().partition("\n")[0].endswith(",runs,mad")
