"""Slurm's shorthand for the names of nodes: ``gpu[01-03,07]``."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import product
from math import prod
from typing import Any

from hpcverify.errors import ConfigError, write_install_command

NODE_NAME_PATTERN = re.compile(r"(?!(?i:ALL)$)[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
"""What names one node and nothing more: to Slurm, ALL and brackets are several. A host name has at
most 253 characters (RFC 1035)."""
MAX_NODES = 100_000
"""More than a cluster of Slurm can have (65,536): a list that names more has a slip in it."""
SHOWN_CHARACTERS = 80
TERM_PATTERN = re.compile(r"(?:[^,\[\]]|\[[^\[\]]*\])+")
"""One name with its brackets, which hold commas too."""
RANGE_PATTERN = re.compile(r"\s*([0-9]{1,100})(?:-([0-9]{1,100}))?\s*")
"""A number, or the first and the last. Python refuses to read a number of some thousand digits."""


def expand(hostlist: str) -> list[str]:
    """
    Return the names of the nodes in *hostlist*, each once, in its order.

    >>> expand("gpu[09-10,12],login1,gpu12")
    ['gpu09', 'gpu10', 'gpu12', 'login1']

    Raises:
        ConfigError: it names no node, something that cannot be one, or more than `MAX_NODES`.

    """
    shown = hostlist
    if len(hostlist) > SHOWN_CHARACTERS:
        shown = f"{hostlist[:SHOWN_CHARACTERS]}\N{HORIZONTAL ELLIPSIS}"
    refused = f"{shown!r} is not a list of nodes, such as n[1-4],n7"
    if not hostlist.strip():
        raise ConfigError(f"{refused}: no node listed")
    terms = TERM_PATTERN.findall(hostlist)
    if ",".join(terms) != hostlist:
        raise ConfigError(f"{refused}: a name is empty, or a bracket is not closed")
    names: dict[str, None] = {}
    for term in terms:
        pieces = re.split(r"\[([^\[\]]*)\]", term.strip())
        brackets = [[_parse_range(part) for part in text.split(",")] for text in pieces[1::2]]
        if not all(all(ranges) for ranges in brackets):
            raise ConfigError(f"{refused}: brackets hold numbers, the lower first, as in n[01-12]")
        known = [[ends for ends in ranges if ends] for ranges in brackets]
        counts = (sum(int(last) - int(first) + 1 for first, last in ranges) for ranges in known)
        if len(names) + prod(counts) > MAX_NODES:
            raise ConfigError(f"{refused}: more than {MAX_NODES}")
        numbers = [
            [
                f"{i:0{len(first)}}"
                for first, last in ranges
                for i in range(int(first), int(last) + 1)
            ]
            for ranges in known
        ]
        for chosen in product(*numbers):
            name = pieces[0] + "".join(map(str.__add__, chosen, pieces[2::2]))
            if not NODE_NAME_PATTERN.fullmatch(name):
                raise ConfigError(f"{refused}: {name[:SHOWN_CHARACTERS]!r} is not a name")
            names[name] = None
    return [*names]


def _parse_range(text: str) -> tuple[str, str] | None:
    """Parse *text* in a bracket into its first and last number; None if it is not a range."""
    match = RANGE_PATTERN.fullmatch(text)
    if match is None:
        return None
    first, last = match[1], match[2] or match[1]
    return (first, last) if int(first) <= int(last) else None


def fold(names: Iterable[str]) -> str:
    """Write *names* as a host list, as short as possible."""
    library = _load_library()
    return str(library.NodeSet.fromlist(sorted(names), resolver=library.RESOLVER_NOGROUP))


def _load_library() -> Any:
    """Load ClusterShell, which few nodes need, to be used without groups."""
    try:
        from ClusterShell import NodeSet  # type: ignore[import-untyped]  # noqa: PLC0415
    except ModuleNotFoundError as exc:
        fix = write_install_command("ClusterShell")
        raise ConfigError(f"ClusterShell is not installed: {fix}") from exc
    return NodeSet
