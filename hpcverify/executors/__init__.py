"""Ways to run a suite's tasks, behind one small interface."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from msgspec import Struct

from hpcverify.check import Trial
from hpcverify.model import Found
from hpcverify.wire import Outcome, Reply, Task


class Answer(Struct, frozen=True, kw_only=True):
    """All that a worker replied to one task, and how the task ended."""

    replies: tuple[Reply, ...]
    outcome: Outcome

    @property
    def found(self) -> tuple[Found, ...]:
        """What was found, in order."""
        return tuple(r.found for r in self.replies if r.found is not None)

    @property
    def trials(self) -> tuple[Trial, ...]:
        """What became of the faults that were injected, in order."""
        return tuple(r.trial for r in self.replies if r.trial is not None)


class Executor(Protocol):
    """
    Hands tasks to workers by name, and brings back an answer for every one.

    Implementations own their workers: `close` ends whatever still runs.
    """

    def run(self, tasks: Mapping[str, Task], timeout: float) -> dict[str, Answer]:
        """Run each task on the worker of its name, all at the same time."""
        ...

    def stopped(self) -> bool:
        """Whether the run was told to end."""
        ...

    def close(self, *, hurry: bool = False) -> None:
        """End all workers; in a *hurry*, do not wait for those that hang."""
        ...
