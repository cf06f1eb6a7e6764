"""Slurm's shorthand for the names of nodes: ``gpu[01-03,07]``."""

from __future__ import annotations

import re

from hpcverify.errors import ConfigError

NAME = re.compile(r"(?!(?i:ALL)$)[A-Za-z0-9][A-Za-z0-9._-]*")
"""What names one node and nothing more: to Slurm, ALL and brackets are several."""


def expand(hostlist: str) -> list[str]:
    """
    Name the nodes that *hostlist* means, each once.

    Raises:
        ConfigError: it means no node, or what cannot be a node's name; or the library
            that reads it is not installed.

    """
    try:  # a node that is only verified needs it not
        from ClusterShell.NodeSet import (  # type: ignore[import-untyped]  # noqa: PLC0415
            RESOLVER_NOGROUP,
            NodeSet,
            NodeSetException,
        )
    except ModuleNotFoundError as exc:
        raise ConfigError(
            "ClusterShell is not installed: pip install 'hpcverify[cluster]'"
        ) from exc
    try:
        # Without groups: ``@name`` would run whatever the machine has set up for them.
        names = list(NodeSet(hostlist, resolver=RESOLVER_NOGROUP))
    except NodeSetException as exc:
        raise ConfigError(f"{hostlist!r} is not a list of nodes: {exc}") from exc
    strange = next((name for name in names if not NAME.fullmatch(name)), None)
    if strange is not None or not names:
        told = "it names no node" if strange is None else f"{strange!r} is no name"
        raise ConfigError(f"{hostlist!r} is not a list of nodes: {told}")
    return names
