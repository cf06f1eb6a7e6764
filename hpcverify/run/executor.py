"""The small interface behind which a suite's tasks run."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from msgspec import Struct

from hpcverify.run.wire import Item, Outcome, Task


class Overrun(Struct, frozen=True, kw_only=True):
    """What is known of a worker that was still busy when its time was up."""

    seconds: float
    doing: str = ""
    part: str = ""
    """The part that was doing it; empty if it may have been waiting for others."""
    doing_seconds: float = 0.0
    hindrance: str = ""
    """What kept it from working, with the fix: a signal, or too few cores."""
    stuck: str = ""


class Answer(Struct, frozen=True, kw_only=True):
    """What a worker yielded for one task, in order, and how the task ended."""

    items: tuple[Item, ...] = ()
    outcome: Outcome
    overrun: Overrun | None = None


class Executor(Protocol):
    """Gives tasks to workers, which it owns, by name, and returns an answer for each."""

    def run(self, tasks: Mapping[str, Task], timeout: float) -> dict[str, Answer]:
        """Run each task on the worker with its name, all at once, for *timeout* seconds."""

    def should_stop(self) -> bool:
        """Whether the run was asked to end."""

    def close(self, names: Collection[str] | None = None, *, hurry: bool = False) -> None:
        """End all workers, or those of *names*; in a *hurry*, do not wait long for any."""
