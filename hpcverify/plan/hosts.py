"""Host lists without ClusterShell, which a node that is only verified does not need."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hpcverify.errors import ConfigError

NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
MAX_NODES, MAX_CHARACTERS = 100_000, 1 << 20
"""More than any cluster has; a longer list is a mistake, and would fill the memory."""


def expand_plain(hostlist: str) -> list[str]:
    """
    Return the names in *hostlist*, written as Slurm writes it, in its order.

    >>> expand_plain("gpu[09-10,12],login1")
    ['gpu09', 'gpu10', 'gpu12', 'login1']

    Raises:
        ConfigError: it is not a host list.

    """
    terms = re.findall(r"(?:[^,\[]|\[[^\]]*\])+", hostlist)
    if len(hostlist) > MAX_CHARACTERS or sum(map(_count, terms)) > MAX_NODES:
        raise ConfigError(f"{hostlist[:40]!r} names more than {MAX_NODES} nodes")
    try:
        names = [name for term in terms for name in _expand_term(term)]
    except ValueError:
        names = []
    if not names or ",".join(terms) != hostlist or not all(map(NODE_NAME.fullmatch, names)):
        raise ConfigError(f"{hostlist!r} is not a list of nodes, such as n[1-4],n7")
    return names


def _count(term: str) -> int:
    """Count the nodes of a *term* of a host list without expanding it."""
    total = 1
    for numbers in re.findall(r"\[([^\]]*)\]", term):
        ranges = re.findall(r"(\d+)(?:-(\d+))?", numbers)
        total *= sum(max(1, int(last or first) - int(first) + 1) for first, last in ranges)
    return total


def _expand_term(term: str) -> Iterator[str]:
    before, bracket, rest = term.partition("[")
    if not bracket:
        yield term
        return
    numbers, _, after = rest.partition("]")
    for number in numbers.split(","):
        first, _, last = number.partition("-")
        for index in range(int(first), int(last or first) + 1):
            for tail in _expand_term(after):
                yield f"{before}{index:0{len(first)}}{tail}"
