"""
Where the measurements of a night lie, and which of its files count.

``measurements/night=2026-11-21/000001-000004.parquet`` in the state directory holds the
first four batches of that night. A file that lies within the numbers of another was
merged into that one and is left over from a writer that was killed: it does not count.
``measurements_weekly/week=2026-08-10/000001-000001.parquet`` is a week that begins
on a Monday: once it is there, the nights of that week do not count any more.
What begins with ``_`` is no data, as for Spark and Hive.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator
from contextlib import suppress
from datetime import date, timedelta
from pathlib import Path

from msgspec import Struct

from hpcverify.errors import StoreError

MEASUREMENTS_FOLDER = "measurements"
WEEKS_FOLDER = "measurements_weekly"
FOLDER_PATTERN = re.compile(r"(?:night|week)=([0-9]{4}-[0-9]{2}-[0-9]{2})")
TEMPORARY_NAME = "_writing.parquet"
MIN_NEWEST_NIGHTS = 3
"""Nights with runs that show which day it is; the clock alone may have jumped."""
FILE_PATTERN = re.compile(r"([0-9]{6})-([0-9]{6})\.parquet")


class BatchFile(Struct, frozen=True, order=True):
    """A file with the batches of a night from *first* to *last*."""

    first: int
    last: int
    path: Path

    def covers(self, other: BatchFile) -> bool:
        """Whether *other* was merged into this one."""
        return self != other and self.first <= other.first and other.last <= self.last


def list_folders(top: Path) -> dict[date, Path]:
    """List the folders of nights, or of weeks, below *top*, the oldest first."""
    try:
        names = sorted(path.name for path in top.iterdir())
    except FileNotFoundError:
        return {}
    except OSError as exc:
        raise StoreError(f"{top} cannot be read: {exc.strerror}") from exc
    folders: dict[date, Path] = {}
    for match in filter(None, map(FOLDER_PATTERN.fullmatch, names)):
        with suppress(ValueError):  # no folder of ours has a day that never was
            folders[date.fromisoformat(match[1])] = top / match[0]
    return folders


def find_week(night: date) -> date:
    """Find the week of *night*: its Monday."""
    return night - timedelta(days=night.weekday())


def find_newest_night(nights: Collection[date], tonight: date) -> date | None:
    """
    Find up to which night the history reaches, of *nights* with runs; None: there are too few.

    A clock that was ahead leaves a night or two that lie by themselves: it counts what
    `MIN_NEWEST_NIGHTS` reach, and none after *tonight*.
    """
    past = sorted(night for night in nights if night <= tonight)
    return past[-MIN_NEWEST_NIGHTS] if len(past) >= MIN_NEWEST_NIGHTS else None


def list_weeks(state: Path) -> dict[date, Path]:
    """List the folders of weeks that have been rolled up, the oldest first."""
    folders = list_folders(state / WEEKS_FOLDER)
    return {week: folder for week, folder in folders.items() if list_files(folder)}


def list_nights(state: Path) -> dict[date, Path]:
    """List the folders of nights that count, the oldest first."""
    closed = list_weeks(state)
    folders = list_folders(state / MEASUREMENTS_FOLDER)
    return {night: path for night, path in folders.items() if find_week(night) not in closed}


def list_files(folder: Path) -> list[BatchFile]:
    """List the files of a night that count, in order."""
    there = _list_all(folder)
    return [file for file in there if not any(other.covers(file) for other in there)]


def list_left_over(folder: Path) -> Iterator[Path]:
    """Yield what a writer left in *folder* that was killed: merged files and half ones."""
    there = _list_all(folder)
    yield from (file.path for file in there if any(other.covers(file) for other in there))
    yield from folder.glob("_*")


def _list_all(folder: Path) -> list[BatchFile]:
    try:
        names = [path.name for path in folder.iterdir()]
    except FileNotFoundError:
        return []
    except OSError as exc:
        raise StoreError(f"{folder} cannot be read: {exc.strerror}") from exc
    matches = filter(None, map(FILE_PATTERN.fullmatch, names))
    return sorted(BatchFile(int(match[1]), int(match[2]), folder / match[0]) for match in matches)


def make_path(folder: Path, first: int, last: int) -> Path:
    """Make the path of the file with the batches from *first* to *last*."""
    return folder / f"{first:06d}-{last:06d}.parquet"


def publish(temporary: Path, path: Path) -> None:
    """Give a finished file its name, so that it survives a power cut."""
    _sync(temporary)
    temporary.replace(path)
    _sync(path.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
