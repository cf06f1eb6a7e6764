"""Whose jobs give way to whose is said before anybody's job is lost."""

from __future__ import annotations

from typing import Any

import pytest

from hpcverify.plan.config import Fleet
from hpcverify.slurm import Partition, Preemption
from hpcverify.slurm.partitions import PREEMPT_BY_PARTITION, PREEMPT_BY_QOS, check_partitions

FLEET = Fleet(suite="prolog")
ON = Preemption(kind=PREEMPT_BY_PARTITION, exempt="00:00:00")


def a_partition(name: str, **changes: Any) -> Partition:
    """Make one of users', as docs/how-to/slurm.md has them."""
    usual: dict[str, Any] = {
        "max_minutes": float("inf"),
        "preempt_mode": "OFF",
        "tier": 10,
        "root_only": False,
        "hostlist": "n[1-4]",
        "open_to_all": True,
    }
    return Partition(name=name, **{**usual, **changes})


def verify(**changes: Any) -> Partition:
    """Make ours, as docs/how-to/slurm.md has it."""
    usual = {"preempt_mode": "CANCEL", "tier": 1, "root_only": True}
    return a_partition("verify", **{**usual, **changes})


def told(*partitions: Partition, fleet: Fleet = FLEET, preemption: Preemption = ON) -> list[str]:
    """List what is said of these partitions."""
    return [*check_partitions(fleet, preemption, {each.name: each for each in partitions})]


def test_a_cluster_as_the_docs_have_it_is_told_nothing() -> None:
    others = (a_partition("batch"), a_partition("debug", tier=20))
    assert told(verify(), *others) == []


def test_a_partition_whose_jobs_users_would_preempt_is_named() -> None:
    batch = a_partition("batch", preempt_mode="REQUEUE")
    debug = a_partition("debug", tier=20, preempt_mode="REQUEUE")

    (note,) = told(verify(), batch, debug)

    assert note == (
        "users' jobs in debug preempt users' jobs in batch, which has "
        "PreemptMode=REQUEUE. Fix: set PreemptMode=OFF there, unless this is intended"
    )


@pytest.mark.parametrize("changes", [{"tier": 10}, {"hostlist": "n[5-6]"}])
def test_partitions_that_cannot_preempt_each_other_are_not_named(changes: dict[str, Any]) -> None:
    batch = a_partition("batch", preempt_mode="REQUEUE")
    other = a_partition("debug", **{"tier": 20, "preempt_mode": "REQUEUE", **changes})
    assert told(verify(hostlist="n[1-6]"), batch, other) == []


@pytest.mark.parametrize(
    ("ours", "batch", "say"),
    [
        (verify(preempt_mode="OFF"), a_partition("batch"), "PreemptMode=OFF: users' jobs wait"),
        (verify(), a_partition("batch", tier=1), "jobs in partition batch wait for"),
        (
            verify(tier=30),
            a_partition("batch", preempt_mode="REQUEUE"),
            "VERIFICATIONS PREEMPT USERS' JOBS in partition batch",
        ),
        (verify(grace="5"), a_partition("batch"), "GraceTime=5"),
        (verify(state="DRAIN"), a_partition("batch"), "is DRAIN, so verifications"),
        (verify(root_only=False), a_partition("batch"), "is open to all users"),
        (verify(max_minutes=1.0), a_partition("batch"), "MaxTime=1 minutes, and suite"),
        (verify(hostlist="n[1-2]"), a_partition("batch"), "not in partition verify: n[3-4]"),
        (verify(hostlist=""), a_partition("batch"), "not in partition verify: n[1-4]"),
        (a_partition("vrfy"), a_partition("batch"), "partition verify does not exist in Slurm"),
    ],
)
def test_what_is_amiss_with_our_partition_is_named_alone(
    ours: Partition, batch: Partition, say: str
) -> None:
    (note,) = told(ours, batch)
    assert say in note


@pytest.mark.parametrize(
    ("preemption", "fleet", "say"),
    [
        (Preemption(kind="preempt/none", exempt="NONE"), FLEET, "PreemptType=preempt"),
        (Preemption(kind=PREEMPT_BY_QOS, exempt="00:00:00"), FLEET, "fleet.qos is not set"),
        (
            Preemption(kind=PREEMPT_BY_PARTITION, exempt="01:00:00"),
            FLEET,
            "PreemptExemptTime=01:00:00",
        ),
        (ON, Fleet(suite="prolog", user="hpcv"), "RootOnly=YES, but jobs run as"),
    ],
)
def test_what_keeps_verifications_from_giving_way_is_named(
    preemption: Preemption, fleet: Fleet, say: str
) -> None:
    (note,) = told(verify(), a_partition("batch"), fleet=fleet, preemption=preemption)
    assert say in note


def test_with_a_qos_of_its_own_a_site_with_preempt_qos_is_told_nothing() -> None:
    by_qos = Preemption(kind=PREEMPT_BY_QOS, exempt="00:00:00")
    batch = a_partition("batch", preempt_mode="REQUEUE")
    debug = a_partition("debug", tier=20, preempt_mode="REQUEUE")
    fleet = Fleet(suite="prolog", qos="verify")
    assert told(verify(), batch, debug, fleet=fleet, preemption=by_qos) == []
