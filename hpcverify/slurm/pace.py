"""Limits our queries to one a second on average: Slurm's controller serves users."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hpcverify.slurm.command import RunCommand, run_command

READ_COMMANDS = frozenset({"squeue", "sinfo", "sacct"})
"""Commands that only read, besides ``scontrol show``."""
SECONDS_PER_QUERY = 1.0
MAX_BURST_QUERIES = 10.0
"""Queries that may come together, after as many seconds without one: holding a node
takes some reads around each write, which should not wait for one another."""


@dataclass
class RateLimitedRun:
    """A `RunCommand` that delays queries, never writes."""

    run: RunCommand = run_command
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    _free_at: float = 0.0
    """When the time of every query so far is used up."""

    def __call__(self, command: Sequence[str]) -> str:
        """Run *command* as soon as the limit allows."""
        if _only_reads(command):
            now = self.clock()
            self._free_at = max(self._free_at, now) + SECONDS_PER_QUERY
            self.sleep(max(0.0, self._free_at - now - MAX_BURST_QUERIES * SECONDS_PER_QUERY))
        return self.run(command)


def _only_reads(command: Sequence[str]) -> bool:
    return command[0] in READ_COMMANDS or tuple(command[:2]) == ("scontrol", "show")
