"""Make the history of measurements again from the run documents, which are the truth."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

from hpcverify.errors import StoreError
from hpcverify.history.reader import Choice
from hpcverify.history.screen import read_misdated_runs
from hpcverify.history.writer import MeasurementWriter
from hpcverify.records import documents
from hpcverify.records.spool import DOCUMENT_PATTERN

DAY_LETTERS = 8
"""A run's id begins with the day on which it began."""


def rebuild_measurements(state: Path, problems: list[str]) -> int:
    """
    Write what all documents in the state directory *state* measured; count those that were read.

    It goes one way and can be repeated: rows of a run that has a document are replaced,
    those of runs that have none any more stay, and so do weeks that were rolled up. What
    cannot be read or kept is listed in *problems*.

    Raises:
        ConfigError: DuckDB is not installed.
        StoreError: the history cannot be written, or is damaged.

    """
    writer = MeasurementWriter(state, problems.append)
    arrived = {run.run: run.started for run in read_misdated_runs(state, Choice())}
    names = sorted(p.name for p in (state / "runs").glob("*.json"))
    count = 0
    for _, day in groupby(filter(DOCUMENT_PATTERN.fullmatch, names), lambda n: n[:DAY_LETTERS]):
        paths = [state / "runs" / name for name in day]
        unread: list[str] = []
        for path in paths:
            try:
                run = documents.read(path)
            except StoreError as exc:
                unread.append(str(exc))
            else:
                writer.add(run, arrived.get(run.id))
        writer.write()
        problems += unread
        count += len(paths) - len(unread)
    return count
