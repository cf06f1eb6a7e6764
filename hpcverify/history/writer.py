"""
Write the measurements of runs: a small file for each batch, one file once a night is over.

What a batch measured is first put into a queue, ``_queue.ndjson``, which lasts: a writer
that is killed leaves it, and the next one goes on from there. Each file is written under
another name and renamed once it is on the disk. There is one writer at a time: it has the
controller's lock.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from hpcverify.errors import StoreError
from hpcverify.history.columns import COLUMNS, ORDER, RunCells, collect_cells, find_night
from hpcverify.history.duck import open_duckdb, quote, read_parquet, refuse_newer, write_parquet
from hpcverify.history.files import (
    MEASUREMENTS_FOLDER,
    TEMPORARY_NAME,
    find_newest_night,
    find_week,
    list_files,
    list_left_over,
    list_nights,
    list_weeks,
    make_path,
    publish,
)
from hpcverify.history.rollup import roll_up_weeks
from hpcverify.model import Run
from hpcverify.records.documents import write_bytes
from hpcverify.units import format_count

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

MAX_BATCHES = 32
"""Files of a night at which they are merged into one: a collect each minute leaves many."""
NAMES = ", ".join(column.name for column in COLUMNS)
QUEUE_NAME = "_queue.ndjson"
DAMAGED_NAME = "_queue.damaged"
"""The lines of the last queue that could not be read, for whoever looks for a cause."""
QUEUED_COLUMNS = """{
    night: 'date', started: 'timestamptz', run: 'varchar', node: 'varchar', suite: 'varchar',
    parts: 'struct(part varchar, label varchar, kind varchar, model varchar, driver varchar,
        firmware varchar, cells struct(check_name varchar, metric varchar, value double,
        unit varchar, verdict varchar)[])[]'
}"""
MAX_UNWRITTEN_BYTES = 2**20
"""A longer queue is put into its file."""
MAX_LINE_BYTES = 4 * 2**20
"""The longest run in the queue, some 40,000 measurements: eight GPUs have a few hundred.
A run that claims more is reported, and not kept."""
MAX_RUN_METRICS = 2000
"""Different metrics of a run; a node of eight GPUs has about 300."""


class MeasurementWriter:
    """Writes the files of measurements in the state directory *state*."""

    def __init__(
        self,
        state: Path,
        say: Callable[[str], None],
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """Nothing is opened before there is something to write; *say* prints a line."""
        self._state, self._say = state, say
        self.folder = state / MEASUREMENTS_FOLDER
        self._queue_path = self.folder / QUEUE_NAME
        self._clock = clock
        self._encode = msgspec.json.Encoder().encode
        self._waiting = bytearray()
        """What is queued and not in the file yet."""
        self._begun = False
        """Whether the file has runs of this batch."""
        self._left_out: list[str] = []
        """Why runs of this batch are not kept, in a sentence each."""

    def recover(self, is_judged: Callable[[str], bool]) -> None:
        """
        Write what a killed writer had left in its queue.

        Of its runs only those of which *is_judged* holds: the others will come again. Lines
        that a power cut or a full disk has damaged are put aside.

        Raises:
            StoreError: that failed; the queue is kept.

        """
        try:
            lines = self._queue_path.read_bytes().split(b"\n")
        except FileNotFoundError:
            return
        except OSError as exc:
            raise StoreError(f"{self._queue_path} cannot be read: {exc.strerror}") from exc
        self._begun = False  # what is kept of it is written anew
        self._waiting.clear()
        damaged: list[bytes] = []
        for line in lines[:-1]:  # the last one is empty, or half
            if (cells := _decode_line(line)) is None:
                damaged.append(line)
            elif is_judged(
                cells.run
            ):  # written anew, since DuckDB refuses some of what JSON may be
                self._waiting += self._encode(cells) + b"\n"
        if damaged:
            self._put_aside(damaged)
        self._write_queue(replace_runs=True)

    def _put_aside(self, damaged: Iterable[bytes]) -> None:
        """Put *damaged* lines of the queue into a file of their own, and say so."""
        path, lines = self.folder / DAMAGED_NAME, list(damaged)
        write_bytes(path, b"\n".join(lines)[:MAX_LINE_BYTES])
        self._say(
            f"{format_count(len(lines), 'line')} of {self._queue_path} cannot be read, as after "
            f"a power cut, and now in {path}: hpcverify history --rebuild adds what they held"
        )

    def add(self, run: Run, arrived: datetime | None = None) -> None:
        """
        Queue what *run* measured, which *arrived* then.

        Raises:
            StoreError: the disk is full, for example.

        """
        if (cells := collect_cells(run, arrived)) is None:
            return
        line = self._encode(cells) + b"\n"
        if len(line) > MAX_LINE_BYTES:
            most = MAX_LINE_BYTES // 2**20
            size = f"{len(line) / 2**20:.1f} MiB of measurements, more than {most}"
            self.leave_out(run, f"has {size}")
        elif (metrics := cells.count_metrics()) > MAX_RUN_METRICS:
            many = f"{metrics} different metrics, more than {MAX_RUN_METRICS}"
            self.leave_out(run, f"has {many}")
        else:
            self._waiting += line
            if len(self._waiting) > MAX_UNWRITTEN_BYTES:
                self._spill(sync=False)

    def leave_out(self, run: Run, why: str) -> None:
        """Leave out what *run* measured; one line says *why*, with the next `flush`."""
        self._left_out.append(f"{run.node}: run {run.id} {why}: it is not kept in the history")

    def _report_left_out(self) -> None:
        if self._left_out:
            others = len(self._left_out) - 1
            more = f" (and {format_count(others, 'other run')})" if others else ""
            self._say(f"{self._left_out[0]}{more}; their documents keep what they measured")
            self._left_out.clear()

    def flush(self) -> None:
        """
        Put the queue on the disk: from now on, its runs are not lost.

        Raises:
            StoreError: that failed.

        """
        self._report_left_out()
        if self._begun or self._waiting:
            self._spill(sync=True)

    def _spill(self, *, sync: bool) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with self._queue_path.open("ab" if self._begun else "wb") as queue:
                queue.write(self._waiting)
                if sync:
                    queue.flush()
                    os.fsync(queue.fileno())
        except OSError as exc:
            raise StoreError(
                f"the measurements in {self.folder} cannot be written: {exc.strerror}"
            ) from exc
        self._begun = True
        self._waiting.clear()

    def write(self, keep_nights: int) -> None:
        """
        Write the queue into files, and merge those of each night that is over.

        Weeks that lie more than *keep_nights* before the newest night are rolled up: the newest
        with runs, so that a clock that jumps for a day closes none.

        Raises:
            ConfigError: DuckDB is not installed.
            StoreError: a file cannot be written; the queue is kept.

        """
        self._write_queue(replace_runs=False)
        tonight = find_night(self._clock())
        nights = list_nights(self._state)
        if newest := find_newest_night(nights, tonight):
            roll_up_weeks(self._state, newest, keep_nights)
        for night, folder in list_nights(self._state).items():
            count = len(list_files(folder))
            if count > (MAX_BATCHES if night >= tonight else 1):
                self.merge(folder)

    def replace(self, runs: Iterable[Run], arrived: Mapping[str, datetime]) -> None:
        """
        Write *runs* in place of what the files have of them; other rows and old weeks stay.

        *arrived* says when some did, by their ids.

        Raises:
            StoreError: as in `write`.

        """
        for run in runs:
            self.add(run, arrived.get(run.id))
        self._write_queue(replace_runs=True)

    def merge(self, folder: Path) -> None:
        """Merge the files of a night, and remove them."""
        paths = [file.path for file in list_files(folder)]
        with open_duckdb(self.folder) as db:
            refuse_newer(db, paths)
            self._publish(db, folder, f"select {NAMES} from {read_parquet(paths)}", whole=True)

    def _write_queue(self, *, replace_runs: bool) -> None:
        self.flush()
        if self._begun:
            closed = list_weeks(self._state)
            with open_duckdb(self.folder) as db:
                late = 0
                for night, runs in self._read_nights(db):
                    if find_week(night) in closed:
                        late += runs
                    else:
                        self._write_night(db, night, replace_runs=replace_runs)
            if late:
                self._say(
                    f"{format_count(late, 'run')} of weeks that the history has rolled up "
                    "came too late to be added to them: their documents keep what they measured"
                )
        self._queue_path.unlink(missing_ok=True)
        self._begun = False

    def _read_nights(self, db: DuckDBPyConnection) -> list[tuple[date, int]]:
        query = f"select night, count(distinct run) from {self._read_queued()} group by night"
        return sorted(db.execute(query).fetchall())

    def _read_queued(self) -> str:
        return (
            f"read_json({quote(self._queue_path)}, format = 'newline_delimited',"
            f" maximum_object_size = {MAX_LINE_BYTES}, columns = {QUEUED_COLUMNS})"
        )

    def _write_night(self, db: DuckDBPyConnection, night: date, *, replace_runs: bool) -> None:
        folder = self.folder / f"night={night}"
        folder.mkdir(exist_ok=True)
        queued = f"{self._read_queued()} where night = '{night}'"
        rows = (
            "with one as (select started, run, node, suite, unnest(parts) p from"
            f" {queued}), cell as (select started, run, node, suite, p, unnest(p.cells) c from one)"
            " select started, run, node, p.part, p.label, p.kind, p.model, c.check_name,"
            " c.metric, c.value, c.unit, c.verdict, suite, p.driver, p.firmware from cell"
        )
        there = [file.path for file in list_files(folder)]
        if replace_runs and there:
            refuse_newer(db, there)
            rows = (
                f"({rows}) union all select {NAMES} from {read_parquet(there)}"
                f" where run not in (select run from {queued})"
            )
        self._publish(db, folder, rows, whole=replace_runs)

    def _publish(self, db: DuckDBPyConnection, folder: Path, rows: str, *, whole: bool) -> None:
        """Write *rows* as a file: the *whole* night in place of its files, or one more."""
        there = list_files(folder)
        number = there[-1].last + 1 if there else 1
        first = there[0].first if whole and there else number
        temporary = folder / TEMPORARY_NAME
        db.execute(write_parquet(rows, ORDER, temporary))
        publish(temporary, make_path(folder, first, number))
        for path in list(list_left_over(folder)):
            path.unlink(missing_ok=True)


def _decode_line(line: bytes) -> RunCells | None:
    """Decode the run in a *line* of the queue; None if the line is damaged."""
    if len(line) > MAX_LINE_BYTES:
        return None
    try:
        return msgspec.json.decode(line, type=RunCells)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
