"""Ask Slurm once a second on average and no more: its controller serves users."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hpcverify.slurm.command import RunCommand, run_command

READ_COMMANDS = frozenset({"squeue", "sinfo", "sacct"})
"""Commands that only read, beside ``scontrol show``."""
SECONDS_PER_QUERY = 1.0
"""That each question takes up."""
MAX_BURST_QUERIES = 10.0
"""Questions that may come together, after as many seconds without one: to hold a node
takes some reads around each write, which should not wait for one another."""


@dataclass
class RateLimitedRun:
    """A `RunCommand` that holds back questions, never what acts."""

    run: RunCommand = run_command
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    _free_at: float = 0.0
    """When every question so far will have taken up its time."""

    def __call__(self, command: Sequence[str]) -> str:
        """Run *command*, as soon as it may be."""
        if _only_reads(command):
            now = self.clock()
            self._free_at = max(self._free_at, now) + SECONDS_PER_QUERY
            self.sleep(max(0.0, self._free_at - now - MAX_BURST_QUERIES * SECONDS_PER_QUERY))
        return self.run(command)


def _only_reads(command: Sequence[str]) -> bool:
    return command[0] in READ_COMMANDS or tuple(command[:2]) == ("scontrol", "show")
