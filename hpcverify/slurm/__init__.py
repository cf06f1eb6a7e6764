"""
Slurm, by its commands; nothing else calls it.

Answers come back as the values below, whatever dialect this version of Slurm prints.
An incomplete answer is a `SlurmError`, never an empty table; the caller then does
nothing.
"""

from __future__ import annotations

from msgspec import Struct

NO_PREEMPTION = "preempt/none"
"""The ``PreemptType`` of a cluster that names none."""


class Host(Struct, frozen=True, kw_only=True):
    """A node as Slurm sees it; once, even if it is in several partitions."""

    name: str
    state: str
    """In capitals, without what `flags` say: IDLE, ALLOCATED, MIXED, DOWN, …"""
    flags: frozenset[str] = frozenset()
    """In capitals: DRAIN, COMPLETING, MAINT, RESERVED, PLANNED, NOT_RESPONDING, …"""
    partitions: tuple[str, ...] = ()
    gpus: int = 0
    """How many a job must request to get all of them."""
    reason: str = ""
    """Word for word."""
    reason_user: str = ""
    reason_time: int = 0
    """Seconds since 1970; 0: there is none."""
    boot_time: int = 0


class Job(Struct, frozen=True, kw_only=True):
    """A job as Slurm sees it."""

    id: int
    name: str
    state: str
    """In capitals: PENDING, RUNNING, COMPLETED, PREEMPTED, NODE_FAIL, …"""
    reason: str = ""
    """Why it waits, or ended as it did."""
    node: str = ""
    start: int = 0
    """Seconds since 1970; 0: it never started."""
    end: int = 0
    exit_status: int = 0
    signal: int = 0
    preempted: bool = False
    """True also if it ended by itself in its grace time, and its state is COMPLETED."""


class Reservation(Struct, frozen=True, kw_only=True):
    """A reservation as Slurm sees it."""

    name: str
    nodes: tuple[str, ...]
    flags: frozenset[str] = frozenset()


class Partition(Struct, frozen=True, kw_only=True):
    """What a partition lets jobs do."""

    name: str
    max_minutes: float
    """``MaxTime``: Slurm queues a longer job without ever starting it."""
    preempt_mode: str
    """``PreemptMode``: what happens to a preempted job; OFF: none is preempted."""
    tier: int
    """``PriorityTier``: with preempt/partition_prio, the higher one preempts."""
    root_only: bool
    grace: str = "0"
    state: str = "UP"
    hostlist: str = ""
    open_to_all: bool = False

    @property
    def is_preemptible(self) -> bool:
        """Whether jobs there can be preempted at all."""
        return self.preempt_mode != "OFF"


class Preemption(Struct, frozen=True, kw_only=True):
    """How jobs are preempted in this cluster."""

    kind: str
    """``PreemptType``: preempt/none, preempt/partition_prio, preempt/qos."""
    exempt: str
    """``PreemptExemptTime``: how long after its start a job cannot be preempted."""
    mode: str = "OFF"
    """``PreemptMode`` of the cluster; beside preempt/none it may be GANG, for time slices."""


class HookSettings(Struct, frozen=True, kw_only=True):
    """What Slurm's settings say about hooks, and about who may submit jobs."""

    version: tuple[int, int]
    conf: str = ""
    prolog: tuple[str, ...] = ()
    """Paths or patterns, in their order."""
    epilog: tuple[str, ...] = ()
    health_check: str = ""
    health_seconds: int = 0
    """Between two health checks; 0: there are none."""
    prolog_timeout: int | None = None
    """``PrologEpilogTimeout`` in seconds; None: there is no limit."""
    scheduler: tuple[str, ...] = ()
    enforced: tuple[str, ...] = ()
