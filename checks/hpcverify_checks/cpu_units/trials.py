"""The selftest: one core errs in one unit, and that core and unit must be named."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count

import hpcverify.check as hv
from hpcverify.telemetry import cpu
from hpcverify_checks.cpu_units.rounds import Examination, flip_bit
from hpcverify_checks.cpu_units.sharing import SHARED_UNITS
from hpcverify_checks.cpu_units.units import Unit, list_units
from hpcverify_checks.cpu_units.vectors import list_vector_units
from hpcverify_checks.cpu_units.witnesses import MAX_WITNESSES, CoreSet
from hpcverify_checks.exact.vote import HOST, MIN_VOTES
from hpcverify_checks.node.cores import run_on_each
from hpcverify_checks.node.device import find_torch_device

NOT_ATTRIBUTED = "found: not attributed"
FAULT_INTERVAL = 11
"""One answer in this many is wrong: not twice while a witness is asked."""
HEALTHY_INTERVAL = 3
"""All data but one in this many go wrong."""
TRIAL_ROUNDS = 3
"""Some have data that ship, some data of their own."""

Damage = Callable[[bytes], bool]
"""Whether an answer is to be damaged, by its data."""


def selftest(ctx: hv.Context) -> Iterator[hv.Trial]:
    """Try each unit without a fault, with a rare one, and with one at certain data."""
    find_torch_device(ctx)
    numbers = cpu.read_cores().allowed[:MAX_WITNESSES]
    known = cpu.map_cores()
    physical = {core: known.get(core, ("", str(core))) for core in numbers}
    cores = CoreSet(numbers, physical, run_on_each)
    bad = numbers[-1]
    several = len(set(physical.values()))
    yield _try(cores, ctx.seed, (*list_units(), *list_vector_units()), "none", hv.FOUND_NOTHING)
    if several < MIN_VOTES:
        return
    for unit in (*list_units(), *list_vector_units()):
        calls = count(1)
        rare = damage_on(bad, unit, lambda _, calls=calls: next(calls) % FAULT_INTERVAL == 0)  # type: ignore[misc]
        named = f"found: cpu{bad}"
        yield _try(
            cores, ctx.seed, (rare,), f"{unit.name}: one of {FAULT_INTERVAL} answers wrong", named
        )
        partial = damage_on(bad, unit, lambda data: data[0] % HEALTHY_INTERVAL != 0)
        can_tell = several > MIN_VOTES or unit.universal or unit.undo is not None
        outcome = named if can_tell else NOT_ATTRIBUTED
        yield _try(cores, ctx.seed, (partial,), f"{unit.name}: wrong for some data", outcome)


def damage_on(core: int, unit: Unit, damage: Damage) -> Unit:
    """Make *unit* give answers with a flipped bit on *core*, where *damage* says so."""

    def make(data: bytes) -> bytes:
        made = unit.make(data)
        return flip_bit(made) if os.sched_getaffinity(0) == {core} and damage(data) else made

    return replace(unit, make=make)


def _try(cores: CoreSet, seed: int, units: tuple[Unit, ...], fault: str, expected: str) -> hv.Trial:
    shared = () if len(units) == 1 else SHARED_UNITS
    exam = Examination(cores, units, shared, seed)
    findings = [f for n in range(TRIAL_ROUNDS) for f in exam.run_round(n)]
    places = {NOT_ATTRIBUTED if f.part_id == HOST else f"found: {f.part_id}" for f in findings}
    outcome = " and ".join(sorted(places)) or hv.FOUND_NOTHING
    detail = "; ".join(f.text for f in findings)
    return hv.Trial(fault=fault, part_id=HOST, expected=expected, outcome=outcome, detail=detail)
