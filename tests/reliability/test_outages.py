"""Rates of failures come with intervals that hold, also where a few nodes have most of them."""

from __future__ import annotations

import math
import random

import pytest

from hpcverify.reliability.outages import FleetReliability, Outage, measure_reliability

DAYS = 100
RACK_RATE = 0.004


def simulate(rates: list[float], seed: int, repair_days: float = 2.0) -> FleetReliability:
    """Nodes that fail at these rates per day in service, for `DAYS`."""
    draw = random.Random(seed)  # noqa: S311 - a simulation
    outages: list[Outage] = []
    for number, rate in enumerate(rates):
        at = draw.expovariate(rate)
        while at < DAYS:
            back = at + draw.expovariate(1 / repair_days)
            outages.append(Outage(f"n{number}", at, back))
            at = back + draw.expovariate(rate)
    since = {f"n{number}": 0.0 for number in range(len(rates))}
    return measure_reliability(since, outages, 0.0, DAYS)


@pytest.mark.system
@pytest.mark.parametrize("rates", [[0.01] * 100, [0.002] * 80 + [0.05] * 20])
def test_intervals_hold_the_true_rate_nearly_as_often_as_they_say(rates: list[float]) -> None:
    truth = sum(rates) / len(rates)
    found = [simulate(rates, seed, repair_days=0.01).failure_rate for seed in range(200)]
    held = sum(bool(each and each.low <= truth <= each.high) for each in found)
    assert held >= 0.9 * len(found)


def simulate_racks(seed: int, *, apart: bool) -> FleetReliability:
    """Let a third of the failures take a rack of 16; the racks are known, unless *apart*."""
    draw = random.Random(seed)  # noqa: S311 - a simulation
    outages: list[Outage] = []
    for number in range(400):
        at = draw.expovariate(RACK_RATE * 2 / 3)
        while at < DAYS:
            outages.append(Outage(f"n{number}", at, (at + 0.01)))
            at += 0.01 + draw.expovariate(RACK_RATE * 2 / 3)
    for rack in range(25):
        at = draw.expovariate(RACK_RATE / 3)
        while at < DAYS:
            own = range(16 * rack, 16 * rack + 16)
            outages += [Outage(f"n{n}", at, (at + 0.01)) for n in own]
            at += 0.01 + draw.expovariate(RACK_RATE / 3)
    nodes = [f"n{number}" for number in range(400)]
    racks = {} if apart else {node: f"r{i // 16}" for i, node in enumerate(nodes)}
    return measure_reliability(dict.fromkeys(nodes, 0.0), outages, 0.0, DAYS, racks)


@pytest.mark.system
@pytest.mark.parametrize("apart", [False, True])
def test_intervals_hold_where_racks_fail_as_a_whole(*, apart: bool) -> None:
    """By their racks, and by how much weeks differ where racks are not known."""
    found = [simulate_racks(seed, apart=apart).failure_rate for seed in range(150)]
    held = sum(bool(each and each.low <= RACK_RATE <= each.high) for each in found)
    assert held >= 0.85 * len(found)


@pytest.mark.parametrize(("days", "weeks"), [(27, 0), (28, 4), (100, 14)])
def test_weeks_are_compared_once_there_are_four(days: int, weeks: int) -> None:
    assert measure_reliability({"n1": 0.0}, [], 0.0, days).weeks == weeks


def test_time_out_of_service_does_not_count_as_service() -> None:
    began, ended = 10, 40
    outages = [Outage("n1", began, ended), Outage("n2", began, math.inf)]
    found = measure_reliability({"n1": 0.0, "n2": 0.0}, outages, 0.0, 100)
    assert found.node_days == pytest.approx(70 + 10)


def test_a_node_counts_from_when_it_was_first_seen() -> None:
    found = measure_reliability({"old": 0.0, "new": 90}, [], 50, 100)
    assert found.node_days == pytest.approx(50 + 10)


def test_an_outage_from_before_counts_for_its_time_only() -> None:
    long = [Outage("n1", 0.0, 60)]
    found = measure_reliability({"n1": 0.0}, long, 50, 100)
    assert found.outages == 0
    assert found.node_days == pytest.approx(40)


def test_with_too_little_history_there_is_no_rate() -> None:
    few = [Outage("n1", 1, 2)] * 2
    found = measure_reliability({"n1": 0.0}, few, 0.0, 100)
    assert (found.failure_rate, found.share_out) == (None, None)
