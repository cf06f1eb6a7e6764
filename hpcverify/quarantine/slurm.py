"""Holds nodes by Slurm: its DRAIN, and a maintenance reservation for each node."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hpcverify.errors import SlurmError
from hpcverify.quarantine.keeper import Seen, mark_of
from hpcverify.slurm import Host, Reservation
from hpcverify.slurm.client import Slurm

RESERVATION = "hpcverify-{node}"
"""The name of our reservation of a node."""

_HOOK_FAILED = frozenset({"Prolog error", "Epilog error"})
"""The reasons that Slurm gives when one of these ends badly, word for word."""
_AWAY = frozenset({"UNKNOWN", "DOWN", "ERROR", "FUTURE"})
"""States in which a drain of ours would replace a reason, or means nothing."""
_FLAGS = ("FAIL", "INVAL", "REBOOT", "POWER")
"""What flags begin with that mean the same."""
_KEPT = frozenset({"MAINT", "RESERVED"})
"""Flags of a node that is in a reservation which is on."""

_IN_USE = "reservation is in use"
"""What Slurm says of one that a job waits for or runs in: ESLURM_RESERVATION_BUSY."""


@dataclass(frozen=True)
class SlurmKeeper:
    """Drains and reserves nodes; every method raises a SlurmError, as `Slurm` does."""

    slurm: Slurm

    def look(self) -> Mapping[str, Seen]:
        """Give all nodes, in two questions."""
        hosts = self.slurm.hosts()
        reservations, owner = self.slurm.reservations(), self.slurm.owner()
        return {
            name: as_seen(host, reservations, owner) for name, host in hosts.items()
        }

    def see(self, node: str) -> Seen:
        """Give one node; its reason is the last thing that is asked for."""
        reservations, owner = self.slurm.reservations(), self.slurm.owner()
        return as_seen(self.slurm.hosts(node)[node], reservations, owner)

    def began(self) -> float:
        """Say when slurmctld was last started."""
        return self.slurm.began()

    def drain(self, node: str, reason: str) -> None:
        """Drain *node*; jobs on it go on to their end."""
        self.slurm.drain(node, reason)

    def resume(self, node: str) -> None:
        """Take the drain of *node* back; it takes jobs some seconds later."""
        self.slurm.resume(node)

    def restore(self, node: str, reason: str) -> None:
        """Give *node* somebody else's reason back."""
        self.slurm.set_reason(node, reason)

    def reserve(self, node: str) -> None:
        """Reserve *node* for our user's jobs."""
        self.slurm.reserve(RESERVATION.format(node=node), node)

    def unreserve(self, node: str) -> None:
        """Delete our reservation of *node*, which stands as long as a job is in it."""
        try:
            self.slurm.unreserve(RESERVATION.format(node=node))
        except SlurmError as exc:
            if _IN_USE not in str(exc):
                raise


def as_seen(host: Host, reservations: Mapping[str, Reservation], owner: str) -> Seen:
    """Say how *host* is held; *owner* is who Slurm's own drains are by."""
    ours = RESERVATION.format(node=host.name)
    reserved = ours in reservations and host.name in reservations[ours].nodes
    others = [r for r in reservations.values() if host.name in r.nodes and not reserved]
    drained = "DRAIN" in host.flags
    return Seen(
        node=host.name,
        ours=mark_of(host.reason),
        reason=host.reason,
        by=host.reason_user,
        at=host.reason_time,
        drained=drained,
        hook_failed=host.reason in _HOOK_FAILED and host.reason_user == owner,
        unavailable="+".join(taboo(host, others)),
        reserved=reserved,
    )


def taboo(host: Host, others: Iterable[Reservation]) -> list[str]:
    """
    Say which of a node's states forbid touching it.

    A node shows for some seconds that it is reserved when no reservation has it any
    more, and what it shows is down to ours where that stands.
    """
    states = [host.state] if host.state in _AWAY else []
    flags = [flag for flag in sorted(host.flags) if flag.startswith(_FLAGS)]
    kept = sorted(host.flags & _KEPT) if any(True for _ in others) else []
    return [*states, *flags, *kept]
