"""
What other tools measure: which side is worse, and their output as rows of a table.

`foreign.csv` has the names that nccl-tests and SuperBench document, and those of columns that have
a unit for a name. A metric of ours is declared with its check.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

from msgspec import Struct, convert

from hpcverify.errors import ConfigError
from hpcverify.model import Side
from hpcverify.peers.floors import FindSide, Worse

HEADER = ("node", "part", "check", "metric", "value", "unit")
"""The columns of the rows that are made here."""
NCCL_MARK = re.compile(r"#\s*(nThread|.*\bout-of-place\b)")
NCCL_RANK = re.compile(r"#\s+Rank\s+\d+ .*\bon\s+(\S+)\s+device\b")
NCCL_FIELDS, NCCL_WAYS = 12, (("", -8), (".in_place", -4))
"""A row has at least so many fields; the last eight are time, algbw, busbw and errors, twice."""
SUPERBENCH_NAME = re.compile(r"(?:(?P<check>[^/]+)/)?(?P<metric>.+?)(?::(?P<part>\d+))?")
Row = tuple[str, str, str, str, object, str]


class ForeignMetric(Struct, frozen=True, forbid_unknown_fields=True):
    """A metric of another tool, by its name or pattern in lower case."""

    metric: str
    worse: Side
    unit: str = ""
    source: str = ""


@cache
def load_foreign() -> tuple[ForeignMetric, ...]:
    """Load the table that ships."""
    with Path(__file__).with_name("foreign.csv").open(newline="") as file:
        return tuple(convert(row, ForeignMetric, strict=False) for row in csv.DictReader(file))


def find_foreign(metric: str) -> ForeignMetric | None:
    """Find the first line that fits a metric of another tool."""
    name = metric.lower()
    return next((line for line in load_foreign() if fnmatchcase(name, line.metric)), None)


def make_foreign_side_finder(find_side: FindSide, otherwise: Worse | None) -> FindSide:
    """Make what asks *find_side* first, then the table; *otherwise* is for the rest."""

    def find(check: str, metric: str) -> Side | None:
        known = find_foreign(metric)
        return find_side(check, metric) or (known.worse if known else otherwise)

    return find


def is_nccl_tests(lines: Iterable[str]) -> bool:
    """Whether *lines*, the first ones of a text, are of nccl-tests, maybe among others."""
    return any(NCCL_MARK.match(line) for line in lines)


def read_nccl_tests(lines: Iterable[str]) -> Iterator[Row]:
    """Read the output of nccl-tests, with a value for all nodes of a run."""
    nodes: dict[str, None] = {}
    began = False
    for line in lines:
        if line.lstrip().startswith("#"):
            rank = NCCL_RANK.search(line)
            if began and (rank or NCCL_MARK.match(line)):
                nodes, began = {}, False
            if rank:
                nodes[rank[1]] = None
            continue
        fields = line.split()
        if len(fields) < NCCL_FIELDS or not (fields[0].isdecimal() and fields[1].isdecimal()):
            continue
        began = True
        node = ",".join(nodes)
        for way, first in NCCL_WAYS:
            time, _, busbw, wrong = fields[first:][:4]
            size = f"{fields[0]}{way}"
            yield node, "", "nccl-tests", f"time.{size}", time, "us"
            yield node, "", "nccl-tests", f"busbw.{size}", busbw, "GB/s"
            yield node, "", "nccl-tests", f"wrong.{size}", wrong, ""


def read_superbench(lines: Iterable[str]) -> Iterator[Row]:
    """Read the lines of JSON that SuperBench writes, one for each node."""
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as exc:
            raise ConfigError(f"line {number} is not JSON: {exc}") from exc
        if not isinstance(row, dict) or not isinstance(node := row.pop("node", None), str):
            raise ConfigError(f"line {number} has no node: a line of SuperBench begins with one")
        for name, value in row.items():
            match = SUPERBENCH_NAME.fullmatch(name)
            if match and isinstance(value, (int, float)) and not isinstance(value, bool):
                part = match["part"] or ""
                yield node, part, match["check"] or "", match["metric"], value, ""
