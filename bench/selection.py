"""
What the ranking of nodes is worth on the past of a fleet: ``selection.py [FAULTS.csv --nodes N]``.

Each week a share of the nodes in service is picked, and the share of the week's outages that
fell on them counts; see `tests.selection.backtest`. Weeks begin on each of the seven days,
and ours has another seed for each: what a Monday alone says differs by a tenth. Beside ours are
chance, round robin, the rate of each node over its life (Gamma-Poisson) and its outages of the
last thirty days; and ours with the places that a sweep keeps for who has waited longest.

Without a file: the trace of tests/data, and fleets that are made up by a known hazard, each
of which has another truth. The file has columns node, start_day, end_day; the nodes that it does
not name had no fault.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections.abc import Callable, Mapping, Sequence
from math import exp
from pathlib import Path
from random import Random

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
from hpcverify.fleet.schedule import PATIENT_PLACES  # noqa: E402 - below the path
from hpcverify.reliability.outages import Outage  # noqa: E402 - as this
from hpcverify.selection.outages import FleetHistory  # noqa: E402 - as this
from hpcverify.selection.ranking import RiskRanking  # noqa: E402 - as this
from tests.selection.backtest import (  # noqa: E402 - as this
    WEEK_DAYS,
    Policy,
    WeekOutcome,
    backtest,
    split_quarters,
    summarize,
)
from tests.selection.fleets import (  # noqa: E402 - as this
    HAZARDS,
    INFINITE_HBD,
    INFINITE_HBD_DAYS,
    INFINITE_HBD_NODES,
    read_fleet,
    simulate_fleet,
)

PolicyMaker = Callable[[int, float], Policy]
"""Takes a seed and the share that is picked."""
SHARES = (0.05, 0.1, 0.2)
TENTH = 0.1
DAYS = 600.0
SEEDS = 5


class Past:
    """The outages of each node that began before a day."""

    def __init__(self, history: FleetHistory) -> None:
        """Begin before the first."""
        self._rest = iter(history.outages)
        self._next: Outage | None = next(self._rest, None)
        self.own: dict[str, list[Outage]] = {}

    def advance(self, day: float) -> None:
        """Move on to *day*."""
        while self._next is not None and self._next.began < day:
            self.own.setdefault(self._next.node, []).append(self._next)
            self._next = next(self._rest, None)


def pick_by_chance(_day: float, _names: Sequence[str]) -> Mapping[str, float]:
    """Give all the same score."""
    return {}


def make_round_robin(history: FleetHistory, seed: int, share: float) -> Policy:
    """Pick those first that were picked longest ago; first in an order of chance."""
    names = list(history.nodes)  # their order may tell who fails first
    Random(seed).shuffle(names)
    first = {name: place for place, name in enumerate(names)}
    picked: dict[str, float] = {}

    def policy(day: float, names: Sequence[str]) -> Mapping[str, float]:
        order = sorted(names, key=lambda name: (picked.get(name, -1.0), first[name]))
        chosen = order[: round(share * len(names))]
        picked.update(dict.fromkeys(chosen, day))
        return dict.fromkeys(chosen, 1.0)

    return policy


def make_lifetime_rate(history: FleetHistory) -> Policy:
    """Score by the rate over the whole life, with the fleet's as a Gamma prior of shape 1."""
    past = Past(history)

    def policy(day: float, names: Sequence[str]) -> Mapping[str, float]:
        past.advance(day)
        total = sum(map(len, past.own.values()))
        exposure = sum(max(0.0, day - history.nodes[name].since) for name in names)
        rate = (total + 1) / (exposure + 1)
        return {
            name: (len(past.own.get(name, ())) + 1)
            / (max(0.0, day - history.nodes[name].since) * rate + 1)
            for name in names
        }

    return policy


def make_recency(history: FleetHistory) -> Policy:
    """Score by outages that fade within thirty days."""
    past = Past(history)

    def policy(day: float, names: Sequence[str]) -> Mapping[str, float]:
        past.advance(day)
        return {
            name: sum(exp((outage.ended - day) / 30) for outage in past.own[name])
            for name in names
            if name in past.own
        }

    return policy


def make_ranking(history: FleetHistory, seed: int) -> Policy:
    """Score as a sweep does."""
    ranking = RiskRanking(history, seed)

    def policy(day: float, _names: Sequence[str]) -> Mapping[str, float]:
        ranking.advance(day)
        return ranking.scores

    return policy


def make_sweep(history: FleetHistory, seed: int, share: float) -> Policy:
    """Pick as a sweep does: by risk, and one in ten by how long it has waited."""
    by_risk = make_ranking(history, seed)
    names = list(history.nodes)
    Random(seed).shuffle(names)
    first = {name: place for place, name in enumerate(names)}
    picked: dict[str, float] = {}

    def policy(day: float, names: Sequence[str]) -> Mapping[str, float]:
        scores = by_risk(day, names)
        count = round(share * len(names))
        patient = count // PATIENT_PLACES
        chosen = sorted(names, key=lambda n: (-scores.get(n, 0.0), first[n]))[: count - patient]
        others = sorted(set(names) - set(chosen), key=lambda n: (picked.get(n, -1.0), first[n]))
        chosen += others[:patient]
        picked.update(dict.fromkeys(chosen, day))
        return dict.fromkeys(chosen, 1.0)

    return policy


def main() -> None:
    """Try the fleets, and print a table for each."""
    parser = ArgumentParser()
    parser.add_argument("faults", type=Path, nargs="?")
    parser.add_argument("--nodes", type=int, default=INFINITE_HBD_NODES)
    given = parser.parse_args()
    if given.faults:
        history = read_fleet(given.faults, given.nodes)
        end = max(outage.began for outage in history.outages)
        report_fleet(str(given.faults), history, end)
        return
    report_fleet(INFINITE_HBD.name, read_fleet(INFINITE_HBD, INFINITE_HBD_NODES), INFINITE_HBD_DAYS)
    for name, hazard in HAZARDS.items():
        report_simulated(name, [simulate_fleet(hazard, seed) for seed in range(SEEDS)])


def report_fleet(title: str, history: FleetHistory, end: float) -> None:
    """Print what each policy hits of the outages of *history*."""
    print(f"{title}: {len(history.nodes)} nodes, {len(history.outages)} outages, {end:.0f} days")
    heads = "".join(f"{share:>8.0%}" for share in SHARES)
    print(f"{'share of outages hit by':<40}{heads}    at {TENTH:.0%}: times chance, by quarter")
    for name, policy in list_policies(history):
        by_share = {share: try_policy(history, policy, end, share) for share in SHARES}
        shares = "".join(f"{summarize(weeks).share:>8.1%}" for weeks in by_share.values())
        print(f"{name:<40}{shares}    {format_lift(by_share[TENTH], end)}", flush=True)


def format_lift(weeks: Sequence[WeekOutcome], end: float) -> str:
    """Print how much better than chance *weeks* are, whole and by quarter."""
    quarters = " ".join(f"{quarter.lift:.2f}" for quarter in split_quarters(weeks, end))
    return f"{summarize(weeks).lift:.2f}: {quarters}"


def list_policies(history: FleetHistory) -> list[tuple[str, PolicyMaker]]:
    """Name the policies, each with what makes it for a seed and a share."""
    return [
        ("chance", lambda _seed, _share: pick_by_chance),
        ("round robin", lambda seed, share: make_round_robin(history, seed, share)),
        ("rate over the life (Gamma-Poisson)", lambda _s, _share: make_lifetime_rate(history)),
        ("outages of the last 30 days", lambda _seed, _share: make_recency(history)),
        ("ours, by risk alone", lambda seed, _share: make_ranking(history, seed)),
        ("ours, as a sweep picks", lambda seed, share: make_sweep(history, seed, share)),
    ]


def try_policy(
    history: FleetHistory, make: PolicyMaker, end: float, share: float
) -> list[WeekOutcome]:
    """Try a policy with weeks that begin on each of the seven days."""
    return [
        week
        for day in range(int(WEEK_DAYS))
        for week in backtest(history, make(day, share), end, share=share, first_day=float(day))
    ]


def report_simulated(title: str, fleets: Sequence[FleetHistory]) -> None:
    """Print what each policy hits of the outages of *fleets* that differ by their seed only."""
    counts = sum(len(history.outages) for history in fleets)
    print(f"\nmade up, {title}: {len(fleets)} fleets of 400 nodes, {counts} outages in all")
    for place, (name, _) in enumerate(list_policies(fleets[0])):
        weeks = [
            week
            for seed, history in enumerate(fleets)
            for week in backtest(
                history, list_policies(history)[place][1](seed, TENTH), DAYS, share=TENTH
            )
        ]
        print(f"{name:<40}{summarize(weeks).share:>8.1%}    {format_lift(weeks, DAYS)}", flush=True)


if __name__ == "__main__":
    main()
