"""On a noisy network: nobody is blamed by chance, and a slow node is found all the same."""

from __future__ import annotations

from random import Random

import pytest

from tests.isolation.clusters import name_nodes
from tests.isolation.noisy import isolate_noisy


def draw(seed: int) -> tuple[list[str], float]:
    """Draw a cluster of 4 to 64 nodes, and by how much its bandwidth varies."""
    random = Random(f"cluster {seed}")
    return name_nodes(random.randint(4, 64)), random.uniform(0.05, 0.25)


def test_in_healthy_clusters_nobody_is_blamed() -> None:
    """Of 1,000; a share of 0.75 alone blamed a node in one of 13."""
    blamed: list[int] = []
    for seed in range(1000):
        nodes, spread = draw(seed)
        found, _ = isolate_noisy(len(nodes), (), spread, seed)
        if found.nodes.bad or found.inside:
            blamed.append(seed)

    assert not blamed


def test_a_node_at_half_its_rate_is_found_and_nobody_else() -> None:
    missed, clusters = 0, 0
    for seed in range(300):
        nodes, spread = draw(seed)
        bad = Random(seed).choice(nodes)
        found, _ = isolate_noisy(len(nodes), (bad,), spread, seed)
        assert {*found.nodes.bad} <= {bad}, seed
        if spread <= 0.2:  # beyond, half the rate and noise are too much alike
            clusters, missed = clusters + 1, missed + (bad not in found.nodes.bad)

    assert missed <= 0.05 * clusters


@pytest.mark.parametrize("count", range(4, 10))
def test_on_a_quiet_network_a_slow_node_is_found_in_the_smallest_clusters(count: int) -> None:
    """Of 5 nodes the groups have 3 and 2: nothing was compared with them, and all passed."""
    for seed in range(20):
        bad = name_nodes(count)[seed % count]

        found, _ = isolate_noisy(count, (bad,), 0.03, seed)

        assert found.nodes.bad == (bad,)
