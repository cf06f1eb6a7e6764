"""
Which weights of the traits count at a site: by published data, by its own past, or none.

The prior's count until there are enough outages; then those that were fitted to the site's
own. Both are held against outages of the site that the fit has not seen: what explains
these worse than chance is not used.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from msgspec import Struct

from hpcverify.selection.fit import Case, compute_gain, fit_weights
from hpcverify.selection.traits import PRIOR_WEIGHTS, Traits
from hpcverify.units import format_count

MIN_CASES_TO_DOUBT, MIN_CASES_TO_FIT = 10, 50
"""Outages from which on the prior can be found worthless, and the weights are fitted."""
PRIOR: Traits = tuple(PRIOR_WEIGHTS.values())
CHANCE: Traits = (0.0,) * len(PRIOR)


class WeightBasis(StrEnum):
    """Where the weights are from."""

    PRIOR = "prior"
    FITTED = "fitted"
    CHANCE = "chance"
    """Neither did better than chance: all nodes count the same."""


class Weighting(Struct, frozen=True, kw_only=True):
    """The weights of the traits, and why these."""

    basis: WeightBasis
    weights: Traits
    cases: int
    """Outages that they were held against, or fitted to."""
    gains: tuple[tuple[WeightBasis, float], ...] = ()
    """By how much each explained outages that it had not seen better than chance, in nats."""


def choose_weighting(cases: Sequence[Case]) -> Weighting:
    """
    Choose the weights that explain the later *cases* best, or chance.

    The fit that is held against the last third has seen only those before. The one that
    is used has seen all.
    """
    known = list(cases)
    if len(known) < MIN_CASES_TO_DOUBT:
        return Weighting(basis=WeightBasis.PRIOR, weights=PRIOR, cases=len(known))
    gains = {WeightBasis.PRIOR: compute_gain(known, PRIOR)}
    if len(known) >= MIN_CASES_TO_FIT:
        before, after = known[: 2 * len(known) // 3], known[2 * len(known) // 3 :]
        gains = {
            WeightBasis.PRIOR: compute_gain(after, PRIOR),
            WeightBasis.FITTED: compute_gain(after, fit_weights(before, PRIOR)),
        }
    best = max(gains, key=lambda basis: gains[basis])
    if gains[best] <= 0:
        best, weights = WeightBasis.CHANCE, CHANCE
    else:
        weights = fit_weights(known, PRIOR) if best is WeightBasis.FITTED else PRIOR
    return Weighting(basis=best, weights=weights, cases=len(known), gains=tuple(gains.items()))


def describe_gains(weighting: Weighting) -> str:
    """Say how what risks are judged by did on the site's own past; empty if that is unknown."""
    listed = ", ".join(f"{basis} {gain:+.2f}" for basis, gain in weighting.gains)
    return f" ({listed} nats an outage against chance)" if listed else ""


def describe_weighting(weighting: Weighting) -> str:
    """Say by what risks are judged."""
    count = f"{format_count(weighting.cases, 'outage')} of this site"
    if weighting.basis is WeightBasis.FITTED:
        return f"by weights fitted to the last {count}"
    if weighting.basis is WeightBasis.CHANCE:
        return f"no model: nothing explains the last {count} better than chance"
    if weighting.cases < MIN_CASES_TO_FIT:
        few = f"{count} are known, {MIN_CASES_TO_FIT} are needed to fit weights to"
        return f"by published data: {few}"
    return f"by published data, which explains the last {count} best"
