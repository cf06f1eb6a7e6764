"""
Read a matrix of senders and receivers that were slow: a bad row is a sender, a column a receiver.

In each round, disjoint pairs send to each other, first the one and then the other. So
each of n nodes has sent to each other one after n - 1 rounds (n if n is odd).
A cell that no sender, receiver or switch explains is tested again, and is a link if it
fails each time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from itertools import chain

from msgspec import Struct
from msgspec.structs import replace

from hpcverify.isolation.group_tests import GroupOutcome, GroupPurpose, GroupTest, Outcomes, Round

MAX_MATRIX_NODES = 16
"""A matrix takes as many rounds as it has nodes."""
MIN_FAILED_SHARE = 0.5
"""The share of a sender's or receiver's cells with others that fail until it is bad."""
MIN_FAILED_CELLS = 2
"""A single cell that fails is a link."""
REPEATS = 3
"""Repeats of a cell that nothing else explains, before it is a link: of 240 cells, 5 fail by
chance if 2 % of all tests do, and on a noisy network 6 % do. Twice more named a link of good
nodes in one of 300 clusters."""

Cells = Mapping[tuple[str, str], bool]
"""Whether a test failed in which the first sent to the second."""


class MatrixReading(Struct, frozen=True):
    """What explains all failures of a matrix."""

    senders: tuple[str, ...] = ()
    receivers: tuple[str, ...] = ()
    switches: tuple[str, ...] = ()
    """Switches whose nodes are slow to all others, and not among themselves."""
    links: tuple[tuple[str, str], ...] = ()
    """From the first node to the second."""
    flaky: tuple[tuple[str, str], ...] = ()
    """Links that failed, and passed when tested again, or could not be."""


def pair_all(nodes: Sequence[str]) -> list[list[tuple[str, str]]]:
    """Pair each node with each other one, in rounds of disjoint pairs."""
    # The circle method: the first stays, the others move on by one seat a round.
    seats: list[str | None] = [*nodes, None][: len(nodes) + len(nodes) % 2]
    rounds: list[list[tuple[str, str]]] = []
    for _ in range(len(seats) - 1):
        facing = zip(seats[: len(seats) // 2], reversed(seats), strict=False)
        rounds.append([(first, second) for first, second in facing if first and second])
        seats.insert(1, seats.pop())
    return rounds


def find_directions(
    nodes: Sequence[str],
    switches: Mapping[str, str],
    gone: Collection[str] = frozenset(),
    bad: Collection[str] = frozenset(),
) -> Generator[Round, Outcomes, MatrixReading]:
    """
    Yield the rounds of a matrix of *nodes*, take their outcomes, and explain the failures.

    Those who are *gone* by then are left out. A node that is known to be *bad* explains
    whatever failed with it: it has no slow link.
    """
    cells: dict[tuple[str, str], bool] = {}
    for pairs in pair_all(nodes):
        if not (yield from _test_pairs(pairs, gone, cells)):
            reading = read_matrix(cells, switches, bad)
            return replace(reading, links=(), flaky=reading.links)
    reading = read_matrix(cells, switches, bad)
    suspected = list(reading.links)
    for _ in range(REPEATS):
        again: dict[tuple[str, str], bool] = {}
        for pairs in _make_disjoint(suspected):
            if not (yield from _test_pairs(pairs, gone, again)):
                break
        suspected = [link for link in suspected if again.get(link)]
    flaky = tuple(link for link in reading.links if link not in suspected)
    return replace(reading, links=tuple(suspected), flaky=flaky)


def _test_pairs(
    pairs: Iterable[tuple[str, str]], gone: Collection[str], cells: dict[tuple[str, str], bool]
) -> Generator[Round, Outcomes, bool]:
    """Test disjoint *pairs* in both directions, into *cells*; False: no further round may run."""
    here = [pair for pair in pairs if pair[0] not in gone and pair[1] not in gone]
    if not here:
        return True
    both = chain.from_iterable(((a, b), (b, a)) for a, b in here)
    tests = tuple(GroupTest(pair, GroupPurpose.SEND) for pair in both)
    outcomes = yield tests
    if outcomes is None:
        return False
    for test, outcome in zip(tests, outcomes, strict=True):
        if outcome is not GroupOutcome.UNKNOWN:
            sender, receiver = test.members
            cells[sender, receiver] = outcome is GroupOutcome.FAILED
    return True


def _make_disjoint(links: Iterable[tuple[str, str]]) -> list[list[tuple[str, str]]]:
    """Put *links* into rounds of disjoint pairs; both directions of a pair are one test."""
    rounds: list[list[tuple[str, str]]] = []
    for first, second in dict.fromkeys((min(link), max(link)) for link in links):
        free = (pairs for pairs in rounds if not {first, second} & {*chain.from_iterable(pairs)})
        chosen = next(free, None)
        if chosen is None:
            rounds.append(chosen := [])
        chosen.append((first, second))
    return rounds


def read_matrix(
    cells: Cells, switches: Mapping[str, str], bad: Collection[str] = frozenset()
) -> MatrixReading:
    """
    Explain the failures among *cells* by as few causes as can be, the largest first.

    Those of *bad* nodes are theirs, or if several are at one switch perhaps that one's.
    """
    left = {cell for cell, has_failed in cells.items() if has_failed}
    explained: set[tuple[str, str]] = set()
    causes: dict[str, list[str]] = {"senders": [], "receivers": [], "switches": []}
    while cause := max(_list_causes(cells, left, explained, switches, bad), default=None):
        _, _, kind, name, own = cause
        causes[kind].append(name)
        left.difference_update(own)
        explained.update(own)
    return MatrixReading(
        senders=tuple(causes["senders"]),
        receivers=tuple(causes["receivers"]),
        switches=tuple(causes["switches"]),
        links=tuple(sorted(link for link in left if set(bad).isdisjoint(link))),
    )


Cause = tuple[float, int, str, str, tuple[tuple[str, str], ...]]
"""The share of its cells that fail, of those that nothing explains yet, their number, the
kind, who it is, and these cells."""


def _list_causes(
    cells: Cells,
    left: Collection[tuple[str, str]],
    explained: Collection[tuple[str, str]],
    switches: Mapping[str, str],
    bad: Collection[str],
) -> Iterator[Cause]:
    counts = Counter(switches.get(node, "") for node in bad)
    shared = {switch for switch, count in counts.items() if switch and count > 1}
    rows: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for sender, receiver in cells:
        if (sender, receiver) in explained:
            continue
        rows.setdefault(("senders", sender), []).append((sender, receiver))
        rows.setdefault(("receivers", receiver), []).append((sender, receiver))
        near, far = switches.get(sender, ""), switches.get(receiver, "")
        if near != far:
            for switch in {near, far} & shared:
                rows.setdefault(("switches", switch), []).append((sender, receiver))
    for (kind, name), mine in rows.items():
        if kind == "switches" and not _is_well_inside(name, cells, switches):
            continue
        failed = tuple(cell for cell in mine if cell in left)
        if len(failed) >= MIN_FAILED_CELLS and len(failed) > MIN_FAILED_SHARE * len(mine):
            yield len(failed) / len(mine), len(failed), kind, name, failed


def _is_well_inside(switch: str, cells: Cells, switches: Mapping[str, str]) -> bool:
    """Whether nodes of *switch* were tested with each other, and most of them are well."""
    inside = [
        has_failed
        for (node, other), has_failed in cells.items()
        if switches.get(node) == switches.get(other) == switch
    ]
    return bool(inside) and sum(inside) <= MIN_FAILED_SHARE * len(inside)
