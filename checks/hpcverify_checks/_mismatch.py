"""What is to be known of a wrong product: where, which bits, memory or arithmetic."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from hpcverify.model import Finding
from hpcverify_checks import _locate
from hpcverify_checks._bits import digest, integers_of
from hpcverify_checks._hunt import Bench, Job, Wrong, poison

if TYPE_CHECKING:
    import torch
    from torch import Tensor

RERUNS = 3


def corruption(bench: Bench, wrong: Wrong) -> Finding:
    """Find out more about a *wrong* product, and put it in words."""
    evidence = evidence_of(bench, wrong)
    told = ("extent", "place", "reruns", "sm", "incomplete")
    text = (
        f"{bench.dtype} product {wrong.number} ({evidence['plan']}) was wrong in "
        f"{wrong.words} words: {', '.join(evidence[k] for k in told if k in evidence)}"
    )
    return Finding("corruption", bench.where, text, evidence)


def evidence_of(bench: Bench, wrong: Wrong) -> dict[str, str]:
    """
    Collect what a vendor asks for, from the wrong product and from three reruns.

    All is looked at on the host, outside of the part that computed it. A part that
    errs may refuse the next step too: what was known by then is kept.
    """
    job, shift = bench.turn(wrong.number)
    evidence = {
        "dtype": bench.dtype,
        "plan": job.name,
        "draw": str(job.draw),
        "shift": str(shift),
        "product": str(wrong.number),
        "wrong_words": str(wrong.words),
    }
    steps = (
        partial(_elements, wrong.output, job.reference),
        partial(_placed, job),
        partial(_again, bench, wrong.number),
        partial(_units, bench.outputs[0].device),
    )
    for step in steps:
        try:
            evidence |= step()
        except Exception as exc:  # noqa: BLE001 - whatever it is, it must not hide the fault
            evidence["incomplete"] = f"then {type(exc).__name__}: {exc}"
            break
    return evidence


def _placed(job: Job) -> dict[str, str]:
    return {"place": place(job)}


def _again(bench: Bench, number: int) -> dict[str, str]:
    again = sum(rerun(bench, number) for _ in range(RERUNS))
    kind = "persistent" if again == RERUNS else "intermittent"
    return {"reruns": f"{kind}: {again} of {RERUNS} reruns wrong"}


def _units(device: torch.device) -> dict[str, str]:
    units = _locate.suspects(device)
    return {} if units is None else {"sm": f"multiprocessors {units.text()}"}


def _elements(output: Tensor, reference: Tensor) -> dict[str, str]:
    """Describe the first wrong element, and how far the wrong ones reach."""
    import torch

    found, expected = output.cpu(), reference.cpu()
    had, wanted = integers_of(found), integers_of(expected)
    places = torch.ne(had, wanted).nonzero()
    if not len(places):
        nothing = "a second look at it shows nothing wrong"
        return {"digest": f"{digest(found):#018x}", "extent": nothing}
    row, column = map(int, places[0])
    width = 8 * found.element_size()
    right, is_ = (int(x[row, column]) % 2**width for x in (wanted, had))
    xor, digits = right ^ is_, 2 + width // 4
    return {
        "digest": f"{digest(found):#018x}",
        "row": str(row),
        "column": str(column),
        "expected": f"{right:#0{digits}x}",
        "found": f"{is_:#0{digits}x}",
        "xor": f"{xor:#0{digits}x}",
        "bits": " ".join(str(bit) for bit in range(width) if xor >> bit & 1),
        "wrong_elements": str(len(places)),
        "extent": _locate.extent_of(found, expected).text(),
    }


def place(job: Job) -> str:
    """Say what a mismatch is due to: what lies in memory is compared on the host."""
    a, b = job.remake()
    changed = [_difference("operand A", job.a, a), _difference("operand B", job.b, b)]
    if digest(job.reference.cpu()) != job.digest:
        changed.append("reference changed")
    there = ", ".join(filter(None, changed))
    return f"memory ({there})" if there else "compute"


def _difference(name: str, found: Tensor, expected: Tensor) -> str:
    import torch

    unequal = torch.ne(integers_of(found.cpu()), integers_of(expected)).nonzero()
    if not len(unequal):
        return ""
    row, column = map(int, unequal[0])
    return f"{name} changed at {row}, {column}"


def rerun(bench: Bench, number: int) -> bool:
    """Repeat the product *number* and say whether it is wrong again."""
    import torch

    # What lies there would be the right answer where a tile is not written.
    poison(bench.output(number))
    count = torch.zeros((), dtype=torch.int64, device=bench.outputs[0].device)
    bench.step(number, count)
    return bool(count)
