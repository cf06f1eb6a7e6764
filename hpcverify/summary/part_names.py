"""Names for several parts at once: "all 8 GPUs", or "GPU 0-1, 3-4, 6-7"."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from hpcverify.model import Inventory

_NUMBERED_LABEL = re.compile(r"([^0-9]*)([0-9]{1,9})(?: \(.*\))?")
"""A label that ends in a number, perhaps with the tail of an id: GPU 3 (…4f21)."""


def name_parts(places: Iterable[str], inventory: Inventory) -> str:
    """Name the parts with the ids *places*, in as few words as possible."""
    return fold_labels(inventory.list_names(list(places)))


def fold_labels(labels: Iterable[str]) -> str:
    """Write *labels* in one line, those that differ only in their numbers as ranges."""
    return ", ".join(_fold(labels))


def _fold(labels: Iterable[str]) -> Iterator[str]:
    alike: dict[str, list[tuple[int, str]]] = {}
    for label in labels:
        found = _NUMBERED_LABEL.fullmatch(label)
        if found is None:
            yield label
        else:
            alike.setdefault(found[1], []).append((int(found[2]), label))
    for stem, some in alike.items():
        numbers = sorted({number for number, _ in some})
        # A GPU that was exchanged has the number of the one before it.
        if len(numbers) < len(some) or len(some) == 1:
            yield from (label for _, label in some)
        else:
            yield stem + ", ".join(_format_ranges(numbers))


def _format_ranges(numbers: Sequence[int]) -> Iterator[str]:
    """Write ascending *numbers* as ranges: 0-1, 3."""
    # Within a range, number minus index is constant.
    for _, some in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0]):
        span = [number for _, number in some]
        yield f"{span[0]}-{span[-1]}" if len(span) > 1 else f"{span[0]}"
