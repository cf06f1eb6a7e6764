"""Who holds the others up: in thousands of invented steps, the right one or nobody."""

from __future__ import annotations

from random import Random

import pytest

from hpcverify.isolation.stragglers import compute_delays, describe_straggler, find_stragglers
from hpcverify.records.collectives import RankSteps, Straggler, Transfers
from tests.isolation.steplogs import COLLECTIVE, WORK, Cluster, Noise, draw_steps, draw_transfers

CASES = 150
CLUSTERS = (Cluster(3, 1), Cluster(4, 1), Cluster(8, 1), Cluster(3, 2), Cluster(4, 8))


def draw_cluster(random: Random) -> Cluster:
    return random.choice(CLUSTERS)


def test_the_rank_that_works_longer_is_named_and_no_other() -> None:
    for seed in range(CASES):
        random = Random(seed)
        cluster = draw_cluster(random)
        slow = random.randrange(cluster.world)
        noise = Noise(spread=random.uniform(0.01, 0.15), pauses=random.choice((0, 0.005)))
        steps = draw_steps(random, cluster, {slow: random.uniform(1.6, 4)}, noise)
        transfers = draw_transfers(random, cluster, noise)

        found = find_stragglers(cluster.places, steps, transfers)

        assert [(one.rank, one.how) for one in found] == [(slow, "arrives_late")], seed


def test_the_gain_is_what_a_step_without_the_straggler_would_take_less() -> None:
    random, cluster = Random(1), Cluster(8, 1)
    steps = draw_steps(random, cluster, {5: 3.0}, Noise(spread=0.001, fixed=0.001))
    (found,) = find_stragglers(cluster.places, steps)
    assert found.gain == pytest.approx(2 * WORK / (3 * WORK + COLLECTIVE), rel=0.02)
    assert found.seconds == pytest.approx(2 * WORK, rel=0.02)


def test_two_equally_slow_ranks_do_not_hide_each_other() -> None:
    cluster = Cluster(8, 1)

    found = find_stragglers(
        cluster.places, draw_steps(Random(1), cluster, {2: 3.0, 5: 3.0}, Noise())
    )

    assert sorted(one.rank for one in found) == [2, 5]
    assert all(0.4 < one.gain < 0.7 for one in found)


def test_a_slow_node_with_many_ranks_has_one_name() -> None:
    for seed in range(CASES // 5):
        random, cluster = Random(seed), Cluster(4, 8)
        node = random.randrange(4)
        slow = {rank: random.uniform(2, 3) for rank in range(8 * node, 8 * node + 8)}

        (found,) = find_stragglers(cluster.places, draw_steps(random, cluster, slow, Noise()))

        assert (found.node, found.rank) == (f"n{node}", 8 * node), seed


@pytest.mark.parametrize("how", ["sends_slowly", "receives_slowly"])
def test_who_is_slow_to_all_its_partners_is_named_by_the_side_that_is_slow(how: str) -> None:
    for seed in range(CASES):
        random = Random(seed)
        cluster = draw_cluster(random)
        slow = {random.randrange(cluster.world): random.uniform(1.6, 10)}
        noise = Noise(spread=random.uniform(0.01, 0.15))
        side = {"senders" if how == "sends_slowly" else "receivers": slow}
        transfers = draw_transfers(random, cluster, noise, **side)  # type: ignore[arg-type]

        found = find_stragglers(cluster.places, draw_steps(random, cluster, {}, noise), transfers)

        assert [(one.rank, one.how) for one in found] == [(*slow, how)], seed


def test_a_rank_that_is_slow_at_everything_has_one_name() -> None:
    for seed in range(CASES // 3):
        random = Random(seed)
        cluster = draw_cluster(random)
        slow = {random.randrange(cluster.world): 3.0}
        transfers = draw_transfers(random, cluster, Noise(), senders=slow, receivers=slow)

        found = find_stragglers(
            cluster.places, draw_steps(random, cluster, slow, Noise()), transfers
        )

        assert [(one.rank, one.how) for one in found] == [(*slow, "arrives_late")], seed


def test_nobody_is_named_under_noise_pauses_and_congestion() -> None:
    for seed in range(2 * CASES):
        random = Random(seed)
        cluster = random.choice((*CLUSTERS, Cluster(1, 8), Cluster(2, 1), Cluster(2, 4)))
        noise = Noise(
            spread=random.choice((0.01, 0.1, 0.3, 0.6)),
            fixed=random.choice((0.001, 0.01, 0.02)),
            pauses=random.choice((0, 0.01, 0.05, 0.2)),
        )
        steps = draw_steps(random, cluster, {}, noise, count=random.choice((20, 60)))
        transfers = draw_transfers(random, cluster, noise, congestion=random.choice((0, 0.1, 0.3)))

        assert find_stragglers(cluster.places, steps, transfers) == (), seed


def test_nobody_is_named_where_two_halves_differ() -> None:
    for cluster in (Cluster(2, 1), Cluster(4, 1), Cluster(8, 1), Cluster(4, 8)):
        half = dict.fromkeys(range(cluster.world // 2), 2.0)
        steps = draw_steps(Random(3), cluster, half, Noise())
        transfers = draw_transfers(Random(3), cluster, Noise(), senders=half)
        assert find_stragglers(cluster.places, steps, transfers) == ()


def test_nobody_is_named_where_all_are_late_in_turn() -> None:
    for cluster in CLUSTERS:
        steps = draw_steps(Random(4), cluster, {}, Noise(), rotating=2 * WORK, count=96)
        assert find_stragglers(cluster.places, steps) == ()


def test_nobody_is_named_for_a_part_of_the_time() -> None:
    """A node that others disturb for a while is not a slow node."""
    cluster = Cluster(8, 1)
    for late_in in (range(15), range(30, 60), range(20, 60, 2)):
        steps = draw_steps(Random(5), cluster, {3: 9.0}, Noise(), late_in=late_in)
        assert find_stragglers(cluster.places, steps) == ()


def test_a_rank_that_a_quota_of_cpu_pauses_in_some_steps_is_named() -> None:
    for seed in range(CASES // 3):
        random = Random(seed)
        cluster = draw_cluster(random)
        slow = random.randrange(cluster.world)
        paused = range(random.randrange(3), 60, random.choice((2, 3)))
        steps = draw_steps(random, cluster, {slow: 15.0}, Noise(), late_in=paused)

        (found,) = find_stragglers(cluster.places, steps)

        assert (found.rank, found.how) == (slow, "arrives_late"), seed
        assert found.gain > 0.5


def test_who_loses_packets_now_and_then_is_named_and_none_of_its_partners() -> None:
    missed = 0
    for seed in range(CASES):
        random = Random(seed)
        cluster = draw_cluster(random)
        slow = random.randrange(cluster.world)
        losses = {slow: random.uniform(0.3, 0.5)}
        noise = Noise(spread=random.uniform(0.01, 0.15))
        transfers = draw_transfers(random, cluster, noise, losses=losses, rounds=32)

        found = find_stragglers(cluster.places, [], transfers)

        assert {(one.rank, one.how) for one in found} <= {(slow, "sends_slowly")}, seed
        missed += not found
    assert missed <= CASES // 10


def test_nobody_is_named_where_all_lose_packets_now_and_then() -> None:
    for seed in range(CASES):
        random = Random(seed)
        cluster = draw_cluster(random)
        losses = dict.fromkeys(range(cluster.world), random.choice((0.02, 0.1, 0.3)))
        rounds = random.choice((16, 24, 32))
        transfers = draw_transfers(random, cluster, Noise(), losses=losses, rounds=rounds)

        assert find_stragglers(cluster.places, [], transfers) == (), seed


def test_nobody_is_named_for_less_than_is_unknown_of_the_clocks() -> None:
    cluster = Cluster(8, 1)
    steps = draw_steps(Random(6), cluster, {3: 2.0}, Noise(clock_error=2 * WORK))
    assert find_stragglers(cluster.places, steps) == ()


def test_a_difference_that_hardly_costs_time_names_nobody() -> None:
    cluster = Cluster(8, 1)
    steps = draw_steps(Random(7), cluster, {3: 1.05}, Noise(spread=0.001, fixed=0.001))
    assert find_stragglers(cluster.places, steps) == ()


def test_a_slow_link_between_two_ranks_names_neither() -> None:
    for cluster in (Cluster(3, 1), Cluster(8, 1), Cluster(4, 8)):
        link = {(0, cluster.ranks): 5.0}
        transfers = draw_transfers(Random(8), cluster, Noise(), links=link)
        assert find_stragglers(cluster.places, [], transfers) == ()


def test_of_two_nodes_neither_is_named_for_a_slow_transfer() -> None:
    """Who sends slowly and who receives slowly cannot be told apart with one partner."""
    cluster = Cluster(2, 4)
    slow = dict.fromkeys(range(4), 5.0)

    assert (
        find_stragglers(
            cluster.places, [], draw_transfers(Random(9), cluster, Noise(), senders=slow)
        )
        == ()
    )


def test_delays_are_medians_after_the_first_and_after_the_last_arrival() -> None:
    steps = [
        RankSteps(0, (1.0, 2.0, 3.0), (1.5, 2.5, 3.5), 0.0),
        RankSteps(1, (1.2, 2.2, 3.3), (1.4, 2.6, 3.7), 1e-4),
    ]

    one, other = compute_delays("all_reduce", 8, steps)

    assert one.arrival == 0.0
    assert one.inside == pytest.approx(0.3)
    assert other.arrival == pytest.approx(0.2)
    assert other.inside == pytest.approx(0.4)
    assert other.clock_error == 1e-4


def test_a_straggler_is_told_with_its_node_its_part_and_the_gain() -> None:
    places = Cluster(2, 8).places

    text = describe_straggler(Straggler(13, "arrives_late", 0.041, 0.22), places)
    whole = describe_straggler(Straggler(8, "sends_slowly", 0.0004, 0.3, "n1"), places)

    assert text == (
        "rank 13 (node n1, GPU 5) arrives 41 ms late at each step: without this delay a step would "
        "take 22% less"
    )
    assert whole.startswith("node n1 (all its ranks) takes 400 us longer to send")


def test_a_slow_sender_that_confirms_late_what_it_receives_is_still_named() -> None:
    """As measured on a link of 25 Mbit/s: its acknowledgements wait behind its own data."""
    cluster, times = Cluster(4, 1), {(1, 0): 0.33, (1, 2): 0.34, (1, 3): 0.34, (3, 1): 0.38}
    transfers = [
        Transfers(a, b, tuple(times.get((a, b), 0.05) + 0.002 * (n % 3) for n in range(8)))
        for a in range(4)
        for b in range(4)
        if a != b
    ]

    (found,) = find_stragglers(cluster.places, [], transfers)

    assert (found.rank, found.how) == (1, "sends_slowly")
    assert found.gain == pytest.approx(0.85, abs=0.05)


def test_who_is_far_away_is_told_from_there_and_back_where_its_clock_is_unknown() -> None:
    """As measured with 20 ms more each way: the same 20 ms are unknown of its clock."""
    cluster, random = Cluster(4, 1), Random(1)
    far = {(1, 3): 0.08, (2, 3): 0.09, (0, 3): 0.085, (3, 0): 0.07, (3, 1): 0.075, (3, 2): 0.08}
    transfers = [
        Transfers(a, b, tuple(far.get((a, b), 0.044) + random.uniform(0, 0.004) for _ in range(16)))
        for a in range(4)
        for b in range(4)
        if a != b
    ]
    steps = draw_steps(random, cluster, {}, Noise(clock_error=0.0205))

    (found,) = find_stragglers(cluster.places, steps, transfers)

    assert (found.rank, found.how) == (3, "receives_slowly")
    assert found.gain > 0.2
