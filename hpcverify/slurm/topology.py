"""
Parses Slurm's answer about its topology into the leaf switch, or block, of each node.

As text in all versions: ``topology/tree`` prints one line for each switch, of which those
of level 0 are the leaves; ``topology/block`` one for each block, and others that aggregate
blocks. Without a topology, 22.05 prints nothing and an error, later versions
(``topology/default``, ``topology/flat``) nothing at all.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from hpcverify.errors import ConfigError, SlurmError
from hpcverify.plan.hostlist import expand

NO_TOPOLOGY_TEXT = "No topology information available"
"""The error of ``scontrol show topology`` without a topology."""

_FIELD = re.compile(r"(?:^| )(\w+)=(\S*)")


def from_text(printed: str) -> dict[str, str]:
    """Parse the output of ``scontrol show topology`` into the switch or block by node."""
    lines = [dict(_FIELD.findall(line)) for line in printed.splitlines() if line.strip()]
    known = {"SwitchName", "BlockName", "AggregatedBlock"}
    if any(known.isdisjoint(line) for line in lines):
        raise SlurmError(f"scontrol printed an invalid topology: {printed[:80]!r}")
    leaves = [
        (line.get("BlockName") or line["SwitchName"], line.get("Nodes", ""))
        for line in lines
        if "BlockName" in line or line.get("Level") == "0"
    ]
    there = [(name, nodes) for name, nodes in leaves if nodes not in ("", "(null)")]
    try:
        return index_switches(there)
    except ConfigError as exc:
        raise SlurmError(f"scontrol listed a switch without nodes: {exc}") from exc


def index_switches(switches: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the switch of each node of *switches*; of several, the first."""
    index: dict[str, str] = {}
    for name, nodes in switches:
        for node in expand(nodes):
            index.setdefault(node, name)
    return index
