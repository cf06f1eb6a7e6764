"""
Lines for ``hpcverify/limits/gpu_reached.csv`` from what a node has just reached.

Only from GPUs at their default power limit, in a check that all of them passed: a line
becomes a limit for every GPU of that part. If the node failed any step, the line is no
more than a hint.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from msgspec.structs import replace

from hpcverify.check import matches
from hpcverify.limits.specs import MEASURED_UNITS, find_spec
from hpcverify.model import Run, Verdict
from hpcverify.qualification.figures import find_gpus
from hpcverify.records.qualification import MeasuredFigure, ReachedLine
from hpcverify.units import convert_unit, format_count

QUANTITIES = {
    "gemm": ("*.burst", "*.sustained"),
    "gpu_memory": ("memory.*",),
    "p2p": ("p2p.write", "p2p.read", "tray.write"),
    "allreduce": ("*.busbw",),
}
"""The measurements that the table has lines for, by check."""
TABLE_UNITS = {"GFLOP/s": "TFLOP/s", "GOP/s": "TOP/s"}
MEASURED_HERE, DISPUTED = "A", "C"
"""The confidence of what was measured on the part itself: on a good node, and on one that
failed. The latter fails no part."""
HELD_BACK_CODES = frozenset(
    {"power_capped", "power_limited", "power_held", "power_raised", "slowed_down"}
)
"""The codes of findings of `gpu_setup` on a GPU that does not run as it was built."""


def find_held_back(facts: Run) -> frozenset[str]:
    """Find the GPUs that do not run as they were built, by the run of the step `facts`."""
    return frozenset(
        finding.part_id
        for result in facts.results
        for finding in result.findings
        if finding.code in HELD_BACK_CODES
    )


def list_reached(
    run: Run, figures: Iterable[MeasuredFigure], held_back: frozenset[str], version: str
) -> Iterator[ReachedLine | str]:
    """Yield the lines from the *figures* of *run*, and in words why others are left out."""
    results = {result.check: result for result in run.results if result.check in QUANTITIES}
    sound = {check for check, r in results.items() if r.verdict in (Verdict.PASS, Verdict.WARN)}
    for check in results:
        if check not in sound:
            yield f"{check}: it did not pass, so its figures are not those of a good part"
    for figure in figures:
        named = QUANTITIES.get(figure.check, ())
        if figure.check in sound and any(matches(figure.quantity, p) for p in named):
            yield _build_line(figure, run, held_back, version)


def grade_reached(
    lines: Iterable[ReachedLine | str], failed: Sequence[str]
) -> list[ReachedLine | str]:
    """Grade the *lines* of a node that *failed* these steps; of a sound one they stay."""
    if not failed:
        return [*lines]
    graded = [
        replace(line, confidence=DISPUTED) if isinstance(line, ReachedLine) else line
        for line in lines
    ]
    text = f"confidence {DISPUTED}, since the node failed: {', '.join(failed)}"
    return [*graded, text] if any(isinstance(line, ReachedLine) for line in graded) else graded


def _build_line(
    figure: MeasuredFigure, run: Run, held_back: frozenset[str], version: str
) -> ReachedLine | str:
    gpus = find_gpus(run.inventory, figure.model)
    spec = find_spec(gpus[0]) if gpus else None
    quantity, _, mode = figure.quantity.partition(".")
    if spec is None or quantity not in MEASURED_UNITS:
        return f"{figure.quantity}: {figure.model or 'the node'} is not in the table of parts"
    if held := [gpu.label for gpu in gpus if gpu.id in held_back]:
        return (
            f"{figure.quantity}: {', '.join(held)} did not run at the default power limit: "
            f"nvidia-smi -pl {spec.tdp_w:g}, then qualify again"
        )
    unit = TABLE_UNITS.get(figure.unit, figure.unit)
    value = convert_unit(figure.median, figure.unit, unit)
    driver = gpus[0].facts.get("driver", "unknown")
    return ReachedLine(
        part=spec.key,
        quantity=quantity,
        mode=mode,
        reached=f"{value:.4g}",
        unit=unit,
        confidence=MEASURED_HERE,
        source=f"measured by hpcverify {version} on {run.started:%Y-%m-%d}, driver {driver}: "
        f"{'median of ' if figure.model else ''}{format_count(len(gpus), 'GPU')}",
    )
