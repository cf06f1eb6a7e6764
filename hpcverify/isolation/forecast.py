"""What an isolation would take, by simulation of clusters in which some nodes are bad."""

from __future__ import annotations

from collections.abc import Collection
from math import ceil
from random import Random

from msgspec import Struct

from hpcverify.isolation.group_tests import GroupOutcome, GroupPurpose, Round
from hpcverify.isolation.journal import IsolationOrder
from hpcverify.isolation.runner import USUAL_TEST_MINUTES
from hpcverify.isolation.search import MAX_BAD_SHARE
from hpcverify.isolation.stages import isolate

FEW_BAD_SHARE = 0.02
"""A share of all nodes: more than are usually bad."""
MAX_SIMULATED_BAD = 50


class Forecast(Struct, frozen=True, kw_only=True):
    """What it takes to find a number of *bad* nodes."""

    bad: int
    tests: int
    rounds: int
    minutes: float
    node_minutes: float


class IsolationPlan(Struct, frozen=True, kw_only=True):
    """What would be tested, and what it would take."""

    nodes: tuple[str, ...]
    left_out: dict[str, str]
    switches: int
    """How many switches are known; 0: groups are drawn by lot."""
    inside: bool
    first: Round
    """The tests of the first round between nodes."""
    forecasts: tuple[Forecast, ...]
    """The last one is the worst case: more bad nodes than that are nobody's fault."""


def forecast_isolation(order: IsolationOrder, at_once: int) -> IsolationPlan:
    """Forecast the isolation of *order*, with *at_once* jobs at a time."""
    count = len(order.nodes)
    most = min(MAX_SIMULATED_BAD, max(1, int(MAX_BAD_SHARE * count)))
    numbers = sorted({0, 1, min(most, ceil(FEW_BAD_SHARE * count)), most})
    random = Random(order.seed)
    walks = [_walk(order, set(random.sample(order.nodes, bad)), at_once) for bad in numbers]
    first = next(round_ for round_ in walks[0][1] if round_[0].purpose is not GroupPurpose.INSIDE)
    return IsolationPlan(
        nodes=order.nodes,
        left_out=order.left_out,
        switches=len(set(order.switches.values())),
        inside=order.inside,
        first=first,
        forecasts=tuple(forecast for forecast, _ in walks),
    )


def _walk(
    order: IsolationOrder, bad: Collection[str], at_once: int
) -> tuple[Forecast, list[Round]]:
    """Follow the plan in a cluster where each test with one of *bad* nodes fails."""
    random = Random(order.seed)
    plan = isolate(order.nodes, order.switches, random, inside=order.inside)
    rounds: list[Round] = []
    try:
        tests = next(plan)
        while True:
            rounds.append(tests)
            tests = plan.send(
                [
                    GroupOutcome.FAILED
                    if test.purpose is not GroupPurpose.INSIDE
                    and not set(bad).isdisjoint(test.members)
                    else GroupOutcome.PASSED
                    for test in tests
                ]
            )
    except StopIteration:
        pass
    jobs = [{frozenset(test.members) for test in tests} for tests in rounds]
    forecast = Forecast(
        bad=len(bad),
        tests=sum(map(len, rounds)),
        rounds=len(rounds),
        minutes=sum(ceil(len(batch) / at_once) for batch in jobs) * USUAL_TEST_MINUTES,
        node_minutes=sum(len(m) for batch in jobs for m in batch) * USUAL_TEST_MINUTES,
    )
    return forecast, rounds
