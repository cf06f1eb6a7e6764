"""
What of a node goes with outages to come, as numbers: its traits.

`FleetState` is moved through the history once, outage by outage, and can be asked at any
moment for the traits of a node in service, by nothing but what was known then. A trait is
the logarithm of a ratio: 0 for an unknown node.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from math import exp, log, log1p
from operator import mul

from hpcverify.reliability.outages import Outage
from hpcverify.selection.outages import FleetHistory, FleetNode

Traits = tuple[float, ...]
"""The traits of a node, in the order of `PRIOR_WEIGHTS`."""

PRIOR_WEIGHTS = {
    "recent": 1.0,
    "returned": 1.0,
    "rate": 0.0,
    "age": 0.0,
    "place": 0.5,
    "position": 0.5,
    "neighbours": 0.3,
}
"""
How much each trait counts before a site has a history of its own.

`recent` and `returned` are from InfiniteHBD-Trace (github.com/stepfun-ai/InfiniteHBD-Trace,
commit 7aacdc8; 400 GPU servers, 579 returns): out of service again within 1, 7 and 30 days of
a return were 22.5, 31.0 and 42.6 % of the nodes; of all nodes 0.4, 2.9 and 11.8 % in such a
time. The rate of a node over its whole life helps on one fleet and misleads on another, whose
parts wear out and are replaced: it and the age count only by what a site's own past says.
The rate of a place counts half until then.
"""
RECENT_DAYS, RECENT_RISE = 30.0, 2.0
"""An outage of the node raises its risk threefold; that fades with this time constant."""
RETURN_DAYS, RETURN_RISE = 2.0, 10.0
"""On top of that, the last return raises it elevenfold."""
AGE_DAYS = 30.0
PLACE_DAYS, NEIGHBOUR_DAYS = 90.0, 7.0
"""How fast outages fade in the rate of a place, and as those of neighbours. Parts of a whole cage
are replaced or moved, and then its past misleads: with a year, for about as long."""
NODE_SHAPE, PLACE_SHAPE, NEIGHBOUR_SHAPE = 1.0, 10.0, 1.0
"""The shape of the Gamma prior of a rate, in outages: a rate moves away from the fleet's as
far as there are more outages than this."""


class _Fading:
    """A count of events that fade with one time constant."""

    __slots__ = ("_at", "_days", "_value")

    def __init__(self, days: float) -> None:
        self._days = days
        self._value = self._at = 0.0

    def read(self, now: float) -> float:
        return self._value * exp((self._at - now) / self._days) if self._value else 0.0

    def add(self, now: float) -> None:
        self._value = self.read(now) + 1
        self._at = now


class FleetState:
    """The fleet at a moment: moved by `advance`, asked for the traits of nodes."""

    def __init__(self, history: FleetHistory) -> None:
        self._nodes = history.nodes
        self._sizes = Counter(
            group for node in history.nodes.values() for group in node.list_groups()
        )
        self._since_sum = sum(node.since for node in history.nodes.values())
        self._own: dict[str, list[Outage]] = {}
        self._count = 0
        self._fading = _Fading(PLACE_DAYS)
        self._recent = _Fading(NEIGHBOUR_DAYS)
        self._groups: dict[str, _Fading] = defaultdict(lambda: _Fading(PLACE_DAYS))
        self._near: dict[str, _Fading] = defaultdict(lambda: _Fading(NEIGHBOUR_DAYS))
        self._last_near: dict[str, list[Outage]] = defaultdict(list)
        self._rates: dict[str, float] = {}
        self._rates_at = -1.0

    def advance(self, outage: Outage) -> None:
        """Learn that *outage* began, no earlier than the one before."""
        node, now = self._nodes[outage.node], outage.began
        self._own.setdefault(node.name, []).append(outage)
        self._count += 1
        self._fading.add(now)
        self._recent.add(now)
        for group in node.list_groups():
            self._groups[group].add(now)
        if node.places:
            self._near[node.places[-1]].add(now)
            self._last_near[node.places[-1]].append(outage)
        self._rates_at = -1.0

    def is_in_service(self, node: FleetNode, now: float) -> bool:
        """Whether *node* has joined the fleet, and is not out *now*."""
        own = self._own.get(node.name)
        return node.since <= now and (own is None or own[-1].ended <= now)

    def read_traits(self, node: FleetNode, now: float) -> Traits:
        """Read the traits of *node*, which is in service *now*."""
        own = self._own.get(node.name)
        places = sum(map(self.read_rate, node.places, [now] * len(node.places)))
        positions = sum(map(self.read_rate, node.positions, [now] * len(node.positions)))
        exposure = len(self._nodes) * now - self._since_sum
        # How many outages it would have by now, were it like all.
        expected = self._count * (now - node.since) / exposure if exposure > 0 else 0.0
        rate = log(NODE_SHAPE / (expected + NODE_SHAPE))
        near = self._read_near(node, now) if node.places else 0.0
        if own is None:
            age = log1p((now - node.since) / AGE_DAYS)
            return 0.0, 0.0, rate, age, places, positions, near
        back = now - own[-1].ended
        recent = sum(exp((outage.ended - now) / RECENT_DAYS) for outage in own)
        return (
            log1p(RECENT_RISE * recent),
            log1p(RETURN_RISE * exp(-back / RETURN_DAYS)),
            rate + log((len(own) + NODE_SHAPE) / NODE_SHAPE),
            log1p(back / AGE_DAYS),
            places,
            positions,
            near,
        )

    def list_own(self, name: str) -> list[Outage]:
        """List the outages of the node *name* so far."""
        return self._own.get(name, [])

    def find_last_neighbour(self, node: FleetNode) -> Outage | None:
        """Find the last outage of another node in the narrowest place of *node*."""
        near = self._last_near.get(node.places[-1], []) if node.places else []
        return next((outage for outage in reversed(near) if outage.node != node.name), None)

    def read_rate(self, group: str, now: float) -> float:
        """Read how often a place or a position went out beside the fleet: a log ratio."""
        if now != self._rates_at:
            self._rates, self._rates_at = {}, now
        known = self._rates.get(group)
        if known is None:
            expected = self._fading.read(now) * self._sizes[group] / len(self._nodes)
            seen = self._groups[group].read(now) if group in self._groups else 0.0
            known = log((seen + PLACE_SHAPE) / (expected + PLACE_SHAPE))
            self._rates[group] = known
        return known

    def _read_near(self, node: FleetNode, now: float) -> float:
        place = node.places[-1]
        others = self._sizes[place] - 1
        expected = self._recent.read(now) * others / len(self._nodes)
        seen = self._near[place].read(now) if place in self._near else 0.0
        if seen:
            own = self._own.get(node.name, ())
            seen -= sum(exp((outage.began - now) / NEIGHBOUR_DAYS) for outage in own)
        return log((max(seen, 0.0) + NEIGHBOUR_SHAPE) / (expected + NEIGHBOUR_SHAPE))


def combine(weights: Traits, traits: Traits) -> float:
    """Return the logarithm of the risk that *traits* mean, up to a constant."""
    total: float = sum(map(mul, weights, traits))
    return total
