"""
Say of a training job whether one of its ranks slows it, from how each spends its steps.

In synchronous training all steps take all ranks as long. Who is slow does not wait: it has
more work of its own, computation or the wait for its input, and less communication, since
the others wait for it there. Ranks are compared with those of the same role: a stage of a
pipeline that has more layers is a matter of how the job was cut, and not of its nodes.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from statistics import median

from msgspec import Struct

from hpcverify.errors import ConfigError
from hpcverify.isolation.outliers import MIN_EXCESS_SHARE, MIN_STEPS, MIN_UNITS, find_outliers
from hpcverify.isolation.stragglers import MIN_GAIN
from hpcverify.records.collectives import Straggler
from hpcverify.units import parse_decimal

COMPUTING, COMMUNICATING, WAITING = "computing", "communicating", "waiting_for_input"
TIMES = (COMPUTING, COMMUNICATING, WAITING)
COLUMNS = ("rank", COMPUTING, COMMUNICATING)
"""That a step log must have; `WAITING` and ``role`` are optional."""


class RankShares(Struct, frozen=True):
    """How one rank spent its steps: seconds, a value for each step."""

    rank: int
    computing: tuple[float, ...]
    communicating: tuple[float, ...]
    """With the wait for others."""
    waiting_for_input: tuple[float, ...] = ()
    role: str = ""
    """Ranks of the same role have the same work, as those of a stage of a pipeline."""

    @property
    def own_work(self) -> list[float]:
        """What it does without the others, in each step."""
        inputs = self.waiting_for_input or (0.0,) * len(self.computing)
        return [a + b for a, b in zip(self.computing, inputs, strict=True)]


def read_step_log(lines: Iterable[str], subject: str) -> list[RankShares]:
    """Read the step log of a job: CSV with a row for each step of each rank, in seconds."""
    rows = csv.DictReader(lines)
    if without := [name for name in COLUMNS if name not in (rows.fieldnames or ())]:
        names = ",".join(COLUMNS)
        raise ConfigError(
            f"{subject} has no column {without[0]!r}: its first line must list {names}"
        )
    logged: dict[int, list[list[float]]] = {}
    """By rank, the times of computing, communicating and waiting for input of each step."""
    roles: dict[int, str] = {}
    try:
        for row in rows:
            times = [_read_seconds(row.get(name, "0")) for name in TIMES]
            rank = int(row["rank"] or "")
            roles.setdefault(rank, row.get("role") or "")
            logged.setdefault(rank, []).append(times)
    except (ValueError, TypeError, csv.Error) as exc:
        raise ConfigError(f"{subject}, line {rows.line_num}: {exc}") from exc
    counts = {len(steps) for steps in logged.values()}
    if len(logged) < MIN_UNITS or min(counts) < MIN_STEPS:
        raise ConfigError(f"{subject} needs at least {MIN_UNITS} ranks with {MIN_STEPS} steps each")
    if len(counts) > 1:
        raise ConfigError(f"{subject} does not have the same number of steps for each rank")
    shares = []
    for rank, steps in sorted(logged.items()):
        computing, communicating, waiting = zip(*steps, strict=True)
        shares.append(RankShares(rank, computing, communicating, waiting, roles[rank]))
    return shares


def _read_seconds(text: str | None) -> float:
    seconds = parse_decimal(text or "nan")
    if not (isfinite(seconds) and seconds >= 0):
        raise ValueError("a time is not a number of seconds, 0 or more")
    return seconds


def find_slow_ranks_of_training(shares: Sequence[RankShares]) -> tuple[Straggler, ...]:
    """Find ranks that slow a job, the worst first, by their own work in each step."""
    if not shares:
        return ()
    work = {share.rank: share.own_work for share in shares}
    excess: dict[int, list[float]] = {}
    for role in {share.role for share in shares}:
        like = [share.rank for share in shares if share.role == role]
        typical = [median(step) for step in zip(*(work[rank] for rank in like), strict=True)]
        for rank in like:
            excess[rank] = [v - middle for v, middle in zip(work[rank], typical, strict=True)]
    slow = find_outliers(excess)
    healed = {rank: [v - slow.get(rank, 0.0) for v in values] for rank, values in work.items()}
    # What a step takes besides the own work of the rank that has most.
    steps = (zip(share.own_work, share.communicating, strict=True) for share in shares)
    rest = median(own + with_others for step in steps for own, with_others in step)
    rest -= _time_longest(work)
    stragglers = []
    for rank, more in slow.items():
        with_it = _time_longest(healed | {rank: work[rank]})
        gain = (with_it - _time_longest(healed)) / (with_it + rest)
        if gain >= MIN_GAIN:
            (own,) = (share for share in shares if share.rank == rank)
            peers = [share for share in shares if share.role == own.role]
            computes = median(own.computing) - median(median(peer.computing) for peer in peers)
            works = median(own.own_work) - median(median(peer.own_work) for peer in peers)
            is_waiting = computes < MIN_EXCESS_SHARE * works
            how = "waits_for_input" if is_waiting else "computes_slowly"
            stragglers.append(Straggler(rank, how, more, gain))
    return tuple(sorted(stragglers, key=lambda share: -share.gain))


def _time_longest(work: Mapping[int, Sequence[float]]) -> float:
    """Time the median step, which takes as long as the rank with the most work."""
    longest: list[float] = [max(step) for step in zip(*work.values(), strict=True)]
    return median(longest)
