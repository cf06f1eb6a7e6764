"""Names of nodes as people read them: in natural order, in blocks, as a host list."""

from __future__ import annotations

import re
from collections.abc import Iterable

from hpcverify.errors import ConfigError
from hpcverify.plan.hostlist import NODE_NAME_PATTERN, fold
from hpcverify.selection.places import find_rack


def make_natural_key(name: str) -> list[tuple[int, str]]:
    """Order names as people count: n2 before n10."""
    parts = re.split(r"([0-9]+)", name)
    return [
        (len(part.lstrip("0")), part.lstrip("0")) if place % 2 else (0, part)
        for place, part in enumerate(parts)
    ]


def name_block(name: str) -> str:
    """
    Name the block of a list in which a node is: its rack, as `find_rack` has it.

    A name with one number has no rack; a list has such nodes by the hundred: n0123 in n01xx.
    """
    return find_rack(name) or re.sub(r"[0-9]{1,2}([^0-9]*)$", r"xx\1", name)


def fold_names(names: Iterable[str]) -> str:
    """Write *names* as a host list; one by one if the library for it is missing."""
    plain = sorted(names, key=make_natural_key)
    try:
        return fold(plain) if all(map(NODE_NAME_PATTERN.fullmatch, plain)) else ",".join(plain)
    except ConfigError:
        return ",".join(plain)
