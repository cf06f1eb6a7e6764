"""
Write the measurements of runs into the history.

What a batch measured is first put into a queue, ``queue.ndjson``, which lasts: whoever is killed,
meets a full disk or waits in vain for a reader leaves it to the next collect. Rows of a run replace
those that are there, so that a queue may be written twice. There is one writer at a time: it has
the controller's lock.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from hpcverify.errors import StoreError
from hpcverify.history.columns import COLUMNS, ORDER, collect_cells, find_night
from hpcverify.history.database import (
    MEASUREMENTS_FOLDER,
    find_newest_night,
    has_file,
    open_to_write,
)
from hpcverify.history.duck import quote
from hpcverify.model import Run
from hpcverify.units import format_count

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

QUEUE_NAME = "queue.ndjson"
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
NUMBERS = {"started", "run", "label", "value", "verdict"}
"""The columns that differ from run to run: what the week says of them is `SUMMARY`."""
KEY = ", ".join(column.name for column in COLUMNS if column.name not in NUMBERS)
SUMMARY = """
    max(started) as started, arg_max(run, started) as run, arg_max(label, started) as label,
    median(value) as value, count(value)::integer as runs, mad(value) as mad,
    arg_max(verdict, list_position(['skip', 'pass', 'warn', 'error', 'fail'], verdict)) as verdict
"""


class MeasurementWriter:
    """Writes the measurements in the state directory *state*."""

    def __init__(
        self,
        state: Path,
        say: Callable[[str], None],
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """Nothing is opened before there is something to write; *say* prints a line."""
        self._state, self._say = state, say
        self._queue_path = state / MEASUREMENTS_FOLDER / QUEUE_NAME
        self._clock = clock
        self._encode = msgspec.json.Encoder().encode
        self._waiting = bytearray()
        """What is queued and not in the file yet."""
        self._left_out: list[str] = []
        """Why runs of this batch are not kept, in a sentence each."""

    def add(self, run: Run, arrived: datetime | None = None) -> None:
        """
        Queue what *run* measured, which *arrived* then.

        Raises:
            StoreError: the disk is full, for example.

        """
        try:
            cells = collect_cells(run, arrived)
        except OverflowError:  # noon before the year 1, for example
            self._leave_out(run, f"began at {run.started.isoformat()}, which is not in any night")
            return
        if cells is None:
            return
        line = self._encode(cells) + b"\n"
        if len(line) > MAX_LINE_BYTES:
            most = MAX_LINE_BYTES // 2**20
            size = f"{len(line) / 2**20:.1f} MiB of measurements, more than {most}"
            self._leave_out(run, f"has {size}")
        elif (metrics := cells.count_metrics()) > MAX_RUN_METRICS:
            many = f"{metrics} different metrics, more than {MAX_RUN_METRICS}"
            self._leave_out(run, f"has {many}")
        else:
            self._waiting += line
            if len(self._waiting) > MAX_UNWRITTEN_BYTES:
                self._spill(sync=False)

    def _leave_out(self, run: Run, why: str) -> None:
        self._left_out.append(f"{run.node}: run {run.id} {why}: it is not kept in the history")

    def flush(self) -> None:
        """
        Put the queue on the disk: from now on, its runs are not lost.

        Raises:
            StoreError: that failed.

        """
        if self._left_out:
            others = len(self._left_out) - 1
            more = f" (and {format_count(others, 'other run')})" if others else ""
            self._say(f"{self._left_out[0]}{more}; their documents keep the measurements")
            self._left_out.clear()
        if self._waiting:
            self._spill(sync=True)

    def _spill(self, *, sync: bool) -> None:
        has_file(self._queue_path)
        try:
            self._queue_path.parent.mkdir(parents=True, exist_ok=True)
            with self._queue_path.open("ab") as queue:
                queue.write(b"\n" + self._waiting)  # a killed writer may have left half a line
                if sync:
                    queue.flush()
                    os.fsync(queue.fileno())
        except OSError as exc:
            raise StoreError(f"{self._queue_path} cannot be written: {exc.strerror}") from exc
        self._waiting.clear()

    def write(self, keep_nights: int | None = None) -> None:
        """
        Write the queue into the history, and once a night is over, sort its rows.

        Then weeks that lie more than *keep_nights* before the newest night are rolled up: the
        newest with runs, so that a clock that jumps for a day closes none. None: no week is.

        Raises:
            ConfigError: DuckDB is not installed.
            StoreError: the history cannot be written; the queue is kept.

        """
        self.flush()
        if not has_file(self._queue_path):
            return
        tonight = find_night(self._clock())
        over = f"from recent where night < '{tonight}'"
        with open_to_write(self._state) as db:
            self._add_queued(db)
            if db.execute(f"select 1 {over} limit 1").fetchone():
                db.execute(f"insert into nights {over} order by night, {ORDER}")
                db.execute(f"delete {over}")
                query = "select distinct night from measurements"
                nights = [night for (night,) in db.execute(query).fetchall()]
                if keep_nights is not None and (newest := find_newest_night(nights, tonight)):
                    roll_up_weeks(db, newest, keep_nights)
        try:
            self._queue_path.unlink()
        except OSError as exc:
            raise StoreError(f"{self._queue_path} cannot be removed: {exc.strerror}") from exc

    def _add_queued(self, db: DuckDBPyConnection) -> None:
        """Add the rows of each run in the queue, in place of those there."""
        import duckdb

        queued = (
            f"read_json({quote(self._queue_path)}, format = 'newline_delimited',"
            f" ignore_errors = true, maximum_object_size = {MAX_LINE_BYTES},"
            f" columns = {QUEUED_COLUMNS})"
        )
        whole = (  # Python has no other years
            "coalesce(year(night) between 1 and 9999 and year(started) between 1 and 9999"
            " and run is not null and node is not null and parts is not null, false)"
        )
        try:
            db.execute(
                "create temp table batch as with"
                " line as (select row_number() over () as line, unnest(parts) as p, night, started,"
                f" run, node, suite from {queued} where {whole}),"
                " cell as (select unnest(p.cells) as c, * from line)"
                " select line, started, run, node, p.part, p.label, p.kind, p.model, c.check_name,"
                " c.metric, c.value, c.unit, c.verdict, suite, p.driver, p.firmware, night"
                " from cell"
            )
        except duckdb.InvalidInputException as exc:  # a line has no end, as after a power cut
            raise StoreError(
                f"{self._queue_path} is damaged: move it away; hpcverify history --rebuild adds "
                "what it held"
            ) from exc
        # A run that came again, since the controller was killed before it had judged it:
        db.execute("delete from batch where line not in (select max(line) from batch group by run)")
        closed = "from batch where date_trunc('week', night) in (select week from weeks)"
        ((torn,),) = db.execute(f"select count(*) from {queued} where not {whole}").fetchall()
        ((late,),) = db.execute(f"select count(distinct run) {closed}").fetchall()
        db.execute(f"delete {closed}")
        nights = db.execute("select distinct night from batch").fetchall()
        listed = ", ".join(quote(night) for (night,) in nights) or "null"
        for table in ("nights", "recent"):
            again = f"night in ({listed}) and run in (select run from batch)"
            db.execute(f"delete from {table} where {again}")
        db.execute("insert into recent by name select * exclude (line) from batch")
        if torn:
            self._say(
                f"{format_count(torn, 'line')} of {self._queue_path} cannot be read, as after a "
                "power cut: hpcverify history --rebuild adds their measurements"
            )
        if late:
            self._say(
                f"{format_count(late, 'run')} of weeks that the history has rolled up "
                "arrived too late to be added to them: their documents keep the measurements"
            )


def roll_up_weeks(db: DuckDBPyConnection, newest: date, keep_nights: int) -> None:
    """
    Make one row for each part and metric of the weeks more than *keep_nights* before *newest*.

    It goes metric by metric: that bounds the memory.
    """
    query = "select distinct date_trunc('week', night)::date as monday from nights order by monday"
    for (monday,) in db.execute(query).fetchall():
        next_monday = monday + timedelta(weeks=1)
        if next_monday > newest - timedelta(days=keep_nights):
            break
        week = f"from nights where night >= '{monday}' and night < '{next_monday}'"
        for check, metric in db.execute(f"select distinct check_name, metric {week}").fetchall():
            db.execute(
                f"insert into weeks by name select {KEY}, {SUMMARY}, date '{monday}' as week {week}"
                f" and check_name = {quote(check)} and metric = {quote(metric)} group by {KEY}"
            )
        db.execute(f"delete {week}")
