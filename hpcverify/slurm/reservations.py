"""What Slurm says of its reservations: pure functions of what a command printed."""

from __future__ import annotations

import re

from hpcverify.errors import ConfigError, SlurmError
from hpcverify.slurm import Reservation
from hpcverify.slurm.hostlist import expand

_FIELD = re.compile(r"(?:^| )(ReservationName|Nodes|Flags|State)=(\S*)")
_NO_RESERVATIONS_TEXT = "No reservations in the system"


def from_text(printed: str) -> dict[str, Reservation]:
    """
    Read ``scontrol show reservation -o``.

    Raises:
        SlurmError: it is not whole; that there is none, scontrol says in words.

    """
    lines = [line for line in printed.split("\n") if line.strip()]
    if any(line.startswith(_NO_RESERVATIONS_TEXT) for line in lines):
        return {}
    if not lines:
        raise SlurmError("scontrol says nothing of reservations, not even that none is")
    found = [_parse_reservation(line) for line in lines]
    return {reservation.name: reservation for reservation in found}


def _parse_reservation(line: str) -> Reservation:
    said = {found[1]: found[2] for found in reversed(list(_FIELD.finditer(line)))}
    if said.keys() != {"ReservationName", "Nodes", "Flags", "State"}:
        raise SlurmError(f"scontrol's answer is not whole: {line[:80]!r}")
    return Reservation(
        name=said["ReservationName"],
        nodes=_expand_nodes(said["Nodes"]),
        flags=frozenset(said["Flags"].split(",")) - {"", "(null)"},
    )


def _expand_nodes(hostlist: str) -> tuple[str, ...]:
    if hostlist in {"", "(null)"}:  # one of licences alone
        return ()
    try:
        return tuple(expand(hostlist))
    except ConfigError as exc:
        raise SlurmError(f"scontrol reserves what is no node: {exc}") from exc
