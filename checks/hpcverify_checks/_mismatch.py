"""What is to be known of a wrong product: where, which bits, memory or arithmetic."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcverify.model import Finding
from hpcverify_checks import _locate
from hpcverify_checks._bits import digest, integers_of, words
from hpcverify_checks._hunt import Bench, Job, Wrong

if TYPE_CHECKING:
    from torch import Tensor

RERUNS = 3
POISON = -1
"""Every bit set: NaN in every floating-point type, and no product of any plan."""


def corruption(bench: Bench, wrong: Wrong) -> Finding:
    """Find out more about a *wrong* product, and put it in words."""
    evidence = evidence_of(bench, wrong)
    text = (
        f"{bench.dtype} product {wrong.number} ({evidence['plan']}) was wrong in "
        f"{wrong.words} words: {evidence['extent']}; {evidence['place']}, "
        f"{evidence['reruns']}"
    )
    return Finding("corruption", bench.where, text, evidence)


def evidence_of(bench: Bench, wrong: Wrong) -> dict[str, str]:
    """
    Collect what a vendor asks for, from the wrong product and from three reruns.

    All is looked at on the host, outside of the part that computed it.
    """
    job, shift = bench.turn(wrong.number)
    found, expected = wrong.output.cpu(), job.reference.cpu()
    evidence = {
        "dtype": bench.dtype,
        "plan": job.name,
        "draw": str(job.draw),
        "shift": str(shift),
        "product": str(wrong.number),
        "wrong_words": str(wrong.words),
        "digest": f"{digest(found):#018x}",
        "extent": "a second look at it shows nothing wrong",
    }
    evidence |= _elements(found, expected)
    evidence["place"] = place(job)
    again = sum(rerun(bench, wrong.number) for _ in range(RERUNS))
    kind = "persistent" if again == RERUNS else "intermittent"
    evidence["reruns"] = f"{kind}: {again} of {RERUNS} reruns wrong"
    units = _locate.suspects(wrong.output.device)
    return evidence if units is None else evidence | {"sm": units.text()}


def _elements(found: Tensor, expected: Tensor) -> dict[str, str]:
    """Describe the first wrong element, and how far the wrong ones reach."""
    import torch

    had, wanted = integers_of(found), integers_of(expected)
    places = torch.ne(had, wanted).nonzero()
    if not len(places):
        return {}
    row, column = map(int, places[0])
    width = 8 * found.element_size()
    right, is_ = (int(x[row, column]) % 2**width for x in (wanted, had))
    xor, digits = right ^ is_, 2 + width // 4
    return {
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
    words(bench.output(number)).fill_(POISON)
    count = torch.zeros((), dtype=torch.int64, device=bench.outputs[0].device)
    bench.step(number, count)
    return bool(count)
