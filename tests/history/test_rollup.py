"""Old nights become weeks: nothing is lost on the way, and nothing counts twice."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path

import pytest

from hpcverify.errors import StoreError
from hpcverify.history import read_measurements
from hpcverify.history import rollup as rollup_module
from hpcverify.history.files import list_folders, list_nights, list_weeks
from hpcverify.history.reader import Choice, export_measurements
from hpcverify.history.rollup import roll_up_weeks
from hpcverify.history.writer import MeasurementWriter
from tests.history.nights import FIRST, make_run, write_runs

KEEP = 14
WEEK = 7
MONDAY = FIRST.date()
MORTAL = multiprocessing.get_context("fork")
"""A controller that is killed is a process of its own."""
VALUES = [500.0, 480.0, 510.0, 490.0, 520.0, 470.0, 505.0]
"""Of the nights of the first week."""


def write_week(state: Path) -> None:
    """Write the first week of a node, and one night of the second."""
    for night, value in enumerate([*VALUES, 600.0]):
        write_runs(state, make_run("n1", night, value, gpus=1), night=night)


def roll_up(state: Path, night: int = WEEK + KEEP) -> None:
    roll_up_weeks(state, MONDAY + timedelta(days=night), KEEP)


def read_products(state: Path) -> list[tuple[date, float, int]]:
    table = read_measurements(state, metrics=["bf16.sustained"])
    nights = [each.date() for each in table["night"]]
    return list(zip(nights, table["value"], table["runs"], strict=True))


def list_night_folders(state: Path) -> list[date]:
    return list(list_folders(state / "measurements"))


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
    assert list_night_folders(tmp_path) == [MONDAY + timedelta(days=WEEK)]


def test_a_week_is_left_alone_as_long_as_one_of_its_nights_is_kept(tmp_path: Path) -> None:
    write_week(tmp_path)
    roll_up(tmp_path, WEEK + KEEP - 1)
    assert len(list_night_folders(tmp_path)) == WEEK + 1
    assert not list_weeks(tmp_path)


def test_a_collect_rolls_up(tmp_path: Path) -> None:
    write_week(tmp_path)
    for night in (38, 39, 40):
        write_runs(tmp_path, make_run("n1", night), night=night, keep_nights=KEEP)
    assert list(list_weeks(tmp_path)) == [MONDAY, MONDAY + timedelta(days=WEEK)]
    assert list_night_folders(tmp_path) == [MONDAY + timedelta(days=n) for n in (38, 39, 40)]


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


def test_nights_that_a_killed_collect_left_do_not_count_and_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_week(tmp_path)

    def refuse(path: Path) -> None:
        raise OSError(5, "Input/output error", path)

    with monkeypatch.context() as killed:
        killed.setattr(shutil, "rmtree", refuse)
        with pytest.raises(StoreError, match=r"night=2026-11-02 cannot be removed: Input"):
            roll_up(tmp_path)

    assert len(list_night_folders(tmp_path)) == WEEK + 1
    assert (read_products(tmp_path)[0], len(read_products(tmp_path))) == ((MONDAY, 500.0, WEEK), 2)
    assert list(list_nights(tmp_path)) == [MONDAY + timedelta(days=WEEK)]
    roll_up(tmp_path)
    assert list_night_folders(tmp_path) == [MONDAY + timedelta(days=WEEK)]


def die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_before_the_week_has_its_name(seam: pytest.MonkeyPatch) -> None:
    seam.setattr(rollup_module, "publish", die)


def die_once_a_night_has_lost_its_file(seam: pytest.MonkeyPatch) -> None:
    def remove(folder: Path) -> None:
        for path in folder.iterdir():
            path.unlink()
        die()

    seam.setattr(shutil, "rmtree", remove)


def die_once_a_night_is_removed(seam: pytest.MonkeyPatch) -> None:
    remove = shutil.rmtree

    def remove_and_die(folder: Path) -> None:
        remove(folder)
        die()

    seam.setattr(shutil, "rmtree", remove_and_die)


@pytest.mark.parametrize(
    "arm",
    [
        die_before_the_week_has_its_name,
        lambda seam: seam.setattr(shutil, "rmtree", die),  # before a night is removed
        die_once_a_night_has_lost_its_file,
        die_once_a_night_is_removed,
    ],
)
def test_a_collect_that_is_killed_leaves_the_nights_or_the_week(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arm: Callable[[pytest.MonkeyPatch], None]
) -> None:
    write_week(tmp_path)
    nights = read_products(tmp_path)
    week = [(MONDAY, 500.0, WEEK), nights[-1]]

    def roll_up_and_die() -> None:
        arm(monkeypatch)  # in this process alone
        roll_up(tmp_path)

    killed = MORTAL.Process(target=roll_up_and_die)
    killed.start()
    killed.join()

    assert killed.exitcode == -signal.SIGKILL
    left = nights if arm is die_before_the_week_has_its_name else week
    assert read_products(tmp_path) == left
    for _ in range(2):  # the next collect finishes it, and the one after that does nothing
        roll_up(tmp_path)
        assert read_products(tmp_path) == week
        assert list_night_folders(tmp_path) == [MONDAY + timedelta(days=WEEK)]
    assert [path.name for path in tmp_path.glob("measurements_weekly/*/*")] == [
        "000001-000001.parquet"
    ]


def test_a_week_that_is_over_takes_no_late_runs(tmp_path: Path) -> None:
    write_week(tmp_path)
    roll_up(tmp_path)
    before = read_products(tmp_path)

    write_runs(tmp_path, make_run("late", 2), night=WEEK)
    MeasurementWriter(tmp_path, print).replace([make_run("n1", 3, 1.0)], {})

    assert read_products(tmp_path) == before


def test_weeks_and_nights_go_into_one_file(tmp_path: Path) -> None:
    write_week(tmp_path)
    roll_up(tmp_path)
    count = export_measurements(tmp_path, Choice(), "csv", tmp_path / "all.csv")
    assert count == len(read_measurements(tmp_path))
    assert (tmp_path / "all.csv").read_text().partition("\n")[0].endswith(",runs,mad")
