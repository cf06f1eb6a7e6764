"""
What difference between peers is worth a word, and which side is the bad one.

`floors.csv` is the table, the first line that fits a check and a metric wins, and the lines of
the site go before it. Where no line says which side is worse, the unit does.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, Struct, convert

from hpcverify.model import Verdict
from hpcverify.units import UNIT_FACTORS

Worse = Literal["low", "high"]
WORSE_BY_DIMENSION: dict[str, Worse] = {
    "time": "high",
    "temperature": "high",
    "energy": "high",
    "bandwidth": "low",
    "compute": "low",
    "integer compute": "low",
    "frequency": "low",
    "rotation": "low",
}


class PeerFloor(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """From which distance a part is an outlier of the metrics that fit, and what that means."""

    check: str = "*"
    metric: str = "*"
    floor: Annotated[float, Meta(gt=0, lt=1)]
    """Relative: 0.02 is 2 %."""
    worse: Worse | None = None
    """Which side is bad; None: the unit says it, and without one both tables are silent."""
    otherwise: Verdict = Verdict.WARN
    """The verdict on an outlier."""
    source: str = ""


@cache
def load_floors() -> tuple[PeerFloor, ...]:
    """Load the table that ships."""
    with Path(__file__).with_name("floors.csv").open(newline="") as file:
        rows = [{key: cell for key, cell in row.items() if cell} for row in csv.DictReader(file)]
    return tuple(convert(row, PeerFloor, strict=False) for row in rows)


def find_floor(check: str, metric: str, of_site: Iterable[PeerFloor] = ()) -> PeerFloor:
    """Find the first line that fits; the last one of the table fits all."""
    return next(
        line
        for line in (*of_site, *load_floors())
        if fnmatchcase(check, line.check) and fnmatchcase(metric, line.metric)
    )


def find_worse_side(floor: PeerFloor, unit: str) -> Worse | None:
    """Return which side is bad, or None if neither the table nor the unit says it."""
    dimension, _ = UNIT_FACTORS.get(unit, ("", 1.0))
    return floor.worse or WORSE_BY_DIMENSION.get(dimension)
