"""Ways to run a suite's tasks, behind one small interface."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from msgspec import Struct

from hpcverify.check import Trial
from hpcverify.model import CheckItem
from hpcverify.wire import Outcome, Response, Task


class Answer(Struct, frozen=True, kw_only=True):
    """All that a worker replied to one task, and how the task ended."""

    responses: tuple[Response, ...]
    outcome: Outcome

    @property
    def items(self) -> tuple[CheckItem, ...]:
        """What was found, in order."""
        return tuple(r.item for r in self.responses if r.item is not None)

    @property
    def trials(self) -> tuple[Trial, ...]:
        """What became of the faults that were injected, in order."""
        return tuple(r.trial for r in self.responses if r.trial is not None)


class Executor(Protocol):
    """
    Hands tasks to workers by name, and brings back an answer for every one.

    Implementations own their workers: `close` ends whatever still runs.
    """

    def run(self, tasks: Mapping[str, Task], timeout: float) -> dict[str, Answer]:
        """Run each task on the worker of its name, all at the same time."""
        ...

    def should_stop(self) -> bool:
        """Whether the run was told to end."""
        ...

    def close(self, *, hurry: bool = False) -> None:
        """End all workers; in a *hurry*, do not wait for those that hang."""
        ...
