"""The first message of the launcher of a rank."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import AddressValueError, IPv4Address

import msgspec
from msgspec import Struct

from hpcverify_checks.common.collective import CollectiveJob


class LauncherArrival(Struct, frozen=True):
    """Where a rank is, and what its launcher is to measure."""

    node: str
    address: str
    """The address at which the other nodes reach this one."""
    job: CollectiveJob

    @classmethod
    def decode(cls, message: bytes) -> LauncherArrival:
        """Decode it, or raise `MsgspecError`, also for an address that is not one of IPv4."""
        arrival = msgspec.json.decode(message, type=cls)
        try:
            IPv4Address(arrival.address)
        except AddressValueError as exc:
            raise msgspec.ValidationError(f"no address: {exc}") from exc
        return arrival


def list_nodes(arrivals: Sequence[LauncherArrival]) -> list[str]:
    """List the node of each rank."""
    return [arrival.node for arrival in arrivals]
