"""Writes the tables of docs/internals/sdc-trials.md: ``python -m tests.checks.sdc.page``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from hpcverify.check import Trial
from hpcverify.testing import make_context
from hpcverify_checks.exact.families import CPU_FAMILIES, FAMILIES, Family
from hpcverify_checks.sdc.trials import BIT_SWEEPS, run_trials

PAGE = Path(__file__).parents[3] / "docs/internals/sdc-trials.md"
BEGIN, END = ("<!-- written by make sdc-table: -->\n", "<!-- end of what is written -->\n")
EVERY: Mapping[str, Family] = {**FAMILIES, "bf16 on a CPU": CPU_FAMILIES["bf16"]}
"""All types of operands. A CPU multiplies all of them, though not all as a GPU does."""


@cache
def tried(name: str) -> tuple[Trial, ...]:
    """Try every fault with the type *name*, on the CPU, once for all who ask."""
    with TemporaryDirectory() as folder:
        ctx = make_context(Path(folder))
        return tuple(run_trials(ctx, EVERY[name], torch.device("cpu")))


def by_fault(name: str) -> dict[str, Trial]:
    """Give what was tried with the type *name*, by the fault alone."""
    return {trial.fault.partition(": ")[2]: trial for trial in tried(name)}


def tables() -> str:
    """Write the two tables."""
    return "\n".join([*_bits(), "", *_others(), ""])


def _bits() -> Iterator[str]:
    heads = ("operands", "output", *(sweep.fault for sweep in BIT_SWEEPS))
    yield from _head(heads)
    for name, family in EVERY.items():
        found = by_fault(name)
        cells = [found[sweep.fault].detail for sweep in BIT_SWEEPS]
        yield _row([name, family.output, *cells])


def _others() -> Iterator[str]:
    every = {name: by_fault(name) for name in EVERY}
    swept = {sweep.fault for sweep in BIT_SWEEPS}
    rows = dict.fromkeys(f for found in every.values() for f in found if f not in swept)
    yield from _head(("fault", *every))
    for fault in rows:
        cells = [_outcome(found.get(fault)) for found in every.values()]
        yield _row([fault, *cells])


def _outcome(trial: Trial | None) -> str:
    return "n/a" if trial is None else trial.outcome


def _head(cells: Sequence[str]) -> Iterator[str]:
    yield _row(cells)
    yield "|" + "---|" * len(cells)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def page() -> str:
    """Write the page: its prose as it is, with the tables put in."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    return f"{before}{BEGIN}\n{tables()}\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(page())
