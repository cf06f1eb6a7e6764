"""
Waiting until one check's load no longer disturbs the next.

A check that starts on hot, still busy devices measures its predecessor: DCGM's
bandwidth test is known to fail for no other reason (NVIDIA/DCGM issue 272).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from hpcverify.telemetry.sampler import Sampler

WARM_CELSIUS = 10.0
"""°C above the first reading of the run, below which a part counts as cooled down:
it will not be as cold again for minutes, and speed does not depend on the rest."""
IDLE_SHARE = 0.05
"""Share of the time that a device may be at work and still be called idle."""
PERIOD_SECONDS = 0.5


def settle(
    sampler: Sampler,
    timeout: float,
    clock: Callable[[], float] = time.monotonic,
    wait: Callable[[float], None] = time.sleep,
) -> tuple[float, list[str]]:
    """
    Wait until all parts are cool and idle, for *timeout* seconds at most.

    Returns how long that took, and the ids of the parts that are not there yet.
    """
    began = clock()
    while (late := list(list_unsettled(sampler))) and clock() - began < timeout:
        wait(PERIOD_SECONDS)
    return clock() - began, late


def list_unsettled(sampler: Sampler) -> Iterator[str]:
    """Name the parts that are still warm or at work."""
    warm = {
        p
        for p, (cold, now) in sampler.list_first_and_last("temperature")
        if now > cold + WARM_CELSIUS
    }
    busy = {p for p, (_, now) in sampler.list_first_and_last("utilization") if now > IDLE_SHARE}
    yield from sorted(warm | busy)
