"""Each link is tried once in a period, in few node-minutes, and no node is left for ever."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from random import Random

import pytest

from hpcverify.isolation.links import (
    KnownLinks,
    LinkHistory,
    LinkPlan,
    Pair,
    count_coverage,
    find_switch_pair,
    plan_links,
)

DAY = 86400.0
WEEK = 7 * DAY
AT_SWITCH = 16
"""Nodes at a switch."""


class Cluster:
    """Nodes that are idle at some times, and swept."""

    def __init__(self, count: int, *, share: float, at_once: int = 10**6, seed: int = 1) -> None:
        """Each node is idle at a *share* of the times."""
        self.switches = {f"n{i}": f"leaf{i // AT_SWITCH}" for i in range(count)}
        self.share = share
        self.at_once = at_once
        self.random = Random(seed)
        self.now = 1e9
        self.nodes: dict[str, float] = {}
        self.crossed: dict[Pair, float] = {}
        self.tests = 0

    def sweep(self) -> LinkPlan:
        """Sweep what is idle by chance now."""
        idle = {node: "h100" for node in self.switches if self.random.random() < self.share}
        made = plan(self, idle)
        for pair in made.pairs[: self.at_once]:
            self.nodes |= dict.fromkeys(pair.nodes, self.now)
            if pair.switches:
                self.crossed[pair.switches] = self.now
            self.tests += 1
        return made

    def run(self, days: float, every: float) -> None:
        """Sweep *every* so many seconds for some *days*."""
        for _ in range(round(days * DAY / every)):
            self.sweep()
            self.now += every

    @property
    def history(self) -> LinkHistory:
        """When links were tried."""
        return LinkHistory(dict(self.nodes), dict(self.crossed))

    def count(self) -> tuple[int, int, int, int]:
        """Count nodes, those tried in the last week, and pairs of switches likewise."""
        kinds = dict.fromkeys(self.switches, "h100")
        known = KnownLinks(kinds=kinds, switches=self.switches, history=self.history)
        found = count_coverage(known, self.now - WEEK)
        return found.nodes, found.nodes_tried, found.switch_pairs, found.switch_pairs_tried


def plan(
    cluster: Cluster, idle: Mapping[str, str], switches: Mapping[str, str] | None = None
) -> LinkPlan:
    """Plan what to test of those *idle*."""
    return plan_links(
        idle,
        cluster.switches if switches is None else switches,
        cluster.history,
        now=cluster.now,
        period=WEEK,
        random=cluster.random,
    )


@pytest.mark.parametrize("count", [2, 3, 16, 17, 64, 250, 1000])
@pytest.mark.parametrize("share", [0.2, 0.5])
def test_each_link_is_tried_once_a_week_by_sweeps_of_what_is_idle(count: int, share: float) -> None:
    cluster = Cluster(count, share=share)
    cluster.run(21, every=DAY / 6)

    nodes, tried, between, crossed = cluster.count()
    leaves = -(-count // AT_SWITCH)
    assert (nodes, between) == (count, leaves * (leaves - 1) // 2)
    assert crossed == between
    assert tried >= 0.998 * nodes  # at a fifth idle, some are not for four days on end


@pytest.mark.parametrize("count", [64, 1000])
def test_no_link_is_tried_much_more_often_than_it_must_be(count: int) -> None:
    cluster = Cluster(count, share=0.5)
    cluster.run(28, every=DAY / 6)
    _, _, between, _ = cluster.count()
    # A node is due after a third of a week, and a test has two; between switches after 0.8.
    assert cluster.tests <= 4 * 1.1 * max(count * 1.5, between / 0.8)


def test_who_is_idle_and_due_is_tested_or_has_no_partner() -> None:
    cluster = Cluster(100, share=0.3)
    for _ in range(40):
        before = dict(cluster.nodes)
        made = cluster.sweep()
        paired = [*chain.from_iterable(pair.nodes for pair in made.pairs)]
        assert len(paired) == len(set(paired))
        assert len(made.alone) <= 1
        assert all(cluster.now - before.get(node, 0) >= WEEK / 3 for node in made.alone)
        cluster.now += DAY


def test_nobody_starves_when_few_may_be_tested_at_once() -> None:
    cluster = Cluster(200, share=0.5, at_once=4)
    cluster.run(28, every=DAY / 12)
    nodes, tried, _, _ = cluster.count()
    assert tried == nodes


def test_without_a_topology_any_two_nodes_make_a_pair() -> None:
    cluster = Cluster(40, share=1.0)
    made = plan(cluster, dict.fromkeys(cluster.switches, "h100"), switches={})
    assert (len(made.pairs), {pair.switches for pair in made.pairs}) == (20, {None})


def test_what_was_tried_lately_is_not_tried_again() -> None:
    cluster = Cluster(64, share=1.0)
    cluster.sweep()
    cluster.now += DAY
    assert {pair.nodes for pair in cluster.sweep().pairs} == set()


def test_what_is_between_switches_is_tried_though_no_node_is_due() -> None:
    cluster = Cluster(64, share=1.0)
    cluster.sweep()
    cluster.now += DAY
    del cluster.crossed["leaf0", "leaf2"]
    assert [pair.switches for pair in cluster.sweep().pairs] == [("leaf0", "leaf2")]


def test_nodes_of_two_kinds_are_not_tested_together() -> None:
    cluster = Cluster(3, share=1.0)
    made = plan(cluster, {"n0": "h100", "n1": "cpu", "n2": "h100"})
    assert ([set(pair.nodes) for pair in made.pairs], made.alone) == ([{"n0", "n2"}], ("n1",))


def test_a_node_alone_is_told() -> None:
    assert plan(Cluster(2, share=1.0), {"n1": "h100"}) == LinkPlan((), ("n1",))


def test_a_clock_that_was_ahead_keeps_nobody_from_its_turn() -> None:
    cluster = Cluster(2, share=1.0)
    cluster.nodes = dict.fromkeys(cluster.switches, cluster.now + 10 * WEEK)
    assert len(cluster.sweep().pairs) == 1


def test_only_two_known_switches_have_something_between_them() -> None:
    switches = {"n1": "b", "n2": "a", "n3": "a"}
    assert find_switch_pair(("n1", "n2"), switches) == ("a", "b")
    assert find_switch_pair(("n2", "n3"), switches) is None
    assert find_switch_pair(("n1", "n9"), switches) is None
