"""Which weights count: those of the prior, those that are fitted, or none."""

from __future__ import annotations

from random import Random

import pytest

from hpcverify.selection.ranking import RiskRanking
from hpcverify.selection.traits import PRIOR_WEIGHTS, Traits
from hpcverify.selection.weighting import (
    CONTROLS,
    MAX_CASES,
    MIN_CASES_TO_DOUBT,
    MIN_CASES_TO_FIT,
    PRIOR,
    Case,
    CaseSampler,
    WeightBasis,
    choose_weighting,
    describe_gains,
    describe_weighting,
    fit_weights,
)
from tests.selection.fleets import HAZARDS, simulate_fleet

AGE = list(PRIOR_WEIGHTS).index("age")


def traits(place: int, value: float) -> Traits:
    """Make traits of which one is not 0."""
    return tuple(value if i == place else 0.0 for i in range(len(PRIOR)))


def make_cases(place: int, count: int, failed: float) -> list[Case]:
    """Make cases in which who failed has *failed* more of a trait than the others."""
    chance = Random(1)
    return [
        Case(
            traits(place, failed + chance.gauss(0, 1)),
            tuple(traits(place, chance.gauss(0, 1)) for _ in range(CONTROLS)),
        )
        for _ in range(count)
    ]


def test_without_outages_the_prior_counts() -> None:
    assert choose_weighting(()).weights == PRIOR
    assert choose_weighting(make_cases(0, MIN_CASES_TO_DOUBT - 1, -3)).basis is WeightBasis.PRIOR


def test_a_prior_that_the_sites_own_past_contradicts_does_not_count() -> None:
    found = choose_weighting(make_cases(0, MIN_CASES_TO_FIT - 1, -1))
    assert found.basis is WeightBasis.CHANCE
    assert set(found.weights) == {0.0}


def test_a_fit_finds_what_goes_with_outages_whichever_way() -> None:
    for failed in (1.0, -1.0):
        found = choose_weighting(make_cases(AGE, 200, failed))

        assert found.basis is WeightBasis.FITTED
        # Of two normal distributions of width 1, the log ratio of densities has this slope;
        # the prior, which says 0, holds the fit back.
        assert 0.5 < found.weights[AGE] / failed < 1.1


def test_a_fit_keeps_to_the_prior_where_the_cases_say_nothing() -> None:
    fitted = fit_weights(make_cases(AGE, 200, 1.0), PRIOR)
    kept = [weight for place, weight in enumerate(fitted) if place != AGE]
    assert kept == pytest.approx([w for place, w in enumerate(PRIOR) if place != AGE])


def test_of_a_fleet_without_a_signal_all_nodes_count_the_same_or_nearly() -> None:
    ranking = RiskRanking(simulate_fleet(HAZARDS["no signal"], 3, count=300, days=400))
    ranking.advance(400)
    assert ranking.weighting.basis is WeightBasis.CHANCE
    assert list(ranking.scores.values()) == pytest.approx([1.0] * len(ranking.scores))


def test_only_the_last_outages_are_cases() -> None:
    history = simulate_fleet(HAZARDS["no signal"], 1, count=300, days=400)
    sampler = CaseSampler(history)
    sampler.advance(200)
    early = list(sampler.cases)
    sampler.advance(400)

    assert len(history.outages) > MAX_CASES == len(sampler.cases)
    assert early[0] not in list(sampler.cases)


def test_it_is_said_where_the_weights_are_from() -> None:
    said = [
        describe_weighting(weighting := choose_weighting(cases)) + describe_gains(weighting)
        for cases in ((), make_cases(0, 20, 1), make_cases(0, 20, -1), make_cases(AGE, 200, 1))
    ]

    assert said[0].startswith("by published data: 0 outages of this site are known, 50")
    assert said[1].startswith("by published data: 20 outages")
    assert said[2].startswith("no model explains the last 20 outages")
    assert said[3].startswith("by weights fitted to the last 200 outages of this site (prior ")
