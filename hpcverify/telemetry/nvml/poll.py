"""The answers of all GPUs to one question, within a bounded time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from hpcverify.model import Coverage, Finding
from hpcverify.telemetry.gpus import GpuAnswers, Linkage, PcieLink, Recovery, Setup
from hpcverify.telemetry.nvml import questions
from hpcverify.telemetry.nvml.query import Gpu, GpuQuery
from hpcverify.telemetry.nvml.session import DeviceList, start_nvml
from hpcverify.telemetry.nvml.watchdog import TimedOut, call_each
from hpcverify.telemetry.reading import Reading

T = TypeVar("T")

LINK_CALL_SUFFIX = " of a link"
"""In the names of calls that are about one: links differ with what they lead to."""
LACKING_REASONS = frozenset({"not supported", "no data yet"})
"""Reasons that may lie in how a GPU is set up, as without ECC; others never do."""

HURRY_DIVISOR = 2
"""By which the timeout is divided once something hangs: whoever waits has a deadline."""
GPU_TIMEOUT_SECONDS = 3.0
"""Seconds to wait for one GPU's answers. They take milliseconds; a GPU that has to be
started for it, without persistence mode, takes one or two seconds."""


def _build_hang_finding(left: TimedOut[GpuQuery]) -> Finding:
    text = f"{left.doing} has not returned within {left.seconds:g} s"
    return Finding("gpu_hung", left.item.gpu.uuid, text, {"call": left.doing})


def _build_unasked_finding(query: GpuQuery, first: TimedOut[GpuQuery]) -> Finding:
    text = f"it was not asked, because the driver hangs in {first.doing} of {first.item.gpu.label}"
    return Finding("gpu_hung", query.gpu.uuid, text, {"call": first.doing})


def _find_unlike(spoken: Sequence[GpuQuery]) -> Iterator[Finding]:
    """Name the GPUs that cannot say what most of the same part can."""
    for name in {who.gpu.name for who in spoken} - {""}:
        like = [who for who in spoken if who.gpu.name == name]
        for who in like:
            odd = [c for c in who.no_answers if _is_odd(c, like) and LINK_CALL_SUFFIX not in c]
            if odd:
                refused = any(who.no_answers[call] not in LACKING_REASONS for call in odd)
                yield Finding(
                    "gpu_silent" if refused else "gpu_unlike",
                    who.gpu.uuid,
                    f"cannot be asked what its like can: {', '.join(odd)} "
                    f"({who.no_answers[odd[0]]})",
                    {"calls": " ".join(odd)},
                )


def _is_odd(call: str, like: Sequence[GpuQuery]) -> bool:
    silent = sum(call in who.no_answers for who in like)
    return silent * 2 < len(like)


def _merge_coverage(told: Sequence[Sequence[Coverage]]) -> tuple[Coverage, ...]:
    """Say once what is the same for all GPUs, as it is for like ones."""
    if len(told) > 1 and len({tuple(c.text for c in items) for items in told}) == 1:
        return tuple(Coverage("node", f"all GPUs: {c.text}") for c in told[0])
    return tuple(c for items in told for c in items)


class NvmlSource:
    """Asks NVML; the session begins with the first question and is never ended."""

    def __init__(self, timeout: float = GPU_TIMEOUT_SECONDS) -> None:
        """Wait with NVML until something is asked."""
        self._timeout = timeout
        self._devices: DeviceList | None = None
        self._hung: dict[str, Finding] = {}

    def list_devices(self) -> DeviceList:
        """List the GPUs; raises as `start_nvml` does."""
        if self._devices is None:
            self._devices = start_nvml(self._timeout)
        return self._devices

    def ask_all(self, question: Callable[[GpuQuery], T]) -> GpuAnswers[T]:
        """Put *question* to all GPUs but those that hang."""
        asked = [GpuQuery(g) for g in self.list_devices().gpus if g.uuid not in self._hung]
        hurried = self._timeout / HURRY_DIVISOR
        answered = call_each(
            asked,
            question,
            hurried if self._has_hung() else self._timeout,
            hurried,
            doing=lambda interview: interview.call,
        )
        for left in answered.timed_out:
            self._hung[left.item.gpu.uuid] = _build_hang_finding(left)
        for interview in answered.unasked:
            self._hung[interview.gpu.uuid] = _build_unasked_finding(
                interview, answered.timed_out[0]
            )
        spoken = [interview for interview, _ in answered.answers]
        return GpuAnswers(
            answers={who.gpu.uuid: answer for who, answer in answered.answers},
            findings=(
                *self.list_devices().unlisted_findings,
                *self._hung.values(),
                *(f for interview in spoken for f in interview.list_findings()),
                *_find_unlike(spoken),
            ),
            unanswered=_merge_coverage([list(who.list_unanswered()) for who in spoken]),
        )

    def _has_hung(self) -> bool:
        nameless = (finding.code for finding in self.list_devices().unlisted_findings)
        return bool(self._hung) or "gpu_hung" in nameless

    def list_reachable(self) -> Iterator[Gpu]:
        """List the GPUs that have not been found to hang."""
        yield from (g for g in self.list_devices().gpus if g.uuid not in self._hung)

    def read_memory_errors(self) -> GpuAnswers[tuple[Reading, ...]]:
        """Read ``ecc.*``, ``remap.*``, ``retired.*``."""
        return self.ask_all(questions.read_memory_errors)

    def read_links(self) -> GpuAnswers[Linkage]:
        """Read every NVLink and the fabric."""
        return self.ask_all(questions.read_linkage)

    def read_pcie(self) -> GpuAnswers[PcieLink]:
        """Read the PCIe links and their counters."""
        return self.ask_all(questions.read_pcie_link)

    def read_setup(self) -> GpuAnswers[Setup]:
        """Read how the GPUs are set up and who uses them."""
        return self.ask_all(questions.read_setup)

    def read_recovery(self) -> GpuAnswers[Recovery]:
        """Read what the driver wants done."""
        return self.ask_all(questions.read_recovery)
