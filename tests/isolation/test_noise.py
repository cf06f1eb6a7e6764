"""On a noisy network: nobody is named by chance, and what is slow is found all the same."""

from __future__ import annotations

from random import Random

import pytest

from tests.isolation.clusters import name_nodes
from tests.isolation.noisy import (
    be_well,
    isolate_noisy,
    list_named,
    name_switches,
    slow_between,
    slow_link,
    slow_nodes,
    slow_switch,
)

FEW_PER_SWITCH = 16
"""So many nodes at least, that their switches are no fewer than four."""


def draw(seed: int, fewest: int = 4) -> tuple[list[str], float]:
    """Draw a cluster of 4 to 64 nodes, and by how much its bandwidth varies."""
    random = Random(f"cluster {seed}")
    count, spread = random.randint(4, 64), random.uniform(0.05, 0.25)
    return name_nodes(max(count, fewest)), spread


@pytest.mark.parametrize("has_topology", [False, True])
def test_in_healthy_clusters_nobody_is_named(*, has_topology: bool) -> None:
    """`bench/isolate.py` does this for 1,000 clusters."""
    named: list[int] = []
    for seed in range(40):
        nodes, spread = draw(seed, FEW_PER_SWITCH if has_topology else 4)
        switches = name_switches(len(nodes)) if has_topology else {}
        if list_named(isolate_noisy(nodes, be_well, spread, seed, switches)):
            named.append(seed)

    assert not named


def test_a_node_at_half_its_rate_is_found_and_nobody_else() -> None:
    missed, clusters = 0, 0
    for seed in range(40):
        nodes, spread = draw(seed)
        bad = Random(seed).choice(nodes)
        named = list_named(isolate_noisy(nodes, slow_nodes(bad), spread, seed))
        assert named <= {bad}, seed
        if spread <= 0.2:  # beyond, half the rate and noise are too much alike
            clusters, missed = clusters + 1, missed + (bad not in named)

    assert missed <= 0.05 * clusters


def test_a_slow_link_within_a_switch_is_found_and_neither_its_ends_nor_the_switch() -> None:
    missed, clusters = 0, 0
    for seed in range(100):
        nodes, spread = draw(seed, FEW_PER_SWITCH)
        if spread > 0.15:
            continue
        switches = name_switches(len(nodes))
        one = Random(seed).choice(nodes)
        near = [node for node in nodes if switches[node] == switches[one] and node != one]
        if len(near) < 4:  # too few partners to tell a link from its ends
            continue
        ends = (one, Random(seed).choice(near))
        named = list_named(isolate_noisy(nodes, slow_link(*ends), spread, seed, switches))
        assert named <= {frozenset(ends)}, seed
        clusters, missed = clusters + 1, missed + (not named)

    assert clusters >= 20
    assert missed <= 0.1 * clusters


def test_a_slow_switch_is_found_and_none_of_its_nodes() -> None:
    missed, clusters = 0, 0
    for seed in range(100):
        nodes, spread = draw(seed, FEW_PER_SWITCH)
        switches = name_switches(len(nodes))
        bad = Random(seed).choice(nodes)
        if spread > 0.15 or sum(name == switches[bad] for name in switches.values()) < 3:
            continue
        slow = slow_switch(switches[bad], switches)
        named = list_named(isolate_noisy(nodes, slow, spread, seed, switches))
        assert named <= {switches[bad]}, seed
        clusters, missed = clusters + 1, missed + (not named)

    assert clusters >= 20
    assert missed <= 0.1 * clusters


def test_what_is_slow_between_two_switches_names_neither_of_them_nor_a_node() -> None:
    found, clusters = 0, 0
    for seed in range(100):
        nodes, spread = draw(seed, FEW_PER_SWITCH)
        switches = name_switches(len(nodes))
        one, other = Random(seed).sample(list(dict.fromkeys(switches.values())), 2)
        if spread > 0.15 or len(set(switches.values())) < 6:  # a link takes more partners
            continue
        slow = slow_between(one, other, switches)
        named = list_named(isolate_noisy(nodes, slow, spread, seed, switches))
        assert named <= {frozenset((one, other))}, seed
        clusters, found = clusters + 1, found + bool(named)

    assert clusters >= 20
    assert found >= 0.55 * clusters


@pytest.mark.parametrize("count", range(4, 10))
def test_on_a_quiet_network_a_slow_node_is_found_in_the_smallest_clusters(count: int) -> None:
    """Of 5 nodes the groups have 3 and 2: nothing was compared with them, and all passed."""
    nodes = name_nodes(count)
    for seed in range(20):
        bad = nodes[seed % count]
        assert isolate_noisy(nodes, slow_nodes(bad), 0.03, seed).nodes.bad == (bad,)
