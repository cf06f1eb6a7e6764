"""
Roll up old nights: the runs of a week become one row for each part and metric.

A week is closed by the rename that gives its file a name. From then on its nights do not
count, so that a writer that is killed before it has removed them leaves nothing twice.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from datetime import date, timedelta
from itertools import groupby
from pathlib import Path

from hpcverify.errors import StoreError
from hpcverify.history.columns import COLUMNS, ORDER, WEEK_COLUMNS
from hpcverify.history.duck import open_duckdb, quote, read_parquet, refuse_newer, write_parquet
from hpcverify.history.files import (
    MEASUREMENTS_FOLDER,
    TEMPORARY_NAME,
    WEEKS_FOLDER,
    find_week,
    list_files,
    list_folders,
    list_weeks,
    make_path,
    publish,
)

NUMBERS = {"started", "run", "label", "value", "verdict"}
"""The columns that differ from run to run: what the week says of them is `SUMMARY`."""
KEY = ", ".join(column.name for column in COLUMNS if column.name not in NUMBERS)
SUMMARY = """
    max(started) as started, arg_max(run, started) as run, arg_max(label, started) as label,
    median(value) as value, count(value)::integer as runs, mad(value) as mad,
    arg_max(verdict, list_position(['skip', 'pass', 'warn', 'error', 'fail'], verdict)) as verdict
"""
NAMES = ", ".join(column.name for column in WEEK_COLUMNS)


def roll_up_weeks(state: Path, tonight: date, keep_nights: int) -> None:
    """
    Close the weeks that lie more than *keep_nights* before *tonight*, and remove their nights.

    Raises:
        ConfigError: DuckDB is not installed.
        StoreError: a file cannot be read, written or removed.

    """
    nights = list_folders(state / MEASUREMENTS_FOLDER)
    closed = list_weeks(state)
    for week, dates in groupby(nights, find_week):
        folders = [nights[night] for night in dates]
        if week not in closed:
            if week + timedelta(weeks=1) > tonight - timedelta(days=keep_nights):
                continue
            _close_week(state, week, folders)
        _remove(folders)


def _close_week(state: Path, week: date, folders: Iterable[Path]) -> None:
    """Write the file of *week* from its nights, metric by metric: that bounds the memory."""
    paths = [file.path for folder in folders for file in list_files(folder)]
    if not paths:
        return
    folder = state / WEEKS_FOLDER / f"week={week}"
    with open_duckdb(state / MEASUREMENTS_FOLDER) as db:
        refuse_newer(db, paths)
        rows = read_parquet(paths)
        metrics = db.execute(f"select distinct check_name, metric from {rows}").fetchall()
        columns = ", ".join(f"{column.name} {column.type}" for column in WEEK_COLUMNS)
        db.execute(f"create table week ({columns})")
        for check, metric in sorted(metrics):
            db.execute(
                f"insert into week by name select {KEY}, {SUMMARY} from {rows}"
                f" where check_name = {quote(check)} and metric = {quote(metric)} group by {KEY}"
            )
        folder.mkdir(parents=True, exist_ok=True)
        temporary = folder / TEMPORARY_NAME
        db.execute(write_parquet(f"select {NAMES} from week", ORDER, temporary))
        publish(temporary, make_path(folder, 1, 1))


def _remove(folders: Iterable[Path]) -> None:
    for folder in folders:
        try:
            shutil.rmtree(folder)
        except OSError as exc:
            raise StoreError(f"{folder} cannot be removed: {exc.strerror}") from exc
