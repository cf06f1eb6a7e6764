"""
Which pairs of idle nodes to test in a sweep, so that each link is tried once in a period.

A link is what is between a node and its switch, or between two switches. A pair tries the
links of its two nodes, and what is between their switches, at full rate. Larger groups would
take as many node-minutes for each node's link, and load what is between switches less the
more of them take part. Pairs share no node, so all of a sweep can run side by side.

A node's link is due from a third of the period on: nodes are idle when users let them be, and
not when a week ends. The longest untried goes first, so none waits for ever.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
from itertools import combinations
from math import inf
from random import Random

from msgspec import Struct

NODE_DUE_SHARE, SWITCH_DUE_SHARE = 1 / 3, 0.8
"""The share of the period after which a node's link is due, and a link between switches: of
their nodes, some are idle at nearly any time."""

Pair = tuple[str, str]
"""Two nodes, or two switches; of switches in the order of their names."""


class LinkPair(Struct, frozen=True):
    """Two nodes to test with each other."""

    nodes: Pair
    switches: Pair | None = None
    """What is between is tried too, if they are at different switches."""


class LinkHistory(Struct, frozen=True):
    """When links were last tried, in seconds since 1970."""

    nodes: Mapping[str, float] = {}
    switches: Mapping[Pair, float] = {}


class KnownLinks(Struct, frozen=True, kw_only=True):
    """The nodes whose links sweeps try, as the last sweep saw them."""

    kinds: Mapping[str, Hashable] = {}
    """By node: only nodes of one kind can be tested together."""
    switches: Mapping[str, str] = {}
    """By node, as far as they are known."""
    history: LinkHistory = LinkHistory()


class LinkPlan(Struct, frozen=True):
    """What a sweep tests of the links, and what it cannot."""

    pairs: tuple[LinkPair, ...]
    """The longest untried first."""
    alone: tuple[str, ...] = ()
    """Nodes that are due, and for which no partner is idle."""


class LinkCoverage(Struct, frozen=True, kw_only=True):
    """How many links were tried lately."""

    nodes: int = 0
    nodes_tried: int = 0
    switch_pairs: int = 0
    switch_pairs_tried: int = 0
    untried: tuple[str, ...] = ()
    """The nodes whose link was not."""


def sort_pair(first: str, second: str) -> Pair:
    """Put two names in order."""
    return (first, second) if first < second else (second, first)


def find_switch_pair(nodes: Iterable[str], switches: Mapping[str, str]) -> Pair | None:
    """Name the two switches that two *nodes* are at; None if it is one, or unknown."""
    names = sorted({switches.get(node, "") for node in nodes})
    return sort_pair(*names) if len(names) == 2 and all(names) else None  # noqa: PLR2004 - a pair


def plan_links(
    idle: Mapping[str, Hashable],
    switches: Mapping[str, str],
    history: LinkHistory,
    *,
    now: float,
    period: float,
    random: Random,
) -> LinkPlan:
    """Pair *idle* nodes of one kind so that due links are tried within *period* seconds."""
    kinds: dict[Hashable, list[str]] = {}
    for node in sorted(idle, key=lambda _: random.random()):
        kinds.setdefault(idle[node], []).append(node)
    pairs: list[tuple[float, LinkPair]] = []
    alone: list[str] = []
    for nodes in kinds.values():
        pairing = _Pairing(nodes, switches, history, now, period)
        pairs += pairing.pair_due()
        alone += pairing.alone
    ordered = sorted(pairs, key=lambda aged: -aged[0])
    return LinkPlan(tuple(pair for _, pair in ordered), tuple(sorted(alone)))


def count_coverage(known: KnownLinks, since: float) -> LinkCoverage:
    """Count the links, and those that were tried *since* then."""
    tried = known.history.nodes
    untried = tuple(node for node in known.kinds if tried.get(node, 0.0) < since)
    at: dict[Hashable, set[str]] = {}
    for node, kind in known.kinds.items():
        if switch := known.switches.get(node):
            at.setdefault(kind, set()).add(switch)
    between = {pair for nodes_there in at.values() for pair in combinations(sorted(nodes_there), 2)}
    crossed = [pair for pair in between if known.history.switches.get(pair, 0.0) >= since]
    return LinkCoverage(
        nodes=len(known.kinds),
        nodes_tried=len(known.kinds) - len(untried),
        switch_pairs=len(between),
        switch_pairs_tried=len(crossed),
        untried=untried,
    )


class _Pairing:
    def __init__(
        self,
        nodes: Collection[str],
        switches: Mapping[str, str],
        history: LinkHistory,
        now: float,
        period: float,
    ) -> None:
        self.switches = switches
        self.history = history
        self.now = now
        self.node_due, self.switch_due = NODE_DUE_SHARE * period, SWITCH_DUE_SHARE * period
        self.ages = {node: _compute_age(history.nodes.get(node, 0.0), now) for node in nodes}
        self.free: dict[str, list[str]] = {}
        """By switch, "" if it is unknown, the one tried last first."""
        for node in sorted(nodes, key=self.ages.__getitem__):
            self.free.setdefault(switches.get(node, ""), []).append(node)
        self.crossings = {
            pair: _compute_age(history.switches.get(pair, 0.0), now)
            for pair in combinations(sorted(s for s in self.free if s), 2)
        }
        self.alone: list[str] = []

    def pair_due(self) -> Iterator[tuple[float, LinkPair]]:
        """Yield the pairs, with how long ago the oldest of their links was tried."""
        for node in sorted(self.ages, key=lambda node: -self.ages[node]):
            switch = self.switches.get(node, "")
            if self.ages[node] < self.node_due or node not in self.free[switch]:
                continue
            self.free[switch].remove(node)
            if partner := self._choose_partner(switch):
                yield self._make_pair(node, partner)
            else:
                self.alone.append(node)
        for first, second in sorted(self.crossings, key=lambda pair: -self.crossings[pair]):
            if (
                self.crossings[first, second] >= self.switch_due
                and self.free[first]
                and self.free[second]
            ):
                yield self._make_pair(self.free[first].pop(), self.free[second].pop())

    def _choose_partner(self, switch: str) -> str:
        """Take a partner for a node at *switch*: best one that makes a due crossing too."""

        def rank(other: str) -> tuple[bool, bool, float]:
            crossing = self.crossings.get(sort_pair(switch, other), -1.0)
            oldest = self.ages[self.free[other][-1]]
            return crossing >= self.switch_due, oldest >= self.node_due, max(crossing, 0.0)

        there = [name for name, nodes in self.free.items() if nodes]
        return self.free[max(there, key=rank)].pop() if there else ""

    def _make_pair(self, first: str, second: str) -> tuple[float, LinkPair]:
        between = find_switch_pair((first, second), self.switches)
        crossing = self.crossings.get(between, 0.0) if between else 0.0
        if between:
            self.crossings[between] = 0.0
        return max(self.ages[first], self.ages[second], crossing), LinkPair(
            (first, second), between
        )


def _compute_age(tried: float, now: float) -> float:
    """Compute the seconds since then; never, and in the future, are for ever."""
    return now - tried if 0 < tried <= now else inf
