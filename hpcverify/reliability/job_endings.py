"""
Nodes on which jobs die young: "black holes", which are idle again at once and get the next.

A job that dies says more of its user's program than of its node. So users are compared
with themselves: a node is reported if several users lost their jobs there whose jobs ran
well on another node. They are compared with others at the time as well: when a file
system is away, the jobs die of all who start one.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from functools import cached_property

from msgspec import Struct

from hpcverify.stats import compute_binomial_tail

MIN_USERS = 3
"""Different users whose jobs died on a node that is reported."""
MIN_DIED_SHARE = 0.5
"""The share of a node's users whose jobs died there."""
FALSE_SHARE = 0.01
"""The share of healthy fleets in which chance alone names a node."""
PRIOR_TRIALS = 2.0
"""What the whole fleet says counts as much as so many nodes of the user's own."""
MIN_CHANCE = 0.02
"""A user whose jobs never died may still have broken something today."""
SPAN_S = 600.0
"""Jobs that start within so many seconds start at the same time."""
MAX_NODES_SHARE = 0.05
"""If jobs die on more than this share of the nodes, and on more than two, the cause is no node."""


class JobEnding(Struct, frozen=True):
    """How a job ended on one node."""

    user: int
    node: str
    died: bool
    """Whether it failed soon after its start."""
    at: float = 0.0
    """When it ended, in seconds since 1970."""
    began: float = 0.0


class BlackHole(Struct, frozen=True):
    """A node on which jobs of different users die."""

    node: str
    users: int
    """Who had jobs there, without those who lost theirs and had none elsewhere that ran well."""
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
    """Nodes on which jobs died, if they are too many for it to be theirs; none is reported."""


def judge_job_endings(endings: Iterable[JobEnding]) -> JobEndingsJudgement:
    """Find the nodes on which jobs of different users die against what they do elsewhere."""
    users: defaultdict[int, _User] = defaultdict(_User)
    for ending in endings:
        users[ending.user].trials[ending.node].add(ending)
    trials = sum(len(user.trials) for user in users.values())
    usual = sum(user.lost for user in users.values()) / max(1, trials)
    spans = _Spans(users.values(), usual)
    nodes = {node for user in users.values() for node in user.trials}
    trials_by_node: defaultdict[str, list[tuple[bool, float]]] = defaultdict(list)
    last: defaultdict[str, float] = defaultdict(float)
    for user in users.values():
        for node, jobs in user.trials.items():
            if not jobs.is_lost:
                trials_by_node[node].append((False, user.expect_death(node, usual)))
            elif user.ran_well_elsewhere(node):
                chance = max(user.expect_death(node, usual), spans.expect_death(node, jobs))
                trials_by_node[node].append((True, chance))
                last[node] = max(last[node], jobs.last_death)
    black_holes = [
        BlackHole(
            node, len(trials), sum(d for d, _ in trials), sum(p for _, p in trials), last[node]
        )
        for node, trials in sorted(trials_by_node.items())
        if _is_against_chance(trials, len(nodes))
    ]
    if len(black_holes) > max(2, MAX_NODES_SHARE * len(nodes)):
        return JobEndingsJudgement(widespread=len(black_holes))
    return JobEndingsJudgement(tuple(black_holes))


class _JobsOnNode:
    """All jobs of a user on a node: a thousand of an array count once."""

    __slots__ = ("deaths", "jobs", "last_death", "spans")

    def __init__(self) -> None:
        self.jobs = self.deaths = 0
        self.last_death = 0.0
        self.spans: dict[int, list[int]] = {}
        """The jobs that started at each time, and how many of them died."""

    def add(self, ending: JobEnding) -> None:
        self.jobs += 1
        started = self.spans.setdefault(int(ending.began // SPAN_S), [0, 0])
        started[0] += 1
        if ending.died:
            self.deaths += 1
            self.last_death = max(self.last_death, ending.at)
            started[1] += 1

    @property
    def is_lost(self) -> bool:
        return self.deaths > self.jobs / 2


class _User:
    """What became of the jobs of a user on each node."""

    def __init__(self) -> None:
        self.trials: defaultdict[str, _JobsOnNode] = defaultdict(_JobsOnNode)

    @cached_property
    def lost(self) -> int:
        """Count the nodes on which most of the jobs died."""
        return sum(jobs.is_lost for jobs in self.trials.values())

    def ran_well_elsewhere(self, node: str) -> bool:
        """Whether what died on *node* ran on another node: else it may be a bug of the user."""
        return len(self.trials) - self.lost > (not self.trials[node].is_lost)

    def expect_death(self, node: str, usual: float) -> float:
        """Estimate how likely jobs are lost on *node* from what the others did to them."""
        deaths = self.lost - self.trials[node].is_lost + PRIOR_TRIALS * usual
        return max(MIN_CHANCE, deaths / (len(self.trials) - 1 + PRIOR_TRIALS))


class _Spans:
    """What became of jobs by when they started, of users who lose them on few of their nodes."""

    def __init__(self, users: Iterable[_User], usual: float) -> None:
        self._usual = usual
        self._started: defaultdict[int, list[Counter[str]]] = defaultdict(list)
        """The jobs by node that started at each time, user by user."""
        self._died: defaultdict[int, list[Counter[str]]] = defaultdict(list)
        self._shares: dict[tuple[int, str], float] = {}
        for user in users:
            if user.lost <= len(user.trials) / 2:
                self._add(user)

    def _add(self, user: _User) -> None:
        started: defaultdict[int, Counter[str]] = defaultdict(Counter)
        died: defaultdict[int, Counter[str]] = defaultdict(Counter)
        for node, jobs in user.trials.items():
            for span, (count, deaths) in jobs.spans.items():
                started[span][node] = count
                died[span][node] = deaths
        for span in started:
            self._started[span].append(started[span])
            self._died[span].append(died[span])

    def expect_death(self, node: str, jobs: _JobsOnNode) -> float:
        """Estimate how likely jobs are lost that start on another node when *jobs* died."""
        spans = [span for span, (_, deaths) in jobs.spans.items() if deaths]
        return sum(self._find_share(span, node) for span in spans) / len(spans)

    def _find_share(self, span: int, node: str) -> float:
        if (span, node) not in self._shares:
            users = lost = 0
            for started, died in zip(self._started[span], self._died[span], strict=True):
                jobs = started.total() - started[node]
                users += bool(jobs)
                lost += died.total() - died[node] > jobs / 2
            share = (lost + PRIOR_TRIALS * self._usual) / (users + PRIOR_TRIALS)
            self._shares[span, node] = share
        return self._shares[span, node]


def _is_against_chance(trials: Sequence[tuple[bool, float]], nodes: int) -> bool:
    died = sum(dead for dead, _ in trials)
    if died < max(MIN_USERS, MIN_DIED_SHARE * len(trials)):
        return False
    return compute_binomial_tail([chance for _, chance in trials], died) * nodes < FALSE_SHARE
