"""
The tables of faults: what an error that was logged or raised says of a part of the node.

Each table is a CSV file with one row per fault, read into a struct that adds the table's own
columns to those of `KnownFault`. An empty cell stands for the column's default, ``yes`` and
``no`` for a boolean, and ``|`` separates the items of a list.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct

from hpcverify.check import FindingRule, Remedy, Verdict, listed

OFTEN_SUFFIX, OVER_SUFFIX = "_often", "_over"
"""Added to the code of a finding that is only listed: it came often, or it has ended."""
BOOLEANS = {"yes": True, "no": False}


class KnownFault(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One row of a table: the columns that tables have in common."""

    code: str
    """The code of the finding; the prefix of the codes with a suffix."""
    verdict: Verdict
    conclusive: bool = False
    """Whether no rerun can take the FAIL back."""
    remedy: Remedy
    often: int | None = None
    """The count since the last run from which a fault that is only listed warns."""
    lasting: bool = False
    """Whether the fault is a state, which is only listed once it has ended."""
    meaning: str
    fix: str = ""
    source: str
    """Where the maker, the code or the standard says so."""

    @property
    def evidence(self) -> dict[str, str]:
        """The columns that a finding shows as evidence."""
        return {"source": self.source}

    @property
    def rules(self) -> dict[str, FindingRule]:
        """The rule of each suffix that the code of a finding may have, by suffix."""
        remedy = Remedy.NONE if self.verdict is Verdict.PASS else self.remedy
        rules = {"": FindingRule(self.verdict, remedy, conclusive=self.conclusive)}
        if self.often:
            rules[OFTEN_SUFFIX] = FindingRule(Verdict.WARN, self.remedy)
        if self.lasting:
            rules |= listed(OVER_SUFFIX)
        return rules

    def choose_suffix(self, count: int, *, ended: bool) -> str:
        """Choose the suffix of a finding on *count* events of a fault that may have *ended*."""
        if self.often and count >= self.often and (ended or self.verdict is Verdict.PASS):
            return OFTEN_SUFFIX
        return OVER_SUFFIX if ended else ""


Row = TypeVar("Row", bound=KnownFault)


def load_rows(path: Path, kind: type[Row]) -> tuple[Row, ...]:
    """Read the table at *path*, whose rows are of *kind*."""
    import csv  # noqa: PLC0415 - a prolog on a healthy node reads no table of CUDA's errors

    lists = {field.name for field in msgspec.structs.fields(kind) if field.type == tuple[str, ...]}
    names, *lines = csv.reader(path.read_text(encoding="utf-8").splitlines())
    return tuple(
        msgspec.convert(
            {
                name: cell.split("|") if name in lists else BOOLEANS.get(cell, cell)
                for name, cell in zip(names, cells, strict=True)
                if cell
            },
            kind,
            strict=False,
        )
        for cells in lines
    )


def index_rows(path: Path, kind: type[Row]) -> dict[str, Row]:
    """Read the table at *path*, whose rows are of *kind*, by code."""
    rows = load_rows(path, kind)
    by_code = {row.code: row for row in rows}
    if len(by_code) < len(rows):
        raise ValueError(f"{path.name} lists a code twice")
    return by_code


def build_finding_rules(rows: Iterable[KnownFault]) -> dict[str, FindingRule]:
    """Build the rule of every code that a finding on a fault of *rows* may have."""
    return {row.code + suffix: rule for row in rows for suffix, rule in row.rules.items()}
