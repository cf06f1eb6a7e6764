"""Host lists without ClusterShell, which a node that is only verified does not need."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hpcverify.errors import ConfigError


def expand_plain(hostlist: str) -> list[str]:
    """
    Return the names in *hostlist*, written as Slurm writes it, in its order.

    >>> expand_plain("gpu[09-10,12],login1")
    ['gpu09', 'gpu10', 'gpu12', 'login1']

    Raises:
        ConfigError: it is not a host list.

    """
    terms = re.findall(r"(?:[^,\[]|\[[^\]]*\])+", hostlist)
    try:
        names = [name for term in terms for name in _expand_term(term)]
    except ValueError:
        names = []
    if not names or ",".join(terms) != hostlist:
        raise ConfigError(f"{hostlist!r} is not a list of nodes, such as n[1-4],n7")
    return names


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
