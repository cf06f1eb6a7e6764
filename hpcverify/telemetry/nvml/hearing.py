"""The answers of all GPUs to one question, within a bounded time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from hpcverify.model import Covered, Finding
from hpcverify.telemetry.gpus import Heard, Linkage, PcieLink, Recovery, Setup
from hpcverify.telemetry.nvml import questions
from hpcverify.telemetry.nvml.interview import Gpu, Interview
from hpcverify.telemetry.nvml.patience import Left, Round
from hpcverify.telemetry.nvml.session import Listing, begin
from hpcverify.telemetry.reading import Reading

T = TypeVar("T")

LINK = " of a link"
"""In the names of calls that are about one: links differ with what they lead to."""
LACKING = frozenset({"not supported", "no data yet"})
"""Reasons that may lie in how a GPU is set up, as without ECC; others never do."""

SHORT = 2
"""By which patience is divided once something hangs: whoever waits has a deadline."""
PATIENCE = 3.0
"""Seconds to wait for one GPU's answers. They take milliseconds; a GPU that has to be
started for it, without persistence mode, takes one or two seconds."""


def _hangs(left: Left[Interview]) -> Finding:
    text = f"{left.doing} has not returned within {left.seconds:g} s"
    return Finding("gpu_hung", left.item.gpu.uuid, text, {"call": left.doing})


def _unasked(interview: Interview, first: Left[Interview]) -> Finding:
    text = (
        f"it was not asked, because the driver hangs in {first.doing} of "
        f"{first.item.gpu.label}"
    )
    return Finding("gpu_hung", interview.gpu.uuid, text, {"call": first.doing})


def _unlike(spoken: Sequence[Interview]) -> Iterator[Finding]:
    """Name the GPUs that cannot say what most of the same part can."""
    for name in {who.gpu.name for who in spoken} - {""}:
        like = [who for who in spoken if who.gpu.name == name]
        for who in like:
            odd = [c for c in who.cannot if _is_odd(c, like) and LINK not in c]
            if odd:
                refused = any(who.cannot[call] not in LACKING for call in odd)
                yield Finding(
                    "gpu_silent" if refused else "gpu_unlike",
                    who.gpu.uuid,
                    f"cannot be asked what its like can: {', '.join(odd)} "
                    f"({who.cannot[odd[0]]})",
                    {"calls": " ".join(odd)},
                )


def _is_odd(call: str, like: Sequence[Interview]) -> bool:
    silent = sum(call in who.cannot for who in like)
    return silent * 2 < len(like)


def _folded(told: Sequence[Sequence[Covered]]) -> tuple[Covered, ...]:
    """Say once what is the same for all GPUs, as it is for like ones."""
    if len(told) > 1 and len({tuple(c.text for c in items) for items in told}) == 1:
        return tuple(Covered("node", f"all GPUs: {c.text}") for c in told[0])
    return tuple(c for items in told for c in items)


class NvmlSource:
    """Asks NVML; the session begins with the first question and is never ended."""

    def __init__(self, patience: float = PATIENCE) -> None:
        """Wait with NVML until something is asked."""
        self._patience = patience
        self._listing: Listing | None = None
        self._hung: dict[str, Finding] = {}

    def listing(self) -> Listing:
        """List the GPUs; raises as `session.begin` does."""
        if self._listing is None:
            self._listing = begin(self._patience)
        return self._listing

    def hear(self, question: Callable[[Interview], T]) -> Heard[T]:
        """Put *question* to all GPUs but those that hang."""
        asked = [Interview(g) for g in self.listing().gpus if g.uuid not in self._hung]
        hurried = self._patience / SHORT
        answered = Round(
            asked,
            question,
            hurried if self._has_hung() else self._patience,
            hurried,
            doing=lambda interview: interview.call,
        )
        for left in answered.left:
            self._hung[left.item.gpu.uuid] = _hangs(left)
        for interview in answered.unasked:
            self._hung[interview.gpu.uuid] = _unasked(interview, answered.left[0])
        spoken = [interview for interview, _ in answered.answers]
        return Heard(
            answers={who.gpu.uuid: answer for who, answer in answered.answers},
            findings=(
                *self.listing().nameless,
                *self._hung.values(),
                *(f for interview in spoken for f in interview.findings()),
                *_unlike(spoken),
            ),
            unanswered=_folded([list(who.unanswered()) for who in spoken]),
        )

    def _has_hung(self) -> bool:
        nameless = (finding.code for finding in self.listing().nameless)
        return bool(self._hung) or "gpu_hung" in nameless

    def reachable(self) -> Iterator[Gpu]:
        """List the GPUs that have not been found to hang."""
        yield from (g for g in self.listing().gpus if g.uuid not in self._hung)

    def memory_errors(self) -> Heard[tuple[Reading, ...]]:
        """Read ``ecc.*``, ``remap.*``, ``retired.*``."""
        return self.hear(questions.memory_errors)

    def links(self) -> Heard[Linkage]:
        """Read every NVLink and the fabric."""
        return self.hear(questions.linkage)

    def pcie(self) -> Heard[PcieLink]:
        """Read the PCIe links and their counters."""
        return self.hear(questions.pcie_link)

    def setup(self) -> Heard[Setup]:
        """Read how the GPUs are set up and who uses them."""
        return self.hear(questions.setup)

    def recovery(self) -> Heard[Recovery]:
        """Read what the driver wants done."""
        return self.hear(questions.recovery)
