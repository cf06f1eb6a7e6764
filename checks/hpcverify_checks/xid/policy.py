"""
What an Xid means for a node: the table ``xids.csv``, and the rules made from it.

Its columns besides those of all tables: *xid* and NVIDIA's *mnemonic*; *kind*: ``app`` if a
program can cause it, ``context`` if it only accompanies another one, ``gpu`` or ``driver``;
what *nvidia* and *others* do about it, and their *disagreement*; *when*, for an Xid with
several meanings: the recovery action of 154, which is judged as in `recovery`, or what a line
about NVLink must say. For an ``app`` Xid the verdict is that on a single one, and the remedy
that of repeated ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from hpcverify.check import FindingRule, Remedy, Verdict
from hpcverify.telemetry import fault_table
from hpcverify.telemetry.fault_table import KnownFault

TABLE_PATH = Path(__file__).with_name("xids.csv")
REPEATED_SUFFIX, UNDER_LOAD_SUFFIX = "_repeated", "_under_load"
"""Added to the code of an ``app`` Xid that came again, or came under our load."""


class XidRow(KnownFault, frozen=True, kw_only=True):
    """One row of the table."""

    xid: int | None = None
    mnemonic: str = ""
    kind: str
    nvidia: str = ""
    others: str = ""
    disagreement: str = ""
    when: tuple[str, ...] = ()

    @property
    def evidence(self) -> dict[str, str]:
        """The columns that say what NVIDIA and others make of the Xid."""
        columns = {
            "mnemonic": self.mnemonic,
            "nvidia": self.nvidia,
            "others": self.others,
            "disagreement": self.disagreement,
        }
        return {name: value for name, value in columns.items() if value}

    @property
    def rules(self) -> dict[str, FindingRule]:
        """
        The rule of each suffix.

        An Xid that a program can cause is most likely the job's, so a single one is listed. If
        it comes again from another process on the same GPU, or while our own known-good kernels
        run, somebody should look; if our kernels cause it again, the GPU fails. The next run
        begins after these lines, so a FAIL is conclusive.
        """
        rules = super().rules
        if self.kind == "app":
            remedy = max(self.remedy, Remedy.INSPECT, key=list(Remedy).index)
            warning = FindingRule(Verdict.WARN, remedy)
            rules |= {REPEATED_SUFFIX: warning, UNDER_LOAD_SUFFIX: warning}
            rules[UNDER_LOAD_SUFFIX + REPEATED_SUFFIX] = FindingRule(Verdict.FAIL, remedy)
        return rules


@cache
def load_rows() -> Mapping[str, XidRow]:
    """Read the table, by code."""
    return {row.code: row for row in fault_table.load_rows(TABLE_PATH, XidRow)}


@cache
def _index_variants() -> Mapping[tuple[int | None, str], XidRow]:
    return {(row.xid, when): row for row in load_rows().values() for when in row.when}


def find_row(xid: int, *signs: str) -> XidRow:
    """Find the row of *xid* by the first of *signs* in the table, or else by number."""
    for sign in signs:
        if (xid, sign) in _index_variants():
            return _index_variants()[xid, sign]
    return load_rows().get(f"xid_{xid}", load_rows()["xid_unknown"])
