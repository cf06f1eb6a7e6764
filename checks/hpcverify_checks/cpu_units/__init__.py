"""
Test what a core does beyond products: integers, divisions, functions, hashes, AES, locks.

Cores that err silently often do so in one unit, for some data, and err the same way each
time: a core of Meta's computed a wrong power, one of Google's undid its own wrong AES
(docs/explanation/sdc.md). So each core makes answers, from data that are new in each round, and
another core verifies them: it decompresses and decrypts, or computes them again, and
proves a sample with integers and decimals. The two change with each round. In pairs,
cores also change the words of the same cache lines, under locks and in turns.

Where an answer is refused, other cores are asked, and the finding names the core and the
unit (see `witnesses`). What cannot be attributed fails no core. Some of the data ship
with digests of the right answers, which tell even where all cores err alike.

What Python cannot reach is not tested: non-temporal stores, transactional memory, CRC32C
and other instructions that no library here uses.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from time import perf_counter
from typing import Annotated

from msgspec import Meta

import hpcverify.check as hv
from hpcverify.errors import write_install_command
from hpcverify.stats import compute_excluded_rate
from hpcverify.telemetry import cpu
from hpcverify_checks.cpu_units.rounds import BLIND_CODE, Examination, count_wrong
from hpcverify_checks.cpu_units.sharing import SHARED_UNITS, SharedUnit
from hpcverify_checks.cpu_units.trials import selftest
from hpcverify_checks.cpu_units.units import Unit, has_aes, list_units
from hpcverify_checks.cpu_units.vectors import list_vector_units
from hpcverify_checks.cpu_units.witnesses import (
    DEFECTIVE_CODE,
    INEXACT_CODE,
    UNATTRIBUTED_CODE,
    CoreRunner,
    CoreSet,
)
from hpcverify_checks.exact.vote import BLIND_PART_CODE, HOST
from hpcverify_checks.node.cores import MAX_CORES, format_ranges, pick_cores, run_on_each
from hpcverify_checks.node.device import find_torch_device, report_overrides
from hpcverify_checks.node.estimates import count_threads

WAVE_SECONDS = 4.0
"""The least for as many cores as work at a time; those that do not fit wait for the next run."""
ROUND_SECONDS = 5.0
"""The longest round, in which the time may end, of 64 cores that share Python's lock."""


class CpuUnitsParams(hv.Params, frozen=True):
    """How long the check takes, in seconds."""

    seconds: Annotated[float, Meta(gt=0)] = 30.0


def estimate(ctx: hv.Context, params: CpuUnitsParams) -> float:
    """Add a last round for each wave of cores."""
    waves = -(-(count_threads(ctx) or 1) // MAX_CORES)
    return params.seconds + waves * ROUND_SECONDS


def measure(
    ctx: hv.Context,
    params: CpuUnitsParams,
    units: Sequence[Unit] | None = None,
    shared_units: Sequence[SharedUnit] = SHARED_UNITS,
    run: CoreRunner = run_on_each,
) -> Iterator[hv.CheckItem]:
    """Examine the cores that this run has the time for, and say what was exercised."""
    find_torch_device(ctx)
    yield from report_overrides(ctx)
    allowed = cpu.read_cores().allowed
    waves = max(1, int(params.seconds / WAVE_SECONDS))
    chosen = pick_cores(allowed, MAX_CORES * waves, ctx.rotation)
    groups = [chosen[i : i + MAX_CORES] for i in range(0, len(chosen), MAX_CORES)]
    physical = cpu.map_cores()
    for group in groups:
        cores = CoreSet(group, {c: physical.get(c, ("", str(c))) for c in group}, run)
        every = (*list_units(), *list_vector_units()) if units is None else units
        exam = Examination(cores, every, shared_units, ctx.seed)
        with hv.operation(f"the units of cores {format_ranges(group)}", ctx.device):
            yield from examine(exam, params.seconds / len(groups))
    if units is None and not has_aes():
        fix = write_install_command("cryptography")
        yield hv.Coverage(
            HOST, f"AES was not exercised, since cryptography is not installed: {fix}"
        )
    if len(chosen) < len(allowed):
        left = format_ranges(sorted(set(allowed) - set(chosen)))
        yield hv.Coverage(HOST, f"no time for cores {left}, which have their turn in a later run")


def examine(exam: Examination, seconds: float) -> Iterator[hv.CheckItem]:
    """Run rounds for *seconds*, at least one, and report each core and unit."""
    end = perf_counter() + seconds
    findings: list[hv.Finding] = []
    number = 0
    while not number or perf_counter() < end:
        for finding in exam.run_round(number):
            findings.append(finding)
            yield finding
        number += 1
    for core in exam.cores.numbers:
        done = sum(tally.results for (_, c), tally in exam.tallies.items() if c == core)
        yield hv.Measurement("results", done, "", f"cpu{core}")
        yield hv.Measurement("wrong_units", count_wrong(findings, core), "", f"cpu{core}")
    names = [u.name for u in exam.units] + [u.name for u in exam.shared_units]
    for name in names:
        yield hv.Coverage(HOST, describe_unit(exam, name))


def describe_unit(exam: Examination, name: str) -> str:
    """Describe how much of a unit was exercised, and what error rate its success excludes."""
    tallies = [exam.tallies[name, core] for core in exam.cores.numbers]
    results, draws = sum(t.results for t in tallies), set[str]().union(*(t.draws for t in tallies))
    least = min(t.seconds for t in tallies)
    text = (
        f"{name} on cores {format_ranges(exam.cores.numbers)}: {results} answers to "
        f"{len(draws)} different data in {sum(t.seconds for t in tallies):.2f} core-seconds "
        f"of CPU time, at least {min(len(t.draws) for t in tallies)} data in {least:.2f} s on "
        "each core"
    )
    if len(exam.cores.numbers) == 1:
        text += "; verified on the same core: there is no other"
    if not least or any(unit == name for unit, _ in exam.closed):
        return text
    rate = compute_excluded_rate(least)
    return (
        f"{text}; on each more than {rate:,.0f} errors an hour are excluded at 95 %, if they "
        "come at random times"
    )


CHECK = hv.Check(
    summary="the host's cores beyond products: integers, division, functions, AES, locks",
    measure=measure,
    estimate=estimate,
    params=CpuUnitsParams,
    metrics={
        "results": hv.Metric("", "low", "answers that another core verified").error(
            low=1, source="without a verified result the cores are not tested"
        ),
        "wrong_units": hv.Metric("", "high", "units in which the core was found to err").fail(
            high=0,
            remedy=hv.Remedy.REPLACE,
            conclusive=True,
            source="a core gives the right answer",
        ),
    },
    finding_rules={
        **hv.fail_on(DEFECTIVE_CODE, remedy=hv.Remedy.REPLACE, conclusive=True),
        **hv.error_on(UNATTRIBUTED_CODE, cause=hv.Cause.NOISY),
        **hv.error_on(
            INEXACT_CODE, BLIND_CODE, remedy=hv.Remedy.FIX_CHECKER, cause=hv.Cause.CHECKER
        ),
        **hv.error_on(BLIND_PART_CODE, cause=hv.Cause.CHECKER),
    },
    placement=hv.Placement.NODE,
    timeout=300.0,
    selftest=selftest,
)
