"""
Waiting until one check no longer disturbs the next.

A check that starts on hot, still busy devices measures its predecessor: DCGM's
bandwidth test is known to fail for no other reason (NVIDIA/DCGM issue 272).

The driver takes a context apart after its process is gone, and a check that begins
before that finds too little memory. What counts is the memory that no process owns
which lives, beyond what there was of it when the run began: a driver may keep some for
itself, and processes of another container are not listed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping

from hpcverify.check import UNOWNED_CODE
from hpcverify.model import Coverage, Finding
from hpcverify.processes import process_exists
from hpcverify.telemetry.gpus import GpuAnswers, NotStartedError, Setup
from hpcverify.telemetry.sampler import Sampler
from hpcverify.units import GIB

WARM_CELSIUS = 10.0
"""°C above the first reading of the run, below which a part counts as cooled down:
it will not be as cold again for minutes, and speed does not depend on the rest."""
IDLE_SHARE = 0.05
"""Share of the time that a device may be at work and still be called idle."""
MAX_UNOWNED_BYTES = GIB
"""More than when the run began, as in `gpu_setup`: a context takes half of it."""
PERIOD_SECONDS = 0.5

Ask = Callable[[], GpuAnswers[Setup]]


def settle(
    sampler: Sampler,
    timeout: float,
    clock: Callable[[], float] = time.monotonic,
    wait: Callable[[float], None] = time.sleep,
) -> tuple[float, list[str]]:
    """Wait until all parts are cool and idle; return the seconds, and the parts that are not."""
    began = clock()
    while True:
        heat = sampler.list_first_and_last("temperature")
        load = sampler.list_first_and_last("utilization")
        late = {part for part, (cold, now) in heat if now > cold + WARM_CELSIUS}
        late |= {part for part, (_, now) in load if now > IDLE_SHARE}
        if not late or clock() - began >= timeout:
            return clock() - began, sorted(late)
        wait(PERIOD_SECONDS)


def measure_unowned(ask: Ask, exists: Callable[[int], bool] = process_exists) -> dict[str, int]:
    """Measure by GPU how many bytes no process owns; GPUs that do not tell are left out."""
    try:
        answers = ask().answers
    except NotStartedError:
        return {}
    return {
        part: setup.memory_used - sum(p.memory or 0 for p in setup.processes or () if exists(p.pid))
        for part, setup in answers.items()
        if setup.memory_used is not None and setup.processes is not None
    }


def await_release(
    parts: Collection[str],
    before: Mapping[str, int],
    measure: Callable[[], Mapping[str, int]],
    timeout: float,
    *,
    clock: Callable[[], float] = time.monotonic,
    wait: Callable[[float], None] = time.sleep,
) -> Iterator[Coverage | Finding]:
    """Wait until the memory of the GPUs *parts* is free, as *before* the run; report the rest."""
    began = clock()
    now = measure()
    while (held := _list_held(parts, before, now)) and clock() - began < timeout:
        wait(PERIOD_SECONDS)
        now = measure()
    seconds = clock() - began
    for part in parts:
        if part in held:
            text = (
                f"{held[part] / GIB:.1f} GiB of its memory are still in use, but not owned by a "
                f"process, {seconds:.0f} s after its worker ended. Fix: nvidia-smi -r, or reboot "
                "the node"
            )
            yield Finding(UNOWNED_CODE, part, text)
        elif part in before and part in now:
            text = f"its memory was free again {seconds:.0f} s after its worker ended"
            yield Coverage(part, text)
        else:
            text = "unknown whether its memory was free again after its worker ended"
            yield Coverage(part, text)


def _list_held(
    parts: Collection[str], before: Mapping[str, int], now: Mapping[str, int]
) -> dict[str, int]:
    grown = {part: now[part] - before[part] for part in parts if part in now and part in before}
    return {part: size for part, size in grown.items() if size > MAX_UNOWNED_BYTES}
