"""
The faults, and what hpcverify must make of each.

A fault is a few lines of a scenario on a board of eight H100 that is healthy but for
them. `passive.csv` has those that the prolog suite must see, after a run in which the
board was well; `loaded.csv` those that only show while the GPUs work.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hpcverify.model import Cause, Remedy, Verdict
from tests.tables import read_table

HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault; *says* are words of the reason, or calls in the evidence."""

    name: str
    scenario: str
    check: str
    verdict: Verdict
    remedy: Remedy
    says: str = ""
    cause: Cause = Cause.NONE

    @property
    def lines(self) -> list[str]:
        """The lines of the scenario, which the table has between semicolons."""
        return [line.strip() for line in self.scenario.split(";")]


PASSIVE = read_table(HERE / "passive.csv", Fault)
LOADED = read_table(HERE / "loaded.csv", Fault)
