"""
Slurm, by its commands: the one room that calls it.

What is read comes back as the values below, whatever dialect this version of Slurm
speaks. An answer that is not whole is a `SlurmError`, never an empty table: whoever
asked does nothing then.
"""

from __future__ import annotations

from msgspec import Struct


class Host(Struct, frozen=True, kw_only=True):
    """A node as Slurm sees it; each once, though it is in several partitions."""

    name: str
    state: str
    """In capitals, without what `flags` say: IDLE, ALLOCATED, MIXED, DOWN, …"""
    flags: frozenset[str] = frozenset()
    """In capitals: DRAIN, COMPLETING, MAINT, RESERVED, PLANNED, NOT_RESPONDING, …"""
    partitions: tuple[str, ...] = ()
    gpus: int = 0
    """What a job has to ask for to get all of them."""
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
    """Also of one that ended by itself in its grace time, and reads COMPLETED."""


class Reservation(Struct, frozen=True, kw_only=True):
    """A reservation as Slurm sees it."""

    name: str
    nodes: tuple[str, ...]
    flags: frozenset[str] = frozenset()


class Partition(Struct, frozen=True, kw_only=True):
    """What a partition lets jobs do."""

    name: str
    max_minutes: float
    """For a job, at most (``MaxTime``): Slurm queues a longer one for ever."""
    preempt_mode: str
    """What becomes of a job that gives way (``PreemptMode``); OFF: none does."""
    tier: int
    """``PriorityTier``: with preempt/partition_prio, the higher one preempts."""
    root_only: bool
    """Whether it is for root's jobs alone: Slurm queues others for ever."""
    grace: str = "0"
    """``GraceTime``, in seconds."""
    state: str = "UP"
    hostlist: str = ""
    """Its nodes, as Slurm writes them."""
    open_to_all: bool = False
    """Whether any user may submit jobs to it."""

    @property
    def is_preemptible(self) -> bool:
        """Whether jobs there can give way to others at all."""
        return self.preempt_mode != "OFF"


class Preemption(Struct, frozen=True, kw_only=True):
    """How jobs give way in this cluster."""

    kind: str
    """``PreemptType``: preempt/none, preempt/partition_prio, preempt/qos."""
    exempt: str
    """``PreemptExemptTime``: for so long after its start a job gives way to nobody."""
