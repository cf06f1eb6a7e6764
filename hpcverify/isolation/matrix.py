"""
Read a matrix of who was slow to whom: a bad row is a sender, a column a receiver.

In each round, disjoint pairs send to each other, first the one and then the other. So
each of n nodes has sent to each other one after n - 1 rounds (n if n is odd).
A cell that no sender, receiver or switch explains is a link.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from itertools import chain

from msgspec import Struct

from hpcverify.isolation.search import GroupTest, Outcome, Outcomes, Purpose, Round

MAX_NODES = 16
"""Of a matrix: as many rounds."""
MIN_SHARE = 0.5
"""Of its cells with others that must fail until a sender or receiver is bad."""
MIN_CELLS = 2
"""So many must fail at least: one is a link."""

Cells = Mapping[tuple[str, str], bool]
"""Whether a test failed in which the first sent to the second."""


class MatrixFound(Struct, frozen=True):
    """What explains all failures of a matrix."""

    senders: tuple[str, ...] = ()
    receivers: tuple[str, ...] = ()
    switches: tuple[str, ...] = ()
    """Switches whose nodes are slow to all others, and not among themselves."""
    links: tuple[tuple[str, str], ...] = ()
    """From the first node to the second."""


def pair_all(nodes: Sequence[str]) -> list[list[tuple[str, str]]]:
    """Pair each node with each other one, in rounds of disjoint pairs."""
    # The circle method: the first stays, the others move on by one seat a round.
    seats: list[str | None] = [*nodes, None][: len(nodes) + len(nodes) % 2]
    rounds: list[list[tuple[str, str]]] = []
    for _ in range(len(seats) - 1):
        facing = zip(seats[: len(seats) // 2], reversed(seats), strict=False)
        rounds.append([(one, other) for one, other in facing if one and other])
        seats.insert(1, seats.pop())
    return rounds


def fill_matrix(nodes: Sequence[str]) -> Generator[Round, Outcomes, dict[tuple[str, str], bool]]:
    """Yield the rounds of a matrix, take their outcomes, and return its cells."""
    cells: dict[tuple[str, str], bool] = {}
    for pairs in pair_all(nodes):
        both = chain.from_iterable(((a, b), (b, a)) for a, b in pairs)
        tests = tuple(GroupTest(pair, Purpose.SEND) for pair in both)
        outcomes = yield tests
        if outcomes is None:
            break
        for test, outcome in zip(tests, outcomes, strict=True):
            if outcome is not Outcome.UNKNOWN:
                sender, receiver = test.members
                cells[sender, receiver] = outcome is Outcome.FAILED
    return cells


def read_matrix(cells: Cells, switches: Mapping[str, str]) -> MatrixFound:
    """Explain the failures among *cells* by as few causes as can be, the largest first."""
    left = {cell for cell, has_failed in cells.items() if has_failed}
    found: dict[str, list[str]] = {"senders": [], "receivers": [], "switches": []}
    while cause := max(_list_causes(cells, left, switches), default=None):
        _, _, kind, name, explained = cause
        found[kind].append(name)
        left -= set(explained)
    return MatrixFound(
        senders=tuple(found["senders"]),
        receivers=tuple(found["receivers"]),
        switches=tuple(found["switches"]),
        links=tuple(sorted(left)),
    )


Cause = tuple[float, int, str, str, tuple[tuple[str, str], ...]]
"""The share and the number of its cells that fail, the kind, who it is, and these cells."""


def _list_causes(
    cells: Cells, left: Iterable[tuple[str, str]], switches: Mapping[str, str]
) -> Iterator[Cause]:
    nodes = set(chain.from_iterable(cells))
    counts = Counter(switches.get(node, "") for node in nodes)
    shared = {switch for switch, count in counts.items() if switch and count > 1}
    rows: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for sender, receiver in cells:
        rows.setdefault(("senders", sender), []).append((sender, receiver))
        rows.setdefault(("receivers", receiver), []).append((sender, receiver))
        one, other = switches.get(sender, ""), switches.get(receiver, "")
        if one != other:
            for switch in {one, other} & shared:
                rows.setdefault(("switches", switch), []).append((sender, receiver))
    open_cells = set(left)
    for (kind, name), mine in rows.items():
        failed = tuple(cell for cell in mine if cell in open_cells)
        if len(failed) >= MIN_CELLS and len(failed) > MIN_SHARE * len(mine):
            yield len(failed) / len(mine), len(failed), kind, name, failed
