"""
Waiting until one check's load no longer disturbs the next.

A check that starts on hot, still busy devices measures its predecessor: DCGM's
bandwidth test is known to fail for no other reason (NVIDIA/DCGM issue 272).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from hpcverify.telemetry.sampler import Sampler

WARM = 10.0
"""°C above the first reading of the run, below which a part counts as cooled down:
it will not be as cold again for minutes, and speed does not depend on the rest."""
IDLE = 0.05
"""Share of the time that a device may be at work and still be called idle."""
PERIOD = 0.5


def settle(
    sampler: Sampler,
    patience: float,
    clock: Callable[[], float] = time.monotonic,
    wait: Callable[[float], None] = time.sleep,
) -> tuple[float, list[str]]:
    """
    Wait until all parts are cool and idle, or for *patience* seconds.

    Returns how long that took, and the ids of the parts that are not there yet.
    """
    began = clock()
    while (late := list(unsettled(sampler))) and clock() - began < patience:
        wait(PERIOD)
    return clock() - began, late


def unsettled(sampler: Sampler) -> Iterator[str]:
    """Name the parts that are still warm or at work."""
    warm = {p for p, (cold, now) in sampler.ends("temperature") if now > cold + WARM}
    busy = {p for p, (_, now) in sampler.ends("utilization") if now > IDLE}
    yield from sorted(warm | busy)
