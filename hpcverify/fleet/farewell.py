"""Forgets a node that the scheduler has no more, and a person gave up."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from hpcverify import spool
from hpcverify.errors import ActionError
from hpcverify.fleet.controller import Controller


def list_known_nodes(acting: Controller) -> set[str]:
    """Name the nodes that anything is known of: in the ledger, the store, the spool."""
    ran = {entry.node for entry in acting.store.list_newest()}
    return {
        *acting.ledger.list_nodes(),
        *(ran - acting.ledger.list_forgotten().keys()),
        *spool.list_homes(Path(acting.site.fleet.spool)),
    }


def forget(name: str, acting: Controller, there: Collection[str], person: str, reason: str) -> None:
    """
    Forget *name*, on the word of *person*: whoever is killed in between asks again.

    Raises:
        ActionError: the node is *there* still, at the scheduler.
        SlurmError: a job of ours there could not be cancelled.
        StoreError: its folder in the spool holds what is not to be deleted.

    """
    if name in there:
        raise ActionError(f"{name}: Slurm has it still: take it out of slurm.conf first")
    acting.dispatcher.cancel_verification(name)
    spool.remove_home(Path(acting.site.fleet.spool), name)
    acting.ledger.forget(name, person, reason)
