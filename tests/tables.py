"""Reads tables of the tests: CSV files, each row of which is a dataclass."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import TypeVar, get_origin, get_type_hints

import msgspec

R = TypeVar("R")
SEPARATOR = "; "


def read_table(path: Path, row: type[R]) -> tuple[R, ...]:
    """
    Read the rows of *path*. An empty cell is its field's default; `SEPARATOR` divides a tuple.

    Raises ``msgspec.ValidationError`` for a cell that its field does not take.
    """
    tuples = {name for name, hint in get_type_hints(row).items() if get_origin(hint) is tuple}
    with path.open(newline="") as file:
        return tuple(
            msgspec.convert(
                {k: v.split(SEPARATOR) if k in tuples else v for k, v in cells.items() if v},
                row,
                strict=False,
            )
            for cells in csv.DictReader(file)
        )
