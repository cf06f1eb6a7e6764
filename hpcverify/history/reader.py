"""Read the measurements: for a notebook, or into one file."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct

from hpcverify.errors import ConfigError, StoreError
from hpcverify.history.columns import COLUMNS, ORDER
from hpcverify.history.duck import open_duckdb, quote, read_parquet, refuse_newer, write_parquet
from hpcverify.history.files import MEASUREMENTS_FOLDER, list_files, list_folders, publish
from hpcverify.plan.config import state_dir
from hpcverify.processes import write_install_command

if TYPE_CHECKING:
    import pandas as pd


class Choice(Struct, frozen=True, kw_only=True):
    """Which measurements: nights from *since* to *until*, and names; empty: all."""

    since: date | None = None
    until: date | None = None
    nodes: Sequence[str] = ()
    checks: Sequence[str] = ()
    metrics: Sequence[str] = ()

    def list_paths(self, state: Path) -> list[Path]:
        """List the files of these nights in the state directory *state*."""
        first, last = self.since or date.min, self.until or date.max
        return [
            file.path
            for night, folder in list_folders(state / MEASUREMENTS_FOLDER).items()
            if first <= night <= last
            for file in list_files(folder)
        ]

    def require_paths(self, state: Path) -> list[Path]:
        """
        List the same files.

        Raises:
            StoreError: there are none.

        """
        if paths := self.list_paths(state):
            return paths
        raise StoreError(
            f"no measurements of these nights in {state / MEASUREMENTS_FOLDER}: hpcverify "
            "collect writes them; hpcverify history --rebuild makes them from the documents"
        )

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
    Read measurements as a table of pandas, a row for each, sorted by metric and node.

    *state* is the controller's state directory; by default, as for all commands. The
    nights from *since* to *until*, both included, and only these *nodes*, *checks* and
    *metrics*; empty: all. The columns are those of docs/history.md; times are in UTC.

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
    paths = choice.require_paths(where)
    with open_duckdb(where / MEASUREMENTS_FOLDER) as db:
        refuse_newer(db, paths)
        columns: dict[str, Any] = db.execute(
            "select * replace (started::timestamp as started, night::timestamp as night)"
            f" from ({_select(paths, choice)})"
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
    paths = choice.require_paths(state)
    temporary = path.with_name(f".{path.name}.writing")
    rows = _select(paths, choice)
    with open_duckdb(state / MEASUREMENTS_FOLDER) as db:
        refuse_newer(db, paths)
        try:
            if form == "csv":
                statement = f"copy ({rows}) to {quote(temporary)} (format csv, header)"
            else:
                statement = write_parquet(rows, f"night, {ORDER}", temporary)
            written = db.execute(statement).fetchone()
            publish(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
    return int(written[0]) if written else 0


def _select(paths: Sequence[Path], choice: Choice) -> str:
    names = ", ".join(("night", *(column.name for column in COLUMNS)))
    return (
        f"select {names} from {read_parquet(paths)} where {choice.write_condition()}"
        f" order by night, {ORDER}"
    )


def _join(names: Sequence[str]) -> str:
    return ", ".join(map(quote, names))
