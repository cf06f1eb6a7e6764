"""The protocol by which a run reports its progress."""

from __future__ import annotations

from typing import Protocol

from hpcverify.model import Result
from hpcverify.plan.suite import Plan, Step


class Progress(Protocol):
    """Reports the progress of a run."""

    def begin_step(self, step: Step, place: int, plan: Plan, target: str) -> None:
        """Report that *step* begins, as number *place* of *plan*, counted through all rounds."""

    def tick(self) -> None:
        """Report that time has passed."""

    def end_step(self, result: Result) -> None:
        """Report the result of a check."""
