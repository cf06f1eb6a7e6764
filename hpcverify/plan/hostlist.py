"""Slurm's shorthand for the names of nodes: ``gpu[01-03,07]``."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from hpcverify.errors import ConfigError, write_install_command

NODE_NAME_PATTERN = re.compile(r"(?!(?i:ALL)$)[A-Za-z0-9][A-Za-z0-9._-]*")
"""What names one node and nothing more: to Slurm, ALL and brackets are several."""


def expand(hostlist: str) -> list[str]:
    """
    Return the names of the nodes in *hostlist*, each once.

    Raises:
        ConfigError: it names no node, or something that cannot be one; or ClusterShell
            is not installed.

    """
    library = _load_library()
    try:
        names = list(library.NodeSet(hostlist, resolver=library.RESOLVER_NOGROUP))
    except library.NodeSetException as exc:
        raise ConfigError(f"{hostlist!r} is not a list of nodes: {exc}") from exc
    strange = next((name for name in names if not NODE_NAME_PATTERN.fullmatch(name)), None)
    if strange is not None or not names:
        why = "it names no node" if strange is None else f"{strange!r} is not a name"
        raise ConfigError(f"{hostlist!r} is not a list of nodes: {why}")
    return names


def fold(names: Iterable[str]) -> str:
    """Write *names* as a host list, as short as possible."""
    library = _load_library()
    return str(library.NodeSet.fromlist(sorted(names), resolver=library.RESOLVER_NOGROUP))


def _load_library() -> Any:
    """
    Load ClusterShell, which a node that is only verified does not need.

    It is used without groups: ``@name`` would run whatever the machine has set up.
    """
    try:
        from ClusterShell import NodeSet  # type: ignore[import-untyped]  # noqa: PLC0415
    except ModuleNotFoundError as exc:
        fix = write_install_command("ClusterShell")
        raise ConfigError(f"ClusterShell is not installed: {fix}") from exc
    return NodeSet
