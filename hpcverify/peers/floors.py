"""
What difference between peers is worth a word.

`floors.csv` is the table of sizes; the first line that fits a check and a metric wins, and the
lines of the site go before it. Which side is the bad one is declared with the metric, by its check
(`hpcverify.check.Metric`) or, for what other tools measure, in `foreign.csv`. A line of the site
may say otherwise. Nothing is guessed from a unit: 24 °C and 0.05 s can be the best or the worst.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, Struct, convert
from msgspec.structs import replace

from hpcverify.model import Side, Verdict

Worse = Literal["low", "high"]
FindSide = Callable[[str, str], Side | None]
"""Says which side is worse, by the names of a check and a metric; None: nobody knows."""


class PeerFloor(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """From which distance a part is an outlier of the metrics that fit, and what that means."""

    check: str = "*"
    """A check, or a pattern."""
    metric: str = "*"
    """A measurement of the check, or a pattern."""
    floor: Annotated[float, Meta(gt=0, lt=1)]
    """Relative: 0.02 is 2 %."""
    worse: Side | None = None
    """Which side is bad; by default the one that the check declares."""
    otherwise: Verdict = Verdict.WARN
    """The verdict on an outlier."""
    source: str = ""
    """Where the floor is from."""

    @property
    def worse_side(self) -> Worse | None:
        """The side on which parts are compared; None: on neither, or nobody knows on which."""
        return None if self.worse == "neither" else self.worse


FindFloor = Callable[[str, str], PeerFloor]
"""Finds the line for a check and a metric, with the side that is bad if anybody says it."""


@cache
def load_floors() -> tuple[PeerFloor, ...]:
    """Load the table that ships."""
    with Path(__file__).with_name("floors.csv").open(newline="") as file:
        return tuple(convert(row, PeerFloor, strict=False) for row in csv.DictReader(file))


def find_floor(check: str, metric: str, of_site: Iterable[PeerFloor] = ()) -> PeerFloor:
    """Find the first line that fits; the last one of the table fits all."""
    return next(
        line
        for line in (*of_site, *load_floors())
        if fnmatchcase(check, line.check) and fnmatchcase(metric, line.metric)
    )


def make_floor_finder(of_site: Iterable[PeerFloor], find_side: FindSide) -> FindFloor:
    """Make what finds the line for a metric: of the site or the table, and its declared side."""
    lines = tuple(of_site)

    @cache
    def find(check: str, metric: str) -> PeerFloor:
        line = find_floor(check, metric, lines)
        return line if line.worse else replace(line, worse=find_side(check, metric))

    return find
