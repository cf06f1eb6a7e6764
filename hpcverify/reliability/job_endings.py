"""
Nodes on which jobs die young: "black holes", which are idle again at once and get the next.

A job that dies says more of its user's program than of its node. So users are compared
with themselves: a node is accused if several users lost their jobs there who lose few
elsewhere.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

from msgspec import Struct

MIN_USERS = 3
"""Different users whose jobs died on a node that is accused."""
MIN_DIED_SHARE = 0.5
"""Of the users of the node, those whose jobs died there."""
FALSE_SHARE = 0.01
"""Of healthy fleets, those in which chance alone accuses a node."""
PRIOR_TRIALS = 2.0
"""What the whole fleet says counts as much as so many nodes of the user's own."""
MIN_CHANCE = 0.02
"""A user whose jobs never died may still have broken something today."""
MAX_NODES_SHARE = 0.05
"""Of the nodes, and more than two: if jobs die on more of them, the cause is not a node."""


class JobEnding(Struct, frozen=True):
    """How a job ended on one node."""

    user: int
    node: str
    died: bool
    """Whether it failed soon after its start."""
    at: float = 0.0
    """When it ended, in seconds since 1970."""


class BlackHole(Struct, frozen=True):
    """A node on which jobs of different users die."""

    node: str
    users: int
    """Who had jobs there."""
    died: int
    """Users who lost most of theirs."""
    expected: float
    """Users who would have lost them on any other node."""
    last: float
    """When the last of these jobs died, in seconds since 1970."""


class JobEndingsJudgement(Struct, frozen=True):
    """What the ends of jobs say of the nodes."""

    black_holes: tuple[BlackHole, ...] = ()
    widespread: int = 0
    """Nodes on which jobs died, if they are too many for it to be theirs; nobody is accused."""


def judge_job_endings(endings: Iterable[JobEnding]) -> JobEndingsJudgement:
    """Find the nodes on which jobs of different users die against what they do elsewhere."""
    trials, last = _group_by_user(endings)
    nodes = {node for by_node in trials.values() for node in by_node}
    outcomes = [died for by_node in trials.values() for died in by_node.values()]
    usual = sum(outcomes) / max(1, len(outcomes))
    died_on: defaultdict[str, list[tuple[bool, float]]] = defaultdict(list)
    for by_node in trials.values():
        for node, died in by_node.items():
            died_on[node].append((died, _expect_death(by_node, node, usual)))
    found = [
        BlackHole(node, len(users), sum(d for d, _ in users), sum(p for _, p in users), last[node])
        for node, users in sorted(died_on.items())
        if _is_against_chance(users, len(nodes))
    ]
    if len(found) > max(2, MAX_NODES_SHARE * len(nodes)):
        return JobEndingsJudgement(widespread=len(found))
    return JobEndingsJudgement(tuple(found))


def _group_by_user(
    endings: Iterable[JobEnding],
) -> tuple[Mapping[int, Mapping[str, bool]], Mapping[str, float]]:
    """
    Make one trial of all jobs of a user on a node: a thousand of an array count once.

    Also say when a job last died on each node.
    """
    jobs: defaultdict[int, defaultdict[str, list[bool]]] = defaultdict(lambda: defaultdict(list))
    last: defaultdict[str, float] = defaultdict(float)
    for one in endings:
        jobs[one.user][one.node].append(one.died)
        if one.died:
            last[one.node] = max(last[one.node], one.at)
    trials = {
        user: {node: sum(died) > len(died) / 2 for node, died in by_node.items()}
        for user, by_node in jobs.items()
    }
    return trials, last


def _expect_death(own: Mapping[str, bool], node: str, usual: float) -> float:
    """Estimate how likely a user loses jobs on *node* from what the others did to them."""
    elsewhere = [died for other, died in own.items() if other != node]
    deaths = sum(elsewhere) + PRIOR_TRIALS * usual
    return max(MIN_CHANCE, deaths / (len(elsewhere) + PRIOR_TRIALS))


def _is_against_chance(users: Sequence[tuple[bool, float]], nodes: int) -> bool:
    died = sum(dead for dead, _ in users)
    if died < max(MIN_USERS, MIN_DIED_SHARE * len(users)):
        return False
    return _find_tail([chance for _, chance in users], died) * nodes < FALSE_SHARE


def _find_tail(chances: Collection[float], least: int) -> float:
    """Say how likely at least *least* of independent events with these chances happen."""
    exactly = [1.0]
    for chance in chances:
        exactly = [
            (exactly[k] if k < len(exactly) else 0.0) * (1 - chance)
            + (exactly[k - 1] * chance if k else 0.0)
            for k in range(len(exactly) + 1)
        ]
    return sum(exactly[least:])
