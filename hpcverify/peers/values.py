"""What is compared: the runs of each part in one metric, and what they come to."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from itertools import pairwise

from msgspec import Struct

from hpcverify.stats import MAD_SCALE, MEDIAN_ERROR, find_mad, median

NODE_PART = "node"
"""The part of what was measured on a node as a whole."""
MIN_RUNS = 3
"""Fewer runs of a part have no spread."""
MIN_COMMON_SHARE = 0.05
"""A value that this share of the parts has shows in which steps it was recorded: of 20, one."""
EVEN_STEPS, EVEN_COUNTS = 0.01, 4
"""Steps to either side are equal, and so are the counts of those who are there, within a factor."""
PLACES = ("room", "row", "cabinet", "rack", "switch")
"""Groups that say where a node is, the coarsest first; the others say what a part is or runs."""
SENSORS = {"clock": "MHz", "temperature": "°C", "power": "W"}
"""What was read during a run and may explain it, each with its unit."""


class MetricName(Struct, frozen=True, order=True):
    """What was measured; values are compared within one of these only."""

    metric: str
    check: str = ""
    mode: str = ""
    """What else must be equal: the suite, the model of the part."""
    unit: str = ""

    def __str__(self) -> str:
        """Name it as in a table."""
        name = f"{self.check} {self.metric}" if self.check else self.metric
        return f"{name} ({self.mode})" if self.mode else name


class PartRuns(Struct):
    """The runs of one part in one metric; it grows while a table is read."""

    node: str
    part: str
    groups: dict[str, str]
    """Where the part is and what runs on it, as of its last run: cabinet, rack, driver."""
    values: list[float] = []
    times: list[float] = []
    sensors: dict[str, list[float]] = {}
    marks: dict[str, list[str]] = {}
    """What ran on the part in each run, by the column: its driver, its firmware."""
    limit: float | None = None
    """The limit of the part's own specification, if one stands for the metric."""


class PartValue(Struct, frozen=True):
    """What the runs of a part come to: medians."""

    node: str
    part: str
    value: float
    runs: int
    spread: float | None
    """Between its own runs; None if they are too few to have one."""
    groups: Mapping[str, str]
    sensors: Mapping[str, float]
    limit: float | None = None
    times: tuple[float, ...] = ()
    """When its first and its last run began (s since 1970), where that is known."""

    @property
    def name(self) -> str:
        """Name the part within the fleet."""
        if self.part == NODE_PART or not self.node or self.part.startswith(self.node):
            return self.part if self.part != NODE_PART else self.node
        return f"{self.node} {self.part}"


def reduce_runs(runs: PartRuns) -> PartValue | None:
    """Reduce the finite values of *runs* to medians; None if there is none."""
    values = [value for value in runs.values if math.isfinite(value)]
    if not values:
        return None
    centre = median(values)
    spread = MAD_SCALE * find_mad(values, centre) if len(values) >= MIN_RUNS else None
    times = list(filter(math.isfinite, runs.times))
    readings = {name: list(filter(math.isfinite, read)) for name, read in runs.sensors.items()}
    return PartValue(
        node=runs.node,
        part=runs.part,
        value=centre,
        runs=len(values),
        spread=spread,
        groups=runs.groups,
        sensors={name: median(read) for name, read in readings.items() if read},
        limit=runs.limit,
        times=(min(times), max(times)) if times else (),
    )


def find_errors(parts: Sequence[PartValue], centre: float) -> list[float]:
    """Return the relative error of each part's value beyond the typical error."""
    spreads = [part.spread for part in parts if part.spread is not None]
    if not spreads:
        return [0.0] * len(parts)
    own = median(spreads) / abs(centre)
    errors = [MEDIAN_ERROR * own / math.sqrt(part.runs) for part in parts]
    typical = median(errors)
    return [math.sqrt(max(0.0, error**2 - typical**2)) for error in errors]


def find_resolution(values: Iterable[float]) -> float:
    """
    Return the step in which *values* were recorded: the least difference between common ones.

    What few parts have may be the values of bad ones, or anything that one of them claims. It shows
    the step only if about as many are a step better as a step worse. Else the last decimal place
    does, up to 1.
    """
    counts = Counter(values)
    least = max(2, MIN_COMMON_SHARE * counts.total())
    common = sorted(value for value, count in counts.items() if count >= least)
    if len(counts) > 2 <= len(common):  # noqa: PLR2004 - they may be a healthy one and a bad one
        return min(high - low for low, high in pairwise(common))
    if len(common) == 1 and (step := _find_even_step(counts, common[0])):
        return step
    last = (Decimal(repr(value)).normalize().as_tuple().exponent for value in counts)
    return 10.0 ** min([0, *(place for place in last if isinstance(place, int))])


def _find_even_step(counts: Mapping[float, int], usual: float) -> float:
    """Return the step from the *usual* value to the next on either side; 0 if they differ."""
    below = max((value for value in counts if value < usual), default=usual)
    above = min((value for value in counts if value > usual), default=usual)
    few, many = sorted((counts[below], counts[above]))
    is_even = math.isclose(usual - below, above - usual, rel_tol=EVEN_STEPS)
    return above - usual if is_even and few > 1 and many <= EVEN_COUNTS * few else 0.0
