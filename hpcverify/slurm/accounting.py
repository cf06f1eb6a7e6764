"""
Parses what Slurm's accounting has of everybody's jobs, and whom their users avoid.

No column holds a text that a user chose: a job's name could forge a row.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from hpcverify.slurm.hostlist import expand

ENDED_COLUMNS = ("UID", "Partition", "State", "Start", "End", "NodeList")
"""sacct's columns, separated by ``|``."""
AVOIDED_FORMAT = "%U|%x"
"""squeue's format: as a column of ``-O``, 22.05 prints no excluded node."""
NO_NODES = ("", "None assigned", "(null)", "N/A")


class UserJob(Struct, frozen=True, kw_only=True):
    """A job of anybody that ran and ended."""

    user: int
    partition: str
    state: str
    """In capitals: COMPLETED, FAILED, NODE_FAIL, …"""
    start: int
    """Seconds since 1970."""
    end: int
    nodes: tuple[str, ...]


def parse_ended_jobs(printed: str) -> Iterator[UserJob]:
    """Parse rows of `ENDED_COLUMNS`; those that have not run, or not ended, are left out."""
    for line in printed.splitlines():
        fields = line.split("|")
        if len(fields) != len(ENDED_COLUMNS):
            continue
        user, partition, state, start, end, nodes = fields
        if not (user.isdigit() and start.isdigit() and end.isdigit()) or nodes in NO_NODES:
            continue
        yield UserJob(
            user=int(user),
            partition=partition,
            state=state.split()[0],  # CANCELLED by 0
            start=int(start),
            end=int(end),
            nodes=tuple(expand(nodes)),
        )


def parse_avoided_nodes(printed: str) -> dict[str, set[int]]:
    """Parse rows of `AVOIDED_FORMAT` into the users whose jobs must not run on each node."""
    avoided: dict[str, set[int]] = {}
    for line in printed.splitlines():
        user, _, nodes = line.partition("|")
        if not user.strip().isdigit() or nodes.strip() in NO_NODES:
            continue
        for node in expand(nodes.strip()):
            avoided.setdefault(node, set()).add(int(user))
    return avoided
