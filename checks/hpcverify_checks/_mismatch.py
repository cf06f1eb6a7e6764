"""What is to be known of a wrong product: where, which bits, memory or arithmetic."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from hpcverify.model import Finding
from hpcverify_checks import _locate
from hpcverify_checks._bits import compute_digest, view_integers
from hpcverify_checks._hunt import ProductBench, ProductJob, WrongProduct, poison

if TYPE_CHECKING:
    import torch
    from torch import Tensor

RERUN_COUNT = 3


def investigate_corruption(bench: ProductBench, wrong: WrongProduct) -> Finding:
    """Find out more about a *wrong* product, and put it in words."""
    evidence = collect_evidence(bench, wrong)
    told = ("extent", "place", "reruns", "sm", "incomplete")
    text = (
        f"{bench.dtype} product {wrong.number} ({evidence['plan']}) was wrong in "
        f"{wrong.words} words: {', '.join(evidence[k] for k in told if k in evidence)}"
    )
    return Finding("corruption", bench.where, text, evidence)


def collect_evidence(bench: ProductBench, wrong: WrongProduct) -> dict[str, str]:
    """
    Collect what a vendor asks for, from the wrong product and from three reruns.

    All is looked at on the host, outside of the part that computed it. A part that
    errs may refuse the next step too: what was known by then is kept.
    """
    job, shift = bench.get_job(wrong.number)
    evidence = {
        "dtype": bench.dtype,
        "plan": job.name,
        "draw": str(job.draw),
        "shift": str(shift),
        "product": str(wrong.number),
        "wrong_words": str(wrong.words),
    }
    steps = (
        partial(_collect_elements, wrong.output, job.reference),
        partial(_collect_place, job),
        partial(_collect_reruns, bench, wrong.number),
        partial(_collect_faulty_sms, bench.outputs[0].device),
    )
    for step in steps:
        try:
            evidence |= step()
        except Exception as exc:  # noqa: BLE001 - whatever it is, it must not hide the fault
            evidence["incomplete"] = f"then {type(exc).__name__}: {exc}"
            break
    return evidence


def _collect_place(job: ProductJob) -> dict[str, str]:
    return {"place": locate_fault(job)}


def _collect_reruns(bench: ProductBench, number: int) -> dict[str, str]:
    again = sum(rerun(bench, number) for _ in range(RERUN_COUNT))
    kind = "persistent" if again == RERUN_COUNT else "intermittent"
    return {"reruns": f"{kind}: {again} of {RERUN_COUNT} reruns wrong"}


def _collect_faulty_sms(device: torch.device) -> dict[str, str]:
    units = _locate.find_faulty_sms(device)
    return {} if units is None else {"sm": f"multiprocessors {units.describe()}"}


def _collect_elements(output: Tensor, reference: Tensor) -> dict[str, str]:
    """Describe the first wrong element, and how far the wrong ones reach."""
    import torch

    found, expected = output.cpu(), reference.cpu()
    had, wanted = view_integers(found), view_integers(expected)
    places = torch.ne(had, wanted).nonzero()
    if not len(places):
        nothing = "a second look at it shows nothing wrong"
        return {"digest": f"{compute_digest(found):#018x}", "extent": nothing}
    row, column = map(int, places[0])
    width = 8 * found.element_size()
    right, is_ = (int(x[row, column]) % 2**width for x in (wanted, had))
    xor, digits = right ^ is_, 2 + width // 4
    return {
        "digest": f"{compute_digest(found):#018x}",
        "row": str(row),
        "column": str(column),
        "expected": f"{right:#0{digits}x}",
        "found": f"{is_:#0{digits}x}",
        "xor": f"{xor:#0{digits}x}",
        "bits": " ".join(str(bit) for bit in range(width) if xor >> bit & 1),
        "wrong_elements": str(len(places)),
        "extent": _locate.measure_extent(found, expected).describe(),
    }


def locate_fault(job: ProductJob) -> str:
    """Say what a mismatch is due to: what lies in memory is compared on the host."""
    a, b = job.remake()
    changed = [
        _describe_difference("operand A", job.a, a),
        _describe_difference("operand B", job.b, b),
    ]
    if compute_digest(job.reference.cpu()) != job.digest:
        changed.append("reference changed")
    there = ", ".join(filter(None, changed))
    return f"memory ({there})" if there else "compute"


def _describe_difference(name: str, found: Tensor, expected: Tensor) -> str:
    import torch

    unequal = torch.ne(view_integers(found.cpu()), view_integers(expected)).nonzero()
    if not len(unequal):
        return ""
    row, column = map(int, unequal[0])
    return f"{name} changed at {row}, {column}"


def rerun(bench: ProductBench, number: int) -> bool:
    """Repeat the product *number* and say whether it is wrong again."""
    import torch

    # What lies there would be the right answer where a tile is not written.
    poison(bench.get_output(number))
    count = torch.zeros((), dtype=torch.int64, device=bench.outputs[0].device)
    bench.compute_and_compare(number, count)
    return bool(count)
