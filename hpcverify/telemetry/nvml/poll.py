"""The answers of all GPUs to one question, within a bounded time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from hpcverify.model import Coverage, Finding
from hpcverify.telemetry.gpus import GpuAnswers, Linkage, PcieLink, Recovery, Setup
from hpcverify.telemetry.nvml import questions
from hpcverify.telemetry.nvml.query import Gpu, GpuQuery
from hpcverify.telemetry.nvml.session import DeviceList, start_nvml
from hpcverify.telemetry.nvml.watchdog import TimedCalls, TimedOut, call_each
from hpcverify.telemetry.reading import Reader, Reading

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


class _Hangs:
    """
    The GPUs that hang, and those that only wait for a driver which one of them holds.

    Until a GPU answers again, the first hang explains those after it.
    """

    def __init__(self) -> None:
        self._hung: dict[str, TimedOut[GpuQuery]] = {}
        self._first: TimedOut[GpuQuery] | None = None
        self._waiting: dict[str, TimedOut[GpuQuery] | None] = {}
        """By UUID, with the call that timed out if the GPU was asked."""

    def __contains__(self, gpu: Gpu) -> bool:
        return gpu.uuid in self._hung or gpu.uuid in self._waiting

    def __bool__(self) -> bool:
        return bool(self._hung)

    def note_answer(self) -> None:
        """Clear the driver: what timed out hung by itself, what was not asked can be."""
        self._hung |= {uuid: left for uuid, left in self._waiting.items() if left}
        self._waiting.clear()
        self._first = None

    def note_silence(self, query: GpuQuery, left: TimedOut[GpuQuery] | None) -> None:
        """Note a call that timed out, or none for a GPU that was not asked."""
        if self._first:
            self._waiting[query.gpu.uuid] = left
        elif left:
            self._hung[query.gpu.uuid] = self._first = left

    def list_findings(self) -> Iterator[Finding]:
        for uuid, left in self._hung.items():
            text = f"{left.doing} has not returned within {left.seconds:g} s"
            yield Finding("gpu_hung", uuid, text, {"call": left.doing})
        if self._first:
            call, label = self._first.doing, self._first.item.gpu.label
            text = f"not read: the driver hangs in {call} of {label}"
            for uuid in self._waiting:
                yield Finding("gpu_blocked", uuid, text, {"call": call, "hung": label})


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
                    f"cannot answer questions that its siblings can: {', '.join(odd)} "
                    f"({who.no_answers[odd[0]]})",
                    {"calls": " ".join(odd)},
                )


def _is_odd(call: str, like: Sequence[GpuQuery]) -> bool:
    silent = sum(call in who.no_answers for who in like)
    return silent * 2 < len(like)


def _merge_coverage(coverage: Sequence[Sequence[Coverage]]) -> tuple[Coverage, ...]:
    """Say once what is the same for all GPUs, as it is for like ones."""
    if len(coverage) > 1 and len({tuple(c.text for c in items) for items in coverage}) == 1:
        return tuple(Coverage("node", f"all GPUs: {c.text}") for c in coverage[0])
    return tuple(c for items in coverage for c in items)


class NvmlSource:
    """Asks NVML; the session begins with the first question and is never ended."""

    def __init__(self, timeout: float = GPU_TIMEOUT_SECONDS) -> None:
        self._timeout = timeout
        self._devices: DeviceList | None = None
        self._hangs = _Hangs()

    def list_devices(self) -> DeviceList:
        """List the GPUs; raises as `start_nvml` does."""
        if self._devices is None:
            self._devices = start_nvml(self._timeout)
        return self._devices

    def ask_all(self, question: Callable[[GpuQuery], T]) -> GpuAnswers[T]:
        """Put *question* to all GPUs but those that hang."""
        answers: list[tuple[GpuQuery, T]] = []
        visited: set[str] = set()
        # An answer can show that GPUs which an earlier question left out can be asked.
        while queries := [GpuQuery(g) for g in self.list_reachable() if g.uuid not in visited]:
            answered = self._call_each(queries, question)
            answers += answered.answers
            visited |= {query.gpu.uuid for query in queries} - {
                query.gpu.uuid for query in answered.unasked
            }
        answers.sort(key=lambda pair: pair[0].gpu.index)
        spoken = [query for query, _ in answers]
        return GpuAnswers(
            answers={who.gpu.uuid: answer for who, answer in answers},
            findings=(
                *self.list_devices().unlisted_findings,
                *self._hangs.list_findings(),
                *(f for query in spoken for f in query.list_findings()),
                *_find_unlike(spoken),
            ),
            unanswered=_merge_coverage([list(who.list_unanswered()) for who in spoken]),
        )

    def _call_each(
        self, queries: Sequence[GpuQuery], question: Callable[[GpuQuery], T]
    ) -> TimedCalls[GpuQuery, T]:
        """Put *question* to each of *queries*, and note in their order which of them hang."""
        hurried = self._timeout / HURRY_DIVISOR
        answered = call_each(
            queries,
            question,
            hurried if self._has_hung() else self._timeout,
            hurried,
            doing=lambda query: query.call,
        )
        spoken = {query.gpu.uuid for query, _ in answered.answers}
        timed_out = {left.item.gpu.uuid: left for left in answered.timed_out}
        for query in queries:
            if query.gpu.uuid in spoken:
                self._hangs.note_answer()
            else:
                self._hangs.note_silence(query, timed_out.get(query.gpu.uuid))
        return answered

    def _has_hung(self) -> bool:
        nameless = (finding.code for finding in self.list_devices().unlisted_findings)
        return bool(self._hangs) or "gpu_hung" in nameless

    def list_reachable(self) -> Iterator[Gpu]:
        """List the GPUs that have not been found to hang, or to wait for one that does."""
        yield from (g for g in self.list_devices().gpus if g not in self._hangs)

    def list_gpus(self) -> tuple[str, ...]:
        """List the GPUs that NVML lists, by UUID."""
        return tuple(gpu.uuid for gpu in self.list_devices().gpus)

    def make_reader(self) -> Reader:
        """Make what samples all GPUs."""
        from hpcverify.telemetry.nvml.gauges import NvmlReader  # noqa: PLC0415 - it imports this

        return NvmlReader()

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
