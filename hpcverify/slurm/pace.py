"""Ask Slurm no more often than once in a while: its controller serves users first."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hpcverify.slurm.command import RunCommand, run_command

QUESTIONS = frozenset({"squeue", "sinfo", "sacct"})
"""Commands that only read, beside ``scontrol show``."""
SECONDS = 1.0


@dataclass
class Paced:
    """A `RunCommand` that waits between two questions; what acts is never delayed."""

    run: RunCommand = run_command
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    _next: float = 0.0

    def __call__(self, command: Sequence[str]) -> str:
        """Run *command*, as soon as it may be."""
        if _asks(command):
            self.sleep(max(0.0, self._next - self.clock()))
            self._next = self.clock() + SECONDS
        return self.run(command)


def _asks(command: Sequence[str]) -> bool:
    return command[0] in QUESTIONS or tuple(command[:2]) == ("scontrol", "show")
