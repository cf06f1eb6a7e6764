"""Slurm's shorthand for the names of nodes: ``gpu[01-03,07]``."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from hpcverify.errors import ConfigError, write_install_command

NODE_NAME_PATTERN = re.compile(r"(?!(?i:ALL)$)[A-Za-z0-9][A-Za-z0-9._-]*")
"""What names one node and nothing more: to Slurm, ALL and brackets are several."""
MAX_NODES = 100_000
"""More than a cluster of Slurm can have (65,536): a list that names more has a slip in it."""
MAX_DIGITS = 100
"""Digits of a number. Python refuses to read one of some thousands."""


def expand(hostlist: str) -> list[str]:
    """
    Return the names of the nodes in *hostlist*, each once.

    Raises:
        ConfigError: it names no node, something that cannot be one, or more than
            `MAX_NODES`; or ClusterShell is not installed.

    """
    library = _load_library()
    if re.search(rf"\d{{{MAX_DIGITS + 1}}}", hostlist):
        shown = f"{hostlist[:MAX_DIGITS]}\N{HORIZONTAL ELLIPSIS}"
        raise ConfigError(f"{shown!r} is not a list of nodes: a number in it is too long")
    too_many = ConfigError(f"{hostlist!r} is not a list of nodes: it names more than {MAX_NODES}")
    # Before it is read: ClusterShell makes a name of each number of a range.
    if any(_is_too_long(first, last) for first, last in _list_ranges(hostlist)):
        raise too_many
    try:
        nodes = library.NodeSet(hostlist, resolver=library.RESOLVER_NOGROUP)
    except library.NodeSetException as exc:
        raise ConfigError(f"{hostlist!r} is not a list of nodes: {exc}") from exc
    if len(nodes) > MAX_NODES:
        raise too_many
    names = list(nodes)
    strange = next((name for name in names if not NODE_NAME_PATTERN.fullmatch(name)), None)
    if strange is not None or not names:
        why = "it names no node" if strange is None else f"{strange!r} is not a name"
        raise ConfigError(f"{hostlist!r} is not a list of nodes: {why}")
    return names


def _list_ranges(hostlist: str) -> list[tuple[str, str]]:
    """List the first and the last number of each range in brackets, as ClusterShell reads them."""
    brackets = (re.sub(r"[\s_]", "", text) for text in re.findall(r"\[([^\]]*)\]", hostlist))
    return [ends for text in brackets for ends in re.findall(r"(\d+)-(\d+)", text)]


def _is_too_long(first: str, last: str) -> bool:
    return max(len(first), len(last)) > MAX_DIGITS or int(last) - int(first) >= MAX_NODES


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
