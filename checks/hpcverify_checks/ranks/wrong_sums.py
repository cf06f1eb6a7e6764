"""
The part that caused a wrong sum over several parts.

A share that changes in one part, or on its way to all, makes the sums of all parts wrong:
the healthy ones see the fault as well as the broken one, and are witnesses. So a part is
reported only for a sum that it alone got wrong, once all parts have answered: what a rank finds
by itself is a `WITNESS_CODE`, which fails nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

from msgspec.structs import replace

import hpcverify.check as hv

S = TypeVar("S", int, tuple[int, int])
"""What orders the sums of a check."""

WRONG_SUM_CODE, COMMON_CODE, WITNESS_CODE = "wrong_sum", "wrong_sums", "sum_of_wrong"
WRONG_SUM_RULES: Mapping[str, hv.FindingRule] = {
    **hv.fail_on(WRONG_SUM_CODE, COMMON_CODE, conclusive=True),
    **hv.listed(WITNESS_CODE),
}


def attribute_wrong_sums(
    sums: Sequence[hv.Finding], step_of: Callable[[hv.Finding], S], inventory: hv.Inventory
) -> Iterator[hv.Finding]:
    """
    Report one part for wrong *sums*, or the node if several got the first of them wrong.

    *step_of* gives what orders the sums: each is the first wrong one of its rank.
    """
    if len({finding.part_id for finding in sums}) <= 1:  # as the ranks of a CPU: one part
        yield from map(blame, sums)
        return
    earliest = min(map(step_of, sums))
    first = [finding for finding in sums if step_of(finding) == earliest]
    if len({finding.part_id for finding in first}) == 1:
        yield from map(blame, first)
    else:
        names = inventory.format_names([finding.part_id for finding in first])
        text = (
            f"{names} got a wrong sum in the same step ({first[0].text}): a share changed in a GPU "
            "or on the links between them, and the place is not known: see what nvlink, p2p, "
            "gpu_memory and xid found, and run the suite burnin"
        )
        yield hv.Finding(COMMON_CODE, "node", text, first[0].evidence)
        yield from map(explain, first)
    # What another part got wrong later may come from the one that was wrong first.
    yield from (explain(finding) for finding in sums if finding not in first)


def blame(wrong: hv.Finding) -> hv.Finding:
    """Report the part that got a *wrong* sum for it."""
    return replace(wrong, code=WRONG_SUM_CODE)


def explain(wrong: hv.Finding, why: str = "several got wrong sums") -> hv.Finding:
    """Say why a *wrong* sum does not fail the part that got it."""
    return replace(wrong, text=f"{wrong.text}: {why}")
