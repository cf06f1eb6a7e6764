"""
Runs one Slurm command, with a time limit and a neutral environment.

Queries are limited to one a second on average: Slurm's controller serves users.

Times come as seconds since 1970 (``SLURM_TIME_FORMAT``), so that no time zone or clock
change comes between Slurm and us.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcverify.check import Unable
from hpcverify.errors import SlurmError
from hpcverify.model import Cause
from hpcverify.processes import CompletedTool, run_tool

RunCommand = Callable[[Sequence[str]], str]
"""Runs a command and returns what it printed; raises nothing but SlurmError."""

TIMEOUT_S = 20.0
"""Slurm's own commands wait 9 s for a controller that is down, 10 s for one that hangs
(``MessageTimeout`` of 10); a shorter limit would hide their error messages."""

NO_CONFIG_TEXT = b"Could not establish a configuration source"
"""In the error of a command that found no slurm.conf, nor one by DNS."""

READ_COMMANDS = frozenset({"squeue", "sinfo", "sacct"})
"""Commands that only read, besides ``scontrol show``."""
SECONDS_PER_QUERY = 1.0
MAX_BURST_QUERIES = 10.0
"""Queries that may come together, after as many seconds without one: holding a node
takes some reads around each write, which should not wait for one another."""

_KEPT_VARIABLES = frozenset({"SLURM_CONF", "SLURM_JWT"})
_JOB_VARIABLES = _KEPT_VARIABLES | {"PATH", "HOME", "USER", "LOGNAME", "LC_ALL"}
"""What a job may get of our environment: the rest may hold secrets."""
_SLURM_VARIABLE_PATTERN = re.compile(r"(SLURM|SLURMD|SBATCH|SQUEUE|SINFO|SACCT|SCANCEL|SCONTROL)_")
"""Variables that change what a command does or prints: of a job that we may be in, or
a user's own defaults."""


def run_command(
    command: Sequence[str], *, environ: Mapping[str, str] | None = None, timeout: float = TIMEOUT_S
) -> str:
    """Run *command* and return its output; after a timeout it may still take effect."""
    environ = os.environ if environ is None else environ
    conf = environ.get("SLURM_CONF", "")
    if conf and not Path(conf).exists():  # the command would look for it for a long time
        raise SlurmError(f"{conf} (SLURM_CONF) does not exist")
    try:
        env = clean_environment(environ)
        if command[0] == "sbatch":  # Slurm shows a job's environment to everybody
            env = {name: env[name] for name in env if name in _JOB_VARIABLES}
        done = run_tool(command, timeout=timeout, env=env)
    except Unable as exc:
        hints = {
            Cause.MISSING: "is not installed or not in PATH. Fix: install Slurm's client tools",
            Cause.TIMEOUT: f"did not end within {timeout:g} s. Fix: scontrol ping",
        }
        hint = hints.get(exc.cause)
        raise SlurmError(f"{command[0]} {hint}" if hint else str(exc)) from exc
    except OSError as exc:
        raise SlurmError(f"{command[0]} cannot be run: {exc.strerror}") from exc
    if done.returncode != 0:
        raise SlurmError(f"{' '.join(command[:2])}: {_find_error_line(done)}")
    # A reason may contain anything; that of one node must not spoil the whole answer.
    return done.stdout.decode(errors="replace")


def clean_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return *environ* without what influences Slurm's commands, and with LC_ALL=C."""
    kept = {
        k: v
        for k, v in environ.items()
        if k in _KEPT_VARIABLES or not _SLURM_VARIABLE_PATTERN.match(k)
    }
    return kept | {"LC_ALL": "C", "SLURM_TIME_FORMAT": "%s"}


def _find_error_line(done: CompletedTool) -> str:
    if NO_CONFIG_TEXT in done.stderr:
        return "slurm.conf not found. Fix: set SLURM_CONF, or copy slurm.conf to /etc/slurm"
    # If one of several nodes is unknown, scontrol prints that last, on its output.
    for printed, which in ((done.stderr, 0), (done.stdout, -1)):
        lines = printed.decode(errors="replace").split("\n")
        if lines := [line.strip() for line in lines if line.strip()]:
            return lines[which]
    return f"exit status {done.returncode}, without an error message"


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
        if command[0] in READ_COMMANDS or tuple(command[:2]) == ("scontrol", "show"):
            now = self.clock()
            self._free_at = max(self._free_at, now) + SECONDS_PER_QUERY
            self.sleep(max(0.0, self._free_at - now - MAX_BURST_QUERIES * SECONDS_PER_QUERY))
        return self.run(command)
