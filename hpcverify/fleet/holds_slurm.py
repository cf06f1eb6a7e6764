"""Holds nodes by Slurm: its DRAIN, and a maintenance reservation for each node."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hpcverify.errors import SlurmError
from hpcverify.fleet.holds import EPILOG_ERROR, PROLOG_ERROR, HoldReading, parse_hold_id
from hpcverify.slurm import Host, Reservation
from hpcverify.slurm.client import Slurm

RESERVATION_FORMAT = "hpcverify-{node}"
"""The name of our reservation of a node."""

"""The reasons that Slurm gives when one of these fails, word for word."""
UNREGISTERED_STATE = "UNKNOWN"
"""That of every node from a restart of slurmctld until its slurmd registers. It can be drained;
22.05 refuses to undrain it."""
_UNTOUCHABLE_STATES = frozenset({UNREGISTERED_STATE, "DOWN", "ERROR", "FUTURE"})
"""States in which a drain of ours would replace a reason, or means nothing."""
_UNTOUCHABLE_FLAG_PREFIXES = ("FAIL", "INVAL", "REBOOT", "POWER")
"""How the flags begin that mean the same."""
_MAINTENANCE_FLAG = "MAINT"
"""The flag of a maintenance reservation, and of the nodes in one that is active. A node that is
reserved for users can be drained, and is no different from others otherwise."""

RESERVATION_BUSY_TEXT = "reservation is in use"
"""Slurm's error if a job waits for it or runs in it: ESLURM_RESERVATION_BUSY."""


@dataclass(frozen=True)
class SlurmBackend:
    """Drains and reserves nodes; every method raises a SlurmError, as `Slurm` does."""

    slurm: Slurm

    def read_holds(self) -> Mapping[str, HoldReading]:
        """Read how all nodes are held, in two queries."""
        hosts = self.slurm.list_hosts()
        reservations, owner = self.slurm.list_reservations(), self.slurm.read_slurm_user()
        return {name: build_reading(host, reservations, owner) for name, host in hosts.items()}

    def read_hold(self, node: str) -> HoldReading:
        """Read how one node is held; its reason is queried last."""
        reservations, owner = self.slurm.list_reservations(), self.slurm.read_slurm_user()
        return build_reading(self.slurm.list_hosts(node)[node], reservations, owner)

    def read_start_time(self) -> float:
        """Say when slurmctld last started."""
        return self.slurm.read_start_time()

    def drain(self, node: str, reason: str) -> None:
        """Drain *node*; jobs on it run to their end."""
        self.slurm.drain(node, reason)

    def resume(self, node: str) -> None:
        """Remove the drain of *node*; it takes jobs some seconds later."""
        self.slurm.resume(node)

    def restore(self, node: str, reason: str) -> None:
        """Set somebody else's reason of *node* again."""
        self.slurm.set_reason(node, reason)

    def reserve(self, node: str) -> None:
        """Reserve *node* for our user's jobs."""
        self.slurm.reserve(RESERVATION_FORMAT.format(node=node), node)

    def unreserve(self, node: str) -> None:
        """Delete our reservation of *node*; it stays as long as a job is in it."""
        try:
            self.slurm.unreserve(RESERVATION_FORMAT.format(node=node))
        except SlurmError as exc:
            if RESERVATION_BUSY_TEXT not in str(exc):
                raise


def build_reading(host: Host, reservations: Mapping[str, Reservation], owner: str) -> HoldReading:
    """Say how *host* is held; *owner* is the user who sets Slurm's own drains."""
    ours = RESERVATION_FORMAT.format(node=host.name)
    reserved = ours in reservations and host.name in reservations[ours].nodes
    others = [r for r in reservations.values() if host.name in r.nodes and not reserved]
    drained = "DRAIN" in host.flags
    return HoldReading(
        node=host.name,
        hold_id=parse_hold_id(host.reason),
        reason=host.reason,
        by=host.reason_user,
        at=host.reason_time,
        drained=drained,
        hook_failed=host.reason in (PROLOG_ERROR, EPILOG_ERROR) and host.reason_user == owner,
        unavailable="+".join(list_untouchable_states(host, others)),
        unregistered=host.state == UNREGISTERED_STATE,
        reserved=reserved,
    )


def list_untouchable_states(host: Host, others: Iterable[Reservation]) -> list[str]:
    """
    List the states of *host* that forbid touching it.

    MAINT counts only if it is in a maintenance reservation of *others*: a node keeps the
    flag for some seconds after a reservation ends, and it may come from our own.
    """
    states = [host.state] if host.state in _UNTOUCHABLE_STATES else []
    flags = [flag for flag in sorted(host.flags) if flag.startswith(_UNTOUCHABLE_FLAG_PREFIXES)]
    is_theirs = any(_MAINTENANCE_FLAG in reservation.flags for reservation in others)
    kept = [_MAINTENANCE_FLAG] if is_theirs and _MAINTENANCE_FLAG in host.flags else []
    return [*states, *flags, *kept]
