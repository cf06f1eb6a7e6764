"""Parses Slurm's answers about reservations into `Reservation`."""

from __future__ import annotations

import re

from hpcverify.errors import ConfigError, SlurmError
from hpcverify.plan.hostlist import expand
from hpcverify.slurm import Reservation

_FIELD = re.compile(r"(?:^| )(ReservationName|Nodes|Flags|State)=(\S*)")
_NO_RESERVATIONS_TEXT = "No reservations in the system"


def from_text(printed: str) -> dict[str, Reservation]:
    """
    Parse the output of ``scontrol show reservation -o``.

    Raises:
        SlurmError: it is incomplete; if there is none, scontrol says so in words.

    """
    lines = [line for line in printed.split("\n") if line.strip()]
    if any(line.startswith(_NO_RESERVATIONS_TEXT) for line in lines):
        return {}
    if not lines:
        raise SlurmError("scontrol says nothing about reservations, not even that there are none")
    reservations = [_parse_reservation(line) for line in lines]
    return {reservation.name: reservation for reservation in reservations}


def _parse_reservation(line: str) -> Reservation:
    fields = {match[1]: match[2] for match in reversed(list(_FIELD.finditer(line)))}
    if fields.keys() != {"ReservationName", "Nodes", "Flags", "State"}:
        raise SlurmError(f"scontrol's answer is incomplete: {line[:80]!r}")
    return Reservation(
        name=fields["ReservationName"],
        nodes=_expand_nodes(fields["Nodes"]),
        flags=frozenset(fields["Flags"].split(",")) - {"", "(null)"},
    )


def _expand_nodes(hostlist: str) -> tuple[str, ...]:
    if hostlist in {"", "(null)"}:  # one of licences alone
        return ()
    try:
        return tuple(expand(hostlist))
    except ConfigError as exc:
        raise SlurmError(f"scontrol names a reservation of no node: {exc}") from exc
