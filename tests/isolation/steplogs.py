"""Invented steps and transfers of ranks, with and without somebody who is slow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

from msgspec import Struct

from hpcverify.records.collectives import RankPlace, RankSteps, Transfers

WORK = 0.005
COLLECTIVE = 0.003
TRANSFER = 0.004
RETRANSMISSION = 0.2


class Cluster(Struct, frozen=True):
    """Ranks on nodes, in blocks."""

    nodes: int
    ranks: int
    """On each node."""

    @property
    def world(self) -> int:
        """How many ranks there are."""
        return self.nodes * self.ranks

    @property
    def places(self) -> tuple[RankPlace, ...]:
        """Where each rank runs."""
        return tuple(
            RankPlace(rank, f"n{rank // self.ranks}", f"GPU {rank % self.ranks}")
            for rank in range(self.world)
        )


class Noise(Struct, frozen=True):
    """What happens to everyone."""

    spread: float = 0.05
    """Of each piece of work: a log-normal deviation."""
    fixed: float = 0.01
    """By which ranks differ for good."""
    pauses: float = 0.0
    """The chance of a rank to pause in a step, as garbage collection does."""
    pause: float = 0.02
    clock_error: float = 1e-4


def draw_steps(
    random: Random,
    cluster: Cluster,
    slow: Mapping[int, float],
    noise: Noise,
    *,
    count: int = 60,
    rotating: float = 0.0,
    late_in: Sequence[int] | None = None,
) -> list[RankSteps]:
    """
    Draw *count* steps; the work of *slow* ranks takes that factor (in steps *late_in*).

    *rotating*: in each step another rank takes so many seconds longer.
    """
    own = [random.lognormvariate(0, noise.fixed) for _ in range(cluster.world)]
    shift = [random.uniform(-1, 1) * noise.clock_error for _ in own]
    ends = [random.uniform(0, WORK) for _ in own]
    arrived: list[list[float]] = [[] for _ in own]
    ended: list[list[float]] = [[] for _ in own]
    for step in range(count):
        here = []
        for rank, end in enumerate(ends):
            work = WORK * own[rank] * random.lognormvariate(0, noise.spread)
            if late_in is None or step in late_in:
                work *= slow.get(rank, 1.0)
            if random.random() < noise.pauses:
                work += random.expovariate(1 / noise.pause)
            if rotating and step % cluster.world == rank:
                work += rotating
            here.append(end + work)
        done = max(here) + COLLECTIVE * random.lognormvariate(0, noise.spread)
        ends = [done + random.uniform(0, 1e-4) for _ in own]
        for rank in range(cluster.world):
            arrived[rank].append(here[rank] + shift[rank])
            ended[rank].append(ends[rank] + shift[rank])
    return [
        RankSteps(rank, tuple(arrived[rank]), tuple(ended[rank]), noise.clock_error)
        for rank in range(cluster.world)
    ]


def draw_transfers(
    random: Random,
    cluster: Cluster,
    noise: Noise,
    *,
    senders: Mapping[int, float] | None = None,
    receivers: Mapping[int, float] | None = None,
    links: Mapping[tuple[int, int], float] | None = None,
    losses: Mapping[int, float] | None = None,
    congestion: float = 0.0,
    rounds: int = 16,
) -> list[Transfers]:
    """
    Draw transfers of each rank to its followers on other nodes, up to four.

    *losses*: the chance of a sender to lose a packet that is only sent again after a while;
    *congestion*: that of any transfer to take three times as long.
    """
    drawn = []
    for jump in range(1, min(cluster.nodes, 5)):
        for sender in range(cluster.world):
            receiver = (sender + jump * cluster.ranks) % cluster.world
            factor = max(
                (senders or {}).get(sender, 1.0),
                (receivers or {}).get(receiver, 1.0),
                (links or {}).get((sender, receiver), 1.0),
            )
            times = []
            for _ in range(rounds):
                busy = 3.0 if random.random() < congestion else 1.0
                again = random.random() < (losses or {}).get(sender, 0.0)
                spread = random.lognormvariate(0, noise.spread)
                times.append(TRANSFER * factor * busy * spread + again * RETRANSMISSION)
            drawn.append(Transfers(sender, receiver, tuple(times)))
    return drawn
