"""Ask Slurm once a second on average and no more: its controller serves users."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hpcverify.slurm.command import RunCommand, run_command

QUESTIONS = frozenset({"squeue", "sinfo", "sacct"})
"""Commands that only read, beside ``scontrol show``."""
SECONDS = 1.0
"""That each question takes up."""
AT_ONCE = 10.0
"""Questions that may come together, after as many seconds without one: to hold a node
takes some reads around each write, which should not wait for one another."""


@dataclass
class Paced:
    """A `RunCommand` that holds back questions, never what acts."""

    run: RunCommand = run_command
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    _free: float = 0.0
    """When every question so far will have taken up its time."""

    def __call__(self, command: Sequence[str]) -> str:
        """Run *command*, as soon as it may be."""
        if _asks(command):
            now = self.clock()
            self._free = max(self._free, now) + SECONDS
            self.sleep(max(0.0, self._free - now - AT_ONCE * SECONDS))
        return self.run(command)


def _asks(command: Sequence[str]) -> bool:
    return command[0] in QUESTIONS or tuple(command[:2]) == ("scontrol", "show")
