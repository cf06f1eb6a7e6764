"""Read the measurements: for a notebook, or into one file."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct

from hpcverify.errors import ConfigError, StoreError, write_install_command
from hpcverify.history.columns import COLUMNS, ORDER
from hpcverify.history.database import explain_absence, has_database, open_to_read
from hpcverify.history.duck import quote, write_csv, write_parquet
from hpcverify.plan.config import state_dir
from hpcverify.records import documents

if TYPE_CHECKING:
    import pandas as pd
    from duckdb import DuckDBPyConnection


class Choice(Struct, frozen=True, kw_only=True):
    """
    Which measurements: nights from *since* to *until*, and names; empty: all.

    A week that was rolled up is chosen by its first night.
    """

    since: date | None = None
    until: date | None = None
    nodes: Sequence[str] = ()
    checks: Sequence[str] = ()
    metrics: Sequence[str] = ()

    def select_nights(self, table: str = "measurements", night: str = "night") -> str:
        """Write the rows of *table* in these nights, in SQL."""
        bounds = ((">=", self.since), ("<=", self.until))
        terms = [f"{night} {sign} date '{day}'" for sign, day in bounds if day]
        return f"(from {table} where {' and '.join(terms) or 'true'})"

    def write_condition(self) -> str:
        """Write the condition of SQL for the rows."""
        wanted = {"node": self.nodes, "check_name": self.checks, "metric": self.metrics}
        terms = [
            f"{name} in ({', '.join(map(quote, names))})" for name, names in wanted.items() if names
        ]
        return " and ".join(terms) or "true"


def has_measurements(state: Path, choice: Choice) -> bool:
    """
    Whether there are measurements of the nights of *choice*.

    Raises:
        StoreError: the file is damaged.

    """
    if not has_database(state):
        return False
    with open_to_read(state) as db:
        return db.execute(f"{choice.select_nights()[1:-1]} limit 1").fetchone() is not None


def read_measurements(
    state: Path | str | None = None,
    *,
    since: date | None = None,
    until: date | None = None,
    nodes: Sequence[str] = (),
    checks: Sequence[str] = (),
    metrics: Sequence[str] = (),
) -> pd.DataFrame:
    """
    Read measurements as a table of pandas, a row for each, sorted by night and metric.

    *state* is the controller's state directory; by default, as for all commands. The
    nights from *since* to *until*, both included, and only these *nodes*, *checks* and
    *metrics*; empty: all. The columns are those of docs/reference/history.md; times are in UTC.
    A week that was rolled up has the date of its first night.

    Raises:
        ConfigError: duckdb or pandas is not installed.
        StoreError: there are no measurements of these nights, or a file is damaged.

    """
    try:
        import pandas as pd
    except ModuleNotFoundError as exc:
        raise ConfigError(
            f"read_measurements needs pandas: {write_install_command('pandas')}"
        ) from exc
    choice = Choice(since=since, until=until, nodes=nodes, checks=checks, metrics=metrics)
    where = Path(state) if state is not None else state_dir()
    with _open_rows(where, choice) as (db, rows):
        columns: dict[str, Any] = db.execute(
            "select * replace (started::timestamp as started, night::timestamp as night)"
            f" from ({rows})"
        ).fetchnumpy()
    table = pd.DataFrame(columns)
    table["started"] = table["started"].dt.tz_localize("UTC")
    return table


def export_measurements(
    state: Path, choice: Choice, form: Literal["parquet", "csv"], path: Path
) -> int:
    """
    Write the measurements of *choice* into one file, all or nothing; return their number.

    Raises:
        ConfigError: DuckDB is not installed.
        StoreError: there are none, or the file cannot be written.

    """
    with _open_rows(state, choice) as (db, rows), documents.open_new(path) as new:
        import duckdb

        if form == "csv":
            statement = write_csv(rows, f"night, {ORDER}", new)
        else:
            statement = write_parquet(rows, f"night, {ORDER}", new)
        try:
            written = db.execute(statement).fetchone()
        except duckdb.IOException as exc:
            if str(new) not in str(exc):  # then the history itself cannot be read
                raise
            raise StoreError(f"{path} cannot be written: is its disk full?") from exc
    return int(written[0]) if written else 0


@contextmanager
def _open_rows(state: Path, choice: Choice) -> Generator[tuple[DuckDBPyConnection, str]]:
    names = ", ".join(column.name for column in COLUMNS)
    once = "(value is not null)::integer as runs, null::double as mad"
    rows = (
        f"(select week as night, {names}, runs, mad from {choice.select_nights('weeks', 'week')}"
        f" union all select night, {names}, {once} from {choice.select_nights()})"
    )
    with open_to_read(state) as db:
        if db.execute(f"select 1 from {rows} limit 1").fetchone() is None:
            raise StoreError(explain_absence(state))
        yield db, f"select * from {rows} where {choice.write_condition()} order by night, {ORDER}"
