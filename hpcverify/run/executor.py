"""Ways to run a suite's tasks, behind one small interface."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from msgspec import Struct

from hpcverify.run.wire import Item, Outcome, Task


class Answer(Struct, frozen=True, kw_only=True):
    """What a worker yielded of one task, in order, and how the task ended."""

    items: tuple[Item, ...] = ()
    outcome: Outcome


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
