"""
Cores whose first random products differ: which of them made what no order of a sum gives?

Libraries for CPUs may choose another order on another core, so cores that differ only warn.
Integers decide more: they enclose the sum, whatever its order, and a core outside is wrong.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

import hpcverify.check as hv
from hpcverify_checks.exact.investigation import find_changes
from hpcverify_checks.exact.product_loop import ProductTask, poison
from hpcverify_checks.exact.products import HOST_DEVICE, view_shifted
from hpcverify_checks.exact.reruns import rerun
from hpcverify_checks.exact.rounding import Bounds, enclose_sum, find_share, list_apart
from hpcverify_checks.exact.soak import MISMATCH_METRIC, NORMAL_NUMBERS, OPERAND_PAIRS, PartSoak
from hpcverify_checks.exact.vote import CORRUPTION_CODE, ProductFault
from hpcverify_checks.node.cores import list_other_cores, run_on_each

if TYPE_CHECKING:
    from torch import Tensor

Place = tuple[int, int]
"""The row and the column of an element."""
PLACES = 8
"""Elements of a product, those in which cores differ most, that are computed with integers."""
WITNESS_CORES = 2


def disprove_cores(task: ProductTask, soaks: Sequence[PartSoak]) -> Iterator[hv.Finding]:
    """Report the cores whose first products no order of their sums explains."""
    left = {soak.bench.part_id: soak for soak in soaks if soak.corruption is None}
    for pair in range(OPERAND_PAIRS):
        products = [soak.bench.jobs[pair].reference for soak in left.values()]
        for place in list_apart(products, PLACES):
            bounds = ask_witnesses(task, pair, place)
            for part_id, soak in list(left.items()):
                if bounds and is_outside(soak.bench.jobs[pair].reference, place, bounds):
                    yield report_disproved(left.pop(part_id), pair, place, bounds)


def ask_witnesses(task: ProductTask, pair: int, place: Place) -> Bounds | None:
    """Have several cores enclose the element; None if they do not agree."""
    cores = list_other_cores("")[-WITNESS_CORES:]
    enclosed = {*run_on_each(cores, lambda _: enclose_element(task, pair, place))}
    return enclosed.pop() if len(enclosed) == 1 else None


def enclose_element(task: ProductTask, pair: int, place: Place) -> Bounds:
    """Enclose the element of the product of a *pair*, from operands that are made anew."""
    a, b = view_shifted(*NORMAL_NUMBERS.make(task, pair, HOST_DEVICE), 0)
    row, column = a[place[0]].double().tolist(), b[:, place[1]].double().tolist()
    return enclose_sum(row, column, find_share(a, task.make_output()))


def is_outside(product: Tensor, place: Place, bounds: Bounds) -> bool:
    """Whether the element of *product* is not within its *bounds*."""
    found = float(product[place])
    return not (math.isfinite(found) and bounds[0] <= found <= bounds[1])


def report_disproved(soak: PartSoak, pair: int, place: Place, bounds: Bounds) -> hv.Finding:
    """Report that the first product of a *pair* is outside its *bounds*."""
    bench, job = soak.bench, soak.bench.jobs[pair]

    def is_wrong_again() -> bool:
        output = bench.get_output(pair)
        poison(output)
        bench.seams.multiply(*view_shifted(job.a, job.b, 0), output)
        return is_outside(output, place, bounds)

    core = int(bench.part_id.removeprefix("cpu"))
    (reruns,) = run_on_each([core], lambda _: rerun(is_wrong_again))
    changed = find_changes(job, bench.part_id)
    low, high, found = (float(x) for x in (*bounds, job.reference[place]))
    evidence = {
        "row": str(place[0]),
        "column": str(place[1]),
        "found": f"{found:.9g}",
        "expected": f"{low:.9g} to {high:.9g}",
        "place": f"memory ({', '.join(changed)})" if changed else "compute",
        "reruns": reruns.describe(),
    }
    text = (
        f"{bench.dtype}: the first product of {soak.operands} ({job.name}) is {found:.9g} in row "
        f"{place[0]}, column {place[1]}, where any order of the sum gives {evidence['expected']}: "
        f"{evidence['place']}, {evidence['reruns']}"
    )
    fault = ProductFault(
        bench.dtype, job.name, job.draw, MISMATCH_METRIC, in_memory=bool(changed), reruns=reruns
    )
    soak.corruption = hv.Finding(
        CORRUPTION_CODE, bench.part_id, text, evidence, msgspec.to_builtins(fault)
    )
    return soak.corruption
