"""
The columns of the measurements, and how a run document becomes rows.

A run keeps its measurements part by part, so that what is the same for all measurements
of a part is written once: DuckDB unfolds them into rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, date, datetime, timedelta

from msgspec import Struct

from hpcverify.model import Inventory, Part, Run
from hpcverify.summary.rounds import choose_worst_round, compute_medians, group_by_check

SCHEMA_KEY = "hpcverify_schema"
"""The key in the metadata of an export, and the table, in which its version stands."""
COLUMNS_VERSION = 1
NIGHT_BEGINS = timedelta(hours=12)
"""A night goes from noon to noon, UTC: a sweep that begins before midnight is one night."""

MAX_CLOCK_ERROR = timedelta(days=1)
"""If a run began longer before it arrived, or after that, the node's clock is not believed."""

NODE, NODE_KIND = "node", "system"
"""The part that stands for the whole node, and its kind."""


class Column(Struct, frozen=True):
    """A column of the measurements: its type in SQL, and what it holds."""

    name: str
    type: str
    meaning: str


COLUMNS = (
    Column("started", "timestamptz", "when the run began; if more than a day off, when it arrived"),
    Column("run", "varchar", "id of the run, and of its document: begins with the node's own time"),
    Column("node", "varchar", "name of the node"),
    Column("part", "varchar", "id of the part (a GPU's UUID), or `node`"),
    Column("label", "varchar", "what the part is called on its node: `GPU 3`"),
    Column("kind", "varchar", "kind of the part: gpu, cpu, memory, nic, disk, system"),
    Column("model", "varchar", "product name of the part; of a node, with that of its GPUs"),
    Column("check_name", "varchar", "the check that measured"),
    Column("metric", "varchar", "what it measured, with its mode: `bf16.sustained`"),
    Column("value", "double", "in `unit`; the median of several rounds; null: no number"),
    Column("unit", "varchar", "unit of the value"),
    Column("verdict", "varchar", "of the check in that run: pass, warn, error, fail"),
    Column("suite", "varchar", "the suite: it sets sizes and times, so compare within one"),
    Column("driver", "varchar", "driver of the part; of a node, that of its GPUs"),
    Column("firmware", "varchar", "VBIOS, firmware or BIOS of the part"),
)
"""All but `night`."""
WEEK_COLUMNS = (
    *COLUMNS,
    Column("runs", "integer", "runs with a number; `value` is their median"),
    Column("mad", "double", "their median absolute deviation from it, in `unit`"),
)
"""The columns of a week: `started`, `run` and `label` of its last run; the worst `verdict`."""
ORDER = "check_name, metric, node, part, started"
"""How rows are sorted: whoever wants a metric, or a node in it, skips the rest."""


class Cell(Struct, frozen=True):
    """One measurement of a part."""

    check_name: str
    metric: str
    value: float | None
    unit: str
    verdict: str


class PartCells(Struct, frozen=True):
    """What was measured on a part, and what the run knows about it."""

    part: str
    label: str
    kind: str
    model: str
    driver: str
    firmware: str
    cells: list[Cell]


class RunCells(Struct, frozen=True):
    """What was measured in a run."""

    night: date
    started: datetime
    run: str
    node: str
    suite: str
    parts: list[PartCells]

    def count_metrics(self) -> int:
        """Count the different metrics: parts of the same kind share theirs."""
        return len(
            {
                (cell.check_name, cell.metric, cell.unit, part.kind, part.model)
                for part in self.parts
                for cell in part.cells
            }
        )


def find_night(started: datetime) -> date:
    """Find the night of a run that *started* then: the day on which it began, at noon."""
    return (started.astimezone(UTC) - NIGHT_BEGINS).date()


def collect_cells(run: Run, arrived: datetime | None = None) -> RunCells | None:
    """
    Collect what *run* measured; None if it is not kept.

    If the clocks differ by more than a day, it counts for the night in which it *arrived*.

    That is a run that was interrupted, and one that loaded nothing: hooks leave hundreds
    of those a day, and what they read a sweep reads as well.
    """
    if not run.complete or run.passive:
        return None
    by_part: dict[str, list[Cell]] = {}
    for check, rounds in group_by_check(run.results).items():
        verdict = choose_worst_round(rounds).verdict.value
        measured = compute_medians(rounds)
        for item in measured:
            cell = Cell(check, item.name, item.value, item.unit, verdict)
            by_part.setdefault(item.part_id, []).append(cell)
    if not by_part:
        return None
    parts = list(_describe_parts(run.inventory, by_part))
    is_off = arrived and abs(arrived - run.started) > MAX_CLOCK_ERROR
    started = arrived if arrived and is_off else run.started
    return RunCells(find_night(started), started, run.id, run.node, run.suite, parts)


def _describe_parts(inventory: Inventory, by_part: dict[str, list[Cell]]) -> Iterator[PartCells]:
    known = {part.id: part for part in inventory.parts}
    gpus = inventory.of_kind("gpu")
    driver = _join(part.facts.get("driver", "") for part in gpus)
    machine = next(iter(inventory.of_kind(NODE_KIND)), Part(NODE_KIND, NODE, NODE))
    for part_id, cells in by_part.items():
        part = machine if part_id == NODE else known.get(part_id, Part("", part_id, part_id))
        facts = part.facts
        model = _name_model(part)
        if part_id == NODE:  # the same machine with other GPUs is another model
            model = ", ".join(filter(None, (model, _join(map(_name_model, gpus)))))
        yield PartCells(
            part=part_id,
            label=part.label,
            kind=part.kind,
            model=model,
            driver=facts.get("driver", driver),
            firmware=facts.get("vbios") or facts.get("firmware") or facts.get("bios", ""),
            cells=cells,
        )


def _name_model(part: Part) -> str:
    return next(filter(None, map(part.facts.get, ("name", "model", "product"))), "")


def _join(words: Iterable[str]) -> str:
    return ", ".join(sorted(set(words) - {""}))
