"""The small interface behind which a suite's tasks run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from msgspec import Struct

from hpcverify.run.wire import Item, Outcome, Task

TELEMETRY_WORKER = "telemetry"
"""The name of the worker that reads the hardware, and computes on none of it."""


class Answer(Struct, frozen=True, kw_only=True):
    """What a worker yielded for one task, in order, and how the task ended."""

    items: tuple[Item, ...] = ()
    outcome: Outcome


class Executor(Protocol):
    """
    Gives tasks to workers by name, and returns an answer for each.

    Implementations own their workers: `close` ends those that still run.
    """

    def run(self, tasks: Mapping[str, Task], timeout: float) -> dict[str, Answer]:
        """Run each task on the worker with its name, all at once, for *timeout* seconds."""
        ...

    def should_stop(self) -> bool:
        """Whether the run was told to end."""
        ...

    def close(self, *, hurry: bool = False) -> None:
        """End all workers; in a *hurry*, do not wait long for those that hang."""
        ...
