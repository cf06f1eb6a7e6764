"""Who is told how a run goes on."""

from __future__ import annotations

from typing import Protocol

from hpcverify.model import (
    Result,
)
from hpcverify.plan.suite import Plan, Step


class Progress(Protocol):
    """Someone who is told how a run goes on."""

    def begin_step(self, step: Step, place: int, plan: Plan, where: str) -> None:
        """Say that *step* begins, as number *place* of *plan*, through all rounds."""
        ...

    def tick(self) -> None:
        """Say that time has passed."""
        ...

    def end_step(self, result: Result) -> None:
        """Say that a check has its result."""
        ...
