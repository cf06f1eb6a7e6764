"""Read the measurements: for a notebook, or into one file."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct

from hpcverify.errors import ConfigError, StoreError, write_install_command
from hpcverify.history.columns import COLUMNS, ORDER
from hpcverify.history.duck import (
    open_duckdb,
    quote,
    read_parquet,
    refuse_newer,
    write_csv,
    write_parquet,
)
from hpcverify.history.files import (
    MEASUREMENTS_FOLDER,
    list_files,
    list_nights,
    list_weeks,
)
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

    def list_paths(self, state: Path) -> list[Path]:
        """List the files of these nights in the state directory *state*."""
        return self._list_files(list_nights(state))

    def list_week_paths(self, state: Path) -> list[Path]:
        """List the files of weeks that began in these nights."""
        return self._list_files(list_weeks(state))

    def _list_files(self, folders: Mapping[date, Path]) -> list[Path]:
        first, last = self.since or date.min, self.until or date.max
        return [
            file.path
            for night, folder in folders.items()
            if first <= night <= last
            for file in list_files(folder)
        ]

    def require_paths(self, state: Path) -> list[Path]:
        """
        List the files of these nights.

        Raises:
            StoreError: there are none.

        """
        return _require(self.list_paths(state), state)

    def write_condition(self) -> str:
        """Write the condition of SQL for the rows."""
        wanted = {"node": self.nodes, "check_name": self.checks, "metric": self.metrics}
        terms = [f"{name} in ({_join(names)})" for name, names in wanted.items() if names]
        return " and ".join(terms) or "true"


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
        if form == "csv":
            statement = write_csv(rows, f"night, {ORDER}", new)
        else:
            statement = write_parquet(rows, f"night, {ORDER}", new)
        written = db.execute(statement).fetchone()
    return int(written[0]) if written else 0


@contextmanager
def _open_rows(state: Path, choice: Choice) -> Generator[tuple[DuckDBPyConnection, str]]:
    nights, weeks = choice.list_paths(state), choice.list_week_paths(state)
    paths = _require([*weeks, *nights], state)
    names = ", ".join(column.name for column in COLUMNS)
    tables: list[str] = []
    if weeks:
        tables.append(f"select week as night, {names}, runs, mad from {read_parquet(weeks)}")
    if nights:
        once = "(value is not null)::integer as runs, null::double as mad"
        tables.append(f"select night, {names}, {once} from {read_parquet(nights)}")
    rows = f"select * from ({' union all '.join(tables)}) where {choice.write_condition()}"
    with open_duckdb(state / MEASUREMENTS_FOLDER) as db:
        refuse_newer(db, paths)
        yield db, f"{rows} order by night, {ORDER}"


def _require(paths: list[Path], state: Path) -> list[Path]:
    if paths:
        return paths
    raise StoreError(
        f"no measurements of these nights in {state / MEASUREMENTS_FOLDER}: hpcverify "
        "collect writes them; hpcverify history --rebuild makes them from the documents"
    )


def _join(names: Sequence[str]) -> str:
    return ", ".join(map(quote, names))
