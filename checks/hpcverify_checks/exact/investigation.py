"""The investigation of a wrong product: where, which bits, memory or arithmetic."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

import hpcverify.check as hv
from hpcverify.units import format_count
from hpcverify_checks.exact.bits import compute_digest, format_word, view_words
from hpcverify_checks.exact.locate import describe_errors
from hpcverify_checks.exact.mismatch import find_mismatch
from hpcverify_checks.exact.product_loop import ProductBench, ProductJob, WrongProduct, poison
from hpcverify_checks.exact.products import view_shifted
from hpcverify_checks.exact.reruns import rerun
from hpcverify_checks.exact.rounding import is_of_order
from hpcverify_checks.exact.vote import CORRUPTION_CODE, ProductFault, is_of_host
from hpcverify_checks.node.cores import list_other_cores, run_on_each

if TYPE_CHECKING:
    from torch import Tensor

WITNESSES = 2
"""Cores that look at the host's memory when another one may be at fault."""

Known = tuple[dict[str, str], dict[str, Any]]
"""Evidence for people, and fields of an `ProductFault`."""


def investigate_corruption(bench: ProductBench, wrong: WrongProduct) -> hv.Finding:
    """
    Find out what a vendor asks about a *wrong* product, and put it in words.

    The host does the work, outside the part that computed the product. A faulty part may
    refuse the next step too: what was known by then is kept.
    """
    job, shift = bench.get_job(wrong.number)
    data: dict[str, Any] = {"dtype": bench.dtype, "plan": job.name, "draw": job.draw}
    evidence = {name: str(value) for name, value in data.items()} | {
        "shift": str(shift),
        "product": str(wrong.number),
        "wrong_words": str(wrong.words),
    }
    try:
        for shown, known in _look_closer(bench, wrong):
            evidence |= shown
            data |= known
    except Exception as exc:  # noqa: BLE001 - whatever it is, it must not hide the fault
        evidence["incomplete"] = f"then {type(exc).__name__}: {exc}"
    shown_in_text = ("extent", "place", "reruns", "incomplete")
    details = ", ".join(evidence[name] for name in shown_in_text if name in evidence)
    text = (
        f"{bench.dtype} product {wrong.number} ({job.name}) has "
        f"{format_count(wrong.words, 'wrong word')}: {details}"
    )
    data = msgspec.to_builtins(ProductFault(**data))
    return hv.Finding(CORRUPTION_CODE, bench.part_id, text, evidence, data)


def _look_closer(bench: ProductBench, wrong: WrongProduct) -> Iterator[Known]:
    job, shift = bench.get_job(wrong.number)
    # A copy even on the host: a row that is written late must not change it meanwhile.
    product = wrong.output.to("cpu", copy=True)
    yield _compare_elements(product, job.reference.cpu())
    changed = ", ".join(find_changes(job, bench.part_id))
    place = f"memory ({changed})" if changed else "compute"
    yield {"place": place}, {"in_memory": bool(changed)}
    if job.rounds:  # before the output is written again
        pair = view_shifted(job.a, job.b, shift)
        yield {}, {"of_order": is_of_order(*pair, wrong.output, job.reference)}

    def is_wrong_again() -> bool:
        # Else a tile that is not written would keep the right answer.
        poison(bench.get_output(wrong.number))
        count = view_words(bench.outputs[0]).new_zeros(())
        bench.compute_and_compare(wrong.number, count)
        return bool(count)

    reruns = rerun(is_wrong_again)
    yield {"reruns": reruns.describe()}, {"reruns": reruns}


def find_changes(job: ProductJob, part_id: str) -> list[str]:
    """
    List what changed in memory.

    A core of the host does not answer for itself: all cores read the same operands, and each
    would fail for what memory, or the core that made them, did. So others look.
    """
    if not is_of_host(part_id):
        return [*list_changed_memory(job)]
    others = list_other_cores(part_id)[:WITNESSES]
    seen = run_on_each(others, lambda _: [*list_changed_memory(job)])
    return [*dict.fromkeys(text for texts in seen for text in texts)]


def _compare_elements(found: Tensor, expected: Tensor) -> Known:
    wrong, digest = find_mismatch(found, expected), format_word(compute_digest(found))
    if wrong is None:
        nothing = "read a second time, it is right"
        return {"digest": digest, "extent": nothing}, {"digest": digest}
    row, column = divmod(wrong.index, found.shape[1])
    evidence = wrong.to_evidence("element") | {
        "digest": digest,
        "row": str(row),
        "column": str(column),
        "extent": describe_errors(found, expected),
    }
    known = {"digest": digest, "expected": evidence["expected"]}
    return evidence, known | {"only_signs": bool((found == expected).all())}


def list_changed_memory(job: ProductJob) -> Iterator[str]:
    """List which operands or reference changed in memory, as the host sees them."""
    for name, there, made in zip("AB", (job.a, job.b), job.remake(), strict=True):
        if wrong := find_mismatch(there.cpu(), made):
            row, column = divmod(wrong.index, made.shape[1])
            yield f"operand {name} changed at {row}, {column}"
    if compute_digest(job.reference.cpu()) != job.digest:
        yield "reference changed"
