"""
How Slurm's partitions treat verifications and users' jobs.

Preemption is set for the whole cluster, and is a trap: switching it on for the
verifications switches it on in every partition that does not have PreemptMode=OFF. So
`config check` reads Slurm's settings, and says whose jobs would preempt whose.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain

from hpcverify.errors import HpcverifyError, SlurmError
from hpcverify.plan.config import Fleet
from hpcverify.plan.hostlist import expand, fold
from hpcverify.plan.suite import load_suite
from hpcverify.slurm import Partition, Preemption
from hpcverify.slurm.client import Slurm
from hpcverify.slurm.submit import compute_minutes

PREEMPT_BY_PARTITION, PREEMPT_BY_QOS = "preempt/partition_prio", "preempt/qos"
ZERO_EXEMPT_TIMES = frozenset({"00:00:00", "0", "NONE"})
"""How versions of Slurm print that a job may be preempted from its start."""


def check_slurm(fleet: Fleet, slurm: Slurm) -> Iterator[str]:
    """Yield a sentence for each setting of Slurm that may surprise the site."""
    try:
        preemption, partitions = slurm.read_preemption(), slurm.list_partitions()
    except SlurmError as exc:
        yield f"reading the settings of Slurm failed: {exc}"
        return
    yield from check_partitions(fleet, preemption, partitions)


def check_partitions(
    fleet: Fleet, preemption: Preemption, partitions: Mapping[str, Partition]
) -> Iterator[str]:
    """Yield a sentence for each surprise in *partitions*."""
    ours = partitions.get(fleet.partition)
    if ours is None:
        yield f"fleet.partition: partition {fleet.partition} does not exist in Slurm"
        return
    others = [partition for partition in partitions.values() if partition is not ours]
    nodes = {
        name: frozenset(expand(partition.hostlist) if partition.hostlist else ())
        for name, partition in partitions.items()
    }
    yield from _check_job_access(fleet, ours)
    yield from _check_preemption(fleet, preemption, ours)
    if preemption.kind == PREEMPT_BY_PARTITION:
        for other in others:
            if nodes[other.name] & nodes[ours.name]:
                yield from _check_tiers(ours, other)
        for other in others:
            above = [
                partition.name
                for partition in others
                if partition.tier > other.tier and nodes[partition.name] & nodes[other.name]
            ]
            if other.is_preemptible and above:
                yield (
                    f"users' jobs in {', '.join(above)} preempt users' jobs in {other.name}, "
                    f"which has PreemptMode={other.preempt_mode}. Fix: set PreemptMode=OFF there, "
                    "unless this is intended"
                )
    never = set(chain.from_iterable(nodes.values())) - nodes[ours.name]
    if never:
        yield f"never verified, not in partition {ours.name}: {fold(never)}"


def _check_job_access(fleet: Fleet, ours: Partition) -> Iterator[str]:
    if ours.state != "UP":
        yield f"partition {ours.name} is {ours.state}, so verifications do not start"
    if ours.root_only and fleet.user != "root":
        yield (
            f"partition {ours.name} has RootOnly=YES, but jobs run as {fleet.user}. "
            "Fix: use AllowGroups, or set fleet.user = root"
        )
    if ours.open_to_all and not ours.root_only:
        yield (
            f"partition {ours.name} is open to all users. Fix: set RootOnly=YES, or "
            f"AllowGroups={fleet.user}"
        )
    try:
        needed = compute_minutes(load_suite(fleet.suite).budget)
    except HpcverifyError:  # planning the suite reports a mistake in it
        return
    if needed > ours.max_minutes:
        yield (
            f"partition {ours.name} has MaxTime={ours.max_minutes:g} minutes, and suite "
            f"{fleet.suite} may take {needed}, so sweeps do not start"
        )


def _check_preemption(fleet: Fleet, preemption: Preemption, ours: Partition) -> Iterator[str]:
    waits = "users' jobs wait for verifications"
    if preemption.kind == PREEMPT_BY_QOS:
        if not fleet.qos:
            yield (
                "PreemptType=preempt/qos, but fleet.qos is not set: "
                f"{waits} unless the QOS that Slurm chooses may be preempted"
            )
    elif preemption.kind != PREEMPT_BY_PARTITION:
        yield f"PreemptType={preemption.kind}: {waits}"
    elif not ours.is_preemptible:
        yield f"partition {ours.name} has PreemptMode=OFF: {waits}"
    if preemption.exempt not in ZERO_EXEMPT_TIMES:
        yield f"PreemptExemptTime={preemption.exempt}: {waits} that long"
    if ours.grace != "0":
        yield (
            f"partition {ours.name} has GraceTime={ours.grace}: a verification gets "
            "SIGTERM only after that time. Fix: set GraceTime=0"
        )


def _check_tiers(ours: Partition, other: Partition) -> Iterator[str]:
    if ours.tier > other.tier and other.is_preemptible:
        yield (
            f"VERIFICATIONS PREEMPT USERS' JOBS in partition {other.name}: its "
            f"PriorityTier is {other.tier}, and {ours.name} has {ours.tier}. Fix: raise it "
            f"above {ours.tier}"
        )
    elif ours.tier >= other.tier:
        yield (
            f"jobs in partition {other.name} wait for verifications: its PriorityTier "
            f"is {other.tier}, and {ours.name} has {ours.tier}. Fix: raise it above {ours.tier}"
        )
