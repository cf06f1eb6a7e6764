"""
Where a product is wrong: which elements, and by how much.

Hardware faults rarely flip just one bit: in a production GPU most corrupted outputs differ
in several, at addresses that recur with the period of a warp or a fragment (Anatomy of
silent data corruption in GPUs, arXiv 2605.04213). The pattern shows which unit wrote it;
the greatest common divisor of the errors shows by which operand they were multiplied (as
FLARE does, arXiv 2605.08594).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hpcverify.units import format_count
from hpcverify_checks.exact.bits import view_integers
from hpcverify_checks.exact.products import fold_integers
from hpcverify_checks.node.cores import format_ranges

if TYPE_CHECKING:
    from torch import Tensor

PERIODS = (2, 4, 8, 16, 32, 64, 128, 256, 512)
EVIDENCE_BITS = 10
"""Chance makes such a pattern once in a thousand times."""
MAX_SAMPLE_ELEMENTS = 2**20
INTEGER_LIMIT = 2**62
"""Below this the difference of two integers fits into 64 bits."""


def describe_errors(found: Tensor, expected: Tensor) -> str:
    """Describe where *found* differs from *expected*: matrices on the host that do differ."""
    wrong = view_integers(found).ne(view_integers(expected))
    rows, columns = (wrong.any(dim=side).nonzero().flatten().tolist() for side in (1, 0))
    parts = (
        format_count(int(wrong.sum()), "element"),
        describe_span("row", rows),
        describe_span("column", columns),
        describe_values(found[wrong][:MAX_SAMPLE_ELEMENTS], expected[wrong][:MAX_SAMPLE_ELEMENTS]),
    )
    return ", ".join(filter(None, parts))


def describe_span(name: str, places: Sequence[int]) -> str:
    """Describe where ascending *places* lie: ``rows 3 to 195 (3 of every 64)``."""
    if places[0] == places[-1]:
        return f"{name} {places[0]}"
    span = f"{name}s {places[0]} to {places[-1]}"
    period = max(PERIODS, key=lambda p: _score_period(places, p))
    if _score_period(places, period) < EVIDENCE_BITS:
        return span
    return f"{span} ({format_ranges([*{place % period for place in places}])} of every {period})"


def _score_period(places: Sequence[int], period: int) -> float:
    """Compute how unlikely, in bits, so few residues are by chance."""
    residues = len({place % period for place in places})
    bits_per_place = math.log2(period / residues)
    return len(places) * bits_per_place - math.log2(math.comb(period, residues))


def describe_values(found: Tensor, expected: Tensor) -> str:
    """Describe by how much integers differ; empty if there are none, or only signs differ."""
    import torch

    whole = torch.stack([x.double() for x in (found, expected)])
    integers = ((whole == whole.round()) & (whole.abs() < INTEGER_LIMIT)).all(dim=0)
    errors = torch.unique(found[integers].long() - expected[integers].long())
    errors = errors[errors != 0]  # as where only the sign of a zero differs
    if not len(errors):
        return ""
    subject = "" if bool(integers.all()) else "those that are integers "
    if len(errors) == 1:
        return f"{subject}off by {int(errors[0])}"
    text = f"{subject}off by {len(errors)} values from {int(errors[0])} to {int(errors[-1])}"
    divisor = fold_integers(errors.abs(), torch.gcd)
    return text if divisor == 1 else f"{text}, multiples of {divisor}"
