"""
What an Xid means for a node: the table ``xids.csv``, and the rules made from it.

Its columns: *code* of the finding; *xid* and NVIDIA's *mnemonic*; its *meaning*;
*kind*: ``app`` if a program can cause it, ``context`` if it only accompanies another
one, ``gpu`` or ``driver``; our *verdict* and *remedy* (for an ``app`` Xid, the verdict
on a single one, and the remedy once it counts); what NVIDIA and others do about it, and
where they differ; *when*, for an Xid with several meanings: the recovery action of 154,
which is judged as in `recovery`, or what a line about NVLink must say.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import msgspec
from msgspec import Struct

from hpcverify.check import FindingRule, Remedy, Verdict

TABLE_PATH = Path(__file__).with_name("xids.csv")
REPEATED_SUFFIX, UNDER_LOAD_SUFFIX = "_repeated", "_under_load"
"""Added to the code of an ``app`` Xid that came again, or came under our load."""


class XidRow(Struct, frozen=True, kw_only=True):
    """One row of the table."""

    code: str
    xid: int | None
    mnemonic: str
    meaning: str
    kind: str
    verdict: Verdict
    remedy: Remedy
    nvidia: str
    others: str
    disagreement: str
    when: tuple[str, ...]
    source: str


@cache
def load_rows() -> Mapping[str, XidRow]:
    """Read the table, by code."""
    text = TABLE_PATH.read_text(encoding="utf-8")
    values = (
        {**line, "xid": line["xid"] or None, "when": [*filter(None, line["when"].split("|"))]}
        for line in csv.DictReader(text.splitlines())
    )
    return {row.code: row for row in msgspec.convert([*values], list[XidRow], strict=False)}


@cache
def _index_variants() -> Mapping[tuple[int | None, str], XidRow]:
    return {(row.xid, when): row for row in load_rows().values() for when in row.when}


def find_row(xid: int, *signs: str) -> XidRow:
    """Find the row of *xid* by the first of *signs* in the table, or else by number."""
    for sign in signs:
        if (xid, sign) in _index_variants():
            return _index_variants()[xid, sign]
    return load_rows().get(f"xid_{xid}", load_rows()["xid_unknown"])


def build_finding_rules() -> dict[str, FindingRule]:
    """
    Make the rule of every code.

    An Xid that a program can cause accuses no GPU: it was most likely the job, so a
    single one is listed and passes. If it comes again from another process on the same
    GPU, or while our own known-good kernels run, somebody should look; if our kernels
    cause it again, it is the GPU. The next run begins after these lines, so it takes
    nothing back.
    """
    table = {
        r.code: FindingRule(r.verdict, r.remedy, conclusive=r.verdict is Verdict.FAIL)
        for r in load_rows().values()
    }
    for row in load_rows().values():
        if row.kind != "app":
            continue
        table[row.code] = FindingRule(row.verdict, Remedy.NONE)
        remedy = max(row.remedy, Remedy.INSPECT, key=list(Remedy).index)
        table[row.code + REPEATED_SUFFIX] = FindingRule(Verdict.WARN, remedy)
        table[row.code + UNDER_LOAD_SUFFIX] = FindingRule(Verdict.WARN, remedy)
        table[row.code + UNDER_LOAD_SUFFIX + REPEATED_SUFFIX] = FindingRule(Verdict.FAIL, remedy)
    return table
