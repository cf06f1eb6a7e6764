"""Parses Slurm's answers about reservations into `Reservation`."""

from __future__ import annotations

import re

from hpcverify.errors import ConfigError, SlurmError
from hpcverify.plan.hostlist import expand
from hpcverify.slurm import Reservation

_FIELD = re.compile(r"(?:^| )(ReservationName|Nodes|Flags|State)=(\S*)")
_NO_RESERVATIONS_TEXT = "No reservations in the system"


def from_text(printed: str) -> dict[str, Reservation]:
    """Parse the output of ``scontrol show reservation -o``."""
    lines = [line for line in printed.split("\n") if line.strip()]
    if any(line.startswith(_NO_RESERVATIONS_TEXT) for line in lines):
        return {}
    if not lines:
        raise SlurmError("scontrol printed nothing about reservations")
    reservations: dict[str, Reservation] = {}
    for line in lines:
        fields = {match[1]: match[2] for match in reversed(list(_FIELD.finditer(line)))}
        if fields.keys() != {"ReservationName", "Nodes", "Flags", "State"}:
            raise SlurmError(f"the output of scontrol is incomplete: {line[:80]!r}")
        name, hostlist = fields["ReservationName"], fields["Nodes"]
        try:  # one of licences alone has no nodes
            nodes = () if hostlist in {"", "(null)"} else tuple(expand(hostlist))
        except ConfigError as exc:
            raise SlurmError(f"scontrol listed a reservation without nodes: {exc}") from exc
        flags = frozenset(fields["Flags"].split(",")) - {"", "(null)"}
        reservations[name] = Reservation(name=name, nodes=nodes, flags=flags)
    return reservations
