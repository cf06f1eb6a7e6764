"""Names of nodes as people read them: in natural order, by rack, as a host list."""

from __future__ import annotations

import re
from collections.abc import Iterable

from hpcverify.errors import ConfigError
from hpcverify.plan.hostlist import NODE_NAME_PATTERN, fold


def make_natural_key(name: str) -> list[tuple[int, str]]:
    """Order names as people count: n2 before n10."""
    parts = re.split(r"([0-9]+)", name)
    return [
        (len(part.lstrip("0")), part.lstrip("0")) if place % 2 else (0, part)
        for place, part in enumerate(parts)
    ]


def guess_rack(name: str) -> str:
    """
    Guess the rack of a node: its name without the last number.

    If a name has only one number, a hundred nodes are one rack: n0123 is in n01xx.
    """
    shorter = re.sub(r"[^0-9]*[0-9]+[^0-9]*$", "", name)
    if re.search("[0-9]", shorter):
        return shorter
    return re.sub(r"[0-9]{1,2}([^0-9]*)$", r"xx\1", name)


def fold_names(names: Iterable[str]) -> str:
    """Write *names* as a host list; one by one if the library for it is missing."""
    plain = sorted(names, key=make_natural_key)
    try:
        return fold(plain) if all(map(NODE_NAME_PATTERN.fullmatch, plain)) else ",".join(plain)
    except ConfigError:
        return ",".join(plain)
