"""
Parses what Slurm's accounting has of everybody's jobs, and whom their users avoid.

No column holds a text that a user chose: a job's name could forge a row.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from msgspec import Struct

from hpcverify.errors import ConfigError, SlurmError
from hpcverify.plan.hostlist import expand

JOB_COLUMNS = ("UID", "Partition", "State", "Start", "End", "NodeList")
"""sacct's columns, separated by ``|``."""
AVOIDED_FORMAT = "%U|%x"
"""squeue's format: as a column of ``-O``, 22.05 prints no excluded node."""
RUNS = "Unknown"
"""The end of a job that runs."""
NO_NODES = ("", "None assigned", "(null)", "N/A")


class UserJob(Struct, frozen=True, kw_only=True):
    """A job of anybody that runs or has run."""

    user: int
    partition: str
    state: str
    """In capitals: COMPLETED, FAILED, NODE_FAIL, …"""
    start: int
    """Seconds since 1970."""
    end: int
    """The same; 0: it runs."""
    nodes: tuple[str, ...]


def parse_user_jobs(printed: str) -> Iterator[UserJob]:
    """Parse rows of `JOB_COLUMNS`; those that have not run are left out."""
    rows = [line.split("|") for line in printed.splitlines()]
    known = [row for row in rows if len(row) == len(JOB_COLUMNS)]
    if rows and not known:
        raise SlurmError(f"sacct printed unexpected output: {printed.strip()[:80]!r}")
    for user, partition, state, start, end, nodes in known:
        if not (user.isdecimal() and start.isdecimal() and (end.isdecimal() or end == RUNS)):
            continue
        if not (where := _expand_known(nodes)):
            continue
        yield UserJob(
            user=int(user),
            partition=partition,
            state=state.partition(" ")[0],  # CANCELLED by 0
            start=int(start),
            end=0 if end == RUNS else int(end),
            nodes=where,
        )


def parse_avoided_nodes(printed: str) -> dict[str, set[int]]:
    """Parse rows of `AVOIDED_FORMAT` into the users whose jobs must not run on each node."""
    avoided: dict[str, set[int]] = {}
    for line in printed.splitlines():
        user, _, nodes = line.partition("|")
        if not user.strip().isdecimal():
            continue
        for node in _expand_known(nodes.strip()):
            avoided.setdefault(node, set()).add(int(user))
    return avoided


@lru_cache(maxsize=10_000)
def _expand_known(nodes: str) -> tuple[str, ...]:
    """Expand a list of nodes, each once for many jobs; one that nobody can read has none."""
    if nodes in NO_NODES:
        return ()
    try:
        return tuple(expand(nodes))
    except ConfigError:
        return ()
