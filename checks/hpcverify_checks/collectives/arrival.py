"""What the launcher of a rank says when it comes to the board."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import AddressValueError, IPv4Address

import msgspec
from msgspec import Struct

from hpcverify_checks.common.collective import CollectiveJob


class LauncherArrival(Struct, frozen=True):
    """What a launcher says of each of its ranks."""

    node: str
    address: str
    """By which the other nodes reach this one."""
    job: CollectiveJob

    @classmethod
    def decode(cls, message: bytes) -> LauncherArrival:
        """
        Decode it.

        Raises:
            MsgspecError: it is something else, or its address is not one of IPv4.

        """
        arrival = msgspec.json.decode(message, type=cls)
        try:
            IPv4Address(arrival.address)
        except AddressValueError as exc:
            raise msgspec.ValidationError(f"no address: {exc}") from exc
        return arrival


def list_nodes(arrivals: Sequence[LauncherArrival]) -> list[str]:
    """List the node of each rank."""
    return [one.node for one in arrivals]
