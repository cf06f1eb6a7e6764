"""The answers of all GPUs to one question, within a bounded time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from threading import RLock
from typing import Any, TypeVar

from hpcverify.model import Coverage, Finding
from hpcverify.telemetry.gpus import GpuAnswers, Linkage, PcieLink, Recovery, Setup
from hpcverify.telemetry.nvml import questions
from hpcverify.telemetry.nvml.binding import pynvml as nv
from hpcverify.telemetry.nvml.query import DRIVER_CODES, DRIVER_FIXES, Gpu, GpuQuery, Modes
from hpcverify.telemetry.nvml.session import DeviceList, Session
from hpcverify.telemetry.problems import MUTE
from hpcverify.telemetry.reading import Reader, Reading
from hpcverify.telemetry.visit import Visit

T = TypeVar("T")

LINK_CALL_SUFFIX = " of a link"
"""In the names of calls that are about one: links differ with what they lead to."""
LACKING_REASONS = frozenset({"not supported", "no data yet"})
"""Reasons that may lie in how a GPU is set up, as without ECC; others never do."""

HUNG_SECONDS = 30.0
"""Seconds of one call after which a GPU hangs. Calls take milliseconds, but 5 s where another
client holds the driver's lock, and longer on a GPU that corrects errors (NVIDIA/DCGM#313)."""
HURRIED_SECONDS = 1.5
"""Seconds for one call while that of another GPU is still under way."""
GRACE_SHARE = 0.2
"""The share of `HURRIED_SECONDS` to wait for a call that an earlier question left behind."""
MAX_SILENT_IN_A_ROW = 2
"""GPUs that do not answer one after the other, upon which the others are not asked: something
holds the driver's lock."""


SLOW_SECONDS = 0.05
"""The median time of calls from which a GPU is slow: most take a few milliseconds."""
MIN_TIMED_CALLS = 3
SLOW_ROUND_SECONDS, MIN_SLOW_IN_A_ROW = 3.0, 2
"""Seconds of one question that slow GPUs in a row may take, and the fewest of them, upon which
the others are not asked: the driver is slow, and a prolog has little time."""


SLOW_FIX = "Fix: stop other clients of the driver (nvidia-smi, DCGM); see the kernel log"


class _Silences:
    """The GPUs with a call that has not returned, and which of them hold up the others."""

    def __init__(self, hung_seconds: float) -> None:
        self._hung_seconds = hung_seconds
        self._by_uuid: dict[str, tuple[GpuQuery, Visit[Any]]] = {}
        """Questions that were left behind, with their calls under way."""
        self._answered = float("-inf")
        """When the last visit that ended began: a call from before that hangs by itself."""
        self._freed = float("-inf")
        """When the oldest call returned: until then the others may have waited for it."""

    def __contains__(self, gpu: Gpu) -> bool:
        return gpu.uuid in self._by_uuid

    def note_answer(self, visit: Visit[Any]) -> None:
        self._answered = visit.began

    def note_silence(self, query: GpuQuery, visit: Visit[Any]) -> None:
        self._by_uuid[query.gpu.uuid] = (query, visit)

    def drop_ended(self, patience: float, grace: float) -> None:
        """Forget the calls that return before the oldest has taken *patience* seconds."""
        while self._by_uuid:
            first, visit = self._find_first()
            if not visit.ends_within(max(patience - self._measure_age(first), grace)):
                break
            self._freed = time.monotonic()
            del self._by_uuid[first.gpu.uuid]
        self._by_uuid = {k: v for k, v in self._by_uuid.items() if not v[1].ends_within(0)}

    def may_hold_up(self, late: Mapping[int, float]) -> bool:
        """Whether a call is under way, or a *late* GPU initialises, and none returned since."""
        begun = [*late.values(), *(query.began for query, _ in self._by_uuid.values())]
        return any(began >= self._answered for began in begun)

    def _find_first(self) -> tuple[GpuQuery, Visit[Any]]:
        return min(self._by_uuid.values(), key=lambda left: left[0].began)

    def _measure_age(self, query: GpuQuery) -> float:
        return time.monotonic() - max(query.began, self._freed)

    def list_findings(self, unheard: Sequence[Gpu], late: Mapping[int, float]) -> Iterator[Finding]:
        """Report GPUs of *unheard* as hung, or as held up by a hung GPU or one that is *late*."""
        if not self._by_uuid:
            return
        first, _ = self._find_first()
        call, holder = first.call, first.gpu.label
        if late:
            call, holder = "nvmlDeviceGetHandleByIndex", f"the GPU with NVML index {min(late)}"
        for gpu in sorted(unheard, key=lambda gpu: gpu != first.gpu):
            own, _ = self._by_uuid.get(gpu.uuid, (None, None))
            is_oldest = own is first and not late
            if own is None or not (is_oldest or own.began < self._answered):
                text = f"not read: the driver hangs in {call} of {holder}"
                yield Finding("gpu_blocked", gpu.uuid, text, {"call": call, "hung": holder})
            elif self._measure_age(own) < self._hung_seconds:
                text = f"not read: {own.call} has not returned yet"
                yield Finding("gpu_blocked", gpu.uuid, text, {"call": own.call})
            else:
                text = f"{own.call} has not returned within {self._hung_seconds:g} s"
                yield Finding("gpu_hung", gpu.uuid, text, {"call": own.call})


def _is_slow(query: GpuQuery) -> bool:
    return len(query.durations) >= MIN_TIMED_CALLS and _find_usual(query) >= SLOW_SECONDS


def _find_usual(query: GpuQuery) -> float:
    """Find the median time of its calls: one that waits does not make a GPU slow."""
    return sorted(query.durations)[len(query.durations) // 2]


def _list_slow(spoken: Sequence[GpuQuery], unasked: Sequence[Gpu]) -> Iterator[Finding]:
    """Name the GPUs whose calls are slow, and those that were not asked since others were."""
    slow = [query for query in spoken if _is_slow(query)]
    for query in slow:
        times = query.durations
        took = f"{sum(times):.1f} s (median {_find_usual(query):.2f} s)"
        text = f"{len(times)} calls of NVML took {took}"
        yield Finding("gpu_slow", query.gpu.uuid, f"{text}. {SLOW_FIX}")
    for gpu in unasked:
        text = f"not read: {len(slow)} other GPUs take {_find_usual(slow[-1]):.2f} s for a call"
        yield Finding("gpu_unread", gpu.uuid, f"{text}. {SLOW_FIX}")


def _find_unlike(spoken: Sequence[GpuQuery]) -> Iterator[Finding]:
    """Name the GPUs that cannot say what most of the same part can."""
    kinds: dict[tuple[str, Modes], list[GpuQuery]] = {}
    for who in spoken:
        kinds.setdefault((who.gpu.name, who.modes), []).append(who)
    for like in (like for (name, _), like in kinds.items() if name):
        for who in like:
            odd = [
                call
                for call in who.no_answers
                if LINK_CALL_SUFFIX not in call
                and sum(call in sibling.no_answers for sibling in like) * 2 < len(like)
            ]
            if odd:
                refused = any(who.no_answers[call] not in LACKING_REASONS for call in odd)
                code = "gpu_silent" if refused else "gpu_unlike"
                calls = f"{', '.join(odd)} ({who.no_answers[odd[0]]})"
                text = f"does not support calls that its siblings support: {calls}"
                if refused and not who.has_answered:
                    text = "does not respond to any call, unlike its siblings, as after a reset"
                    code, text = MUTE, f"{text}. Fix: run again"
                yield Finding(code, who.gpu.uuid, text, {"calls": " ".join(odd)})


def _list_troubles(spoken: Sequence[GpuQuery]) -> Iterator[Finding]:
    """Say what is wrong with each GPU; what all say of the driver is the node's."""
    of_node = frozenset(DRIVER_CODES).intersection(*(who.list_driver_errors() for who in spoken))
    for number in sorted(of_node) if spoken else ():
        code = DRIVER_CODES[number]
        text = f"NVML reports '{nv.NVMLError(number)}'. Fix: {DRIVER_FIXES[code]}"
        yield Finding(code, "node", text)
    yield from (finding for who in spoken for finding in who.list_findings(of_node))


def _returns(visit: Visit[T], query: GpuQuery, limit: float) -> bool:
    """Wait for the end of *visit* for as long as none of its calls takes *limit* seconds."""
    while not visit.ends_within(query.began + limit - time.monotonic()):
        if time.monotonic() - query.began >= limit:
            return False
    return True


class NvmlSource:
    """Asks NVML; the session begins with the first question and is never ended."""

    def __init__(
        self, hung_seconds: float = HUNG_SECONDS, hurried_seconds: float = HURRIED_SECONDS
    ) -> None:
        """Ask nothing yet."""
        self._hung_seconds = hung_seconds
        self._hurried_seconds = hurried_seconds
        self._session = Session(hung_seconds)
        self._silences = _Silences(hung_seconds)
        self._modes: dict[str, Modes] = {}
        """By UUID, as they were when last asked for: most questions do not ask."""
        self._turn = RLock()
        """Held by the thread that asks: of two that did, one would wait behind the other."""

    def list_devices(self) -> DeviceList:
        """List the GPUs; raises as `Session.list_devices` does."""
        with self._turn:
            return self._session.list_devices()

    def ask_all(
        self, question: Callable[[GpuQuery], T], patience: float | None = None
    ) -> GpuAnswers[T]:
        """Put *question* to all GPUs without a pending call, for *patience* seconds per call."""
        with self._turn:
            devices = self._session.list_devices()
            answers, unasked = self._visit(devices.gpus, question, patience or self._hung_seconds)
            heard = {gpu.uuid for gpu in (*(query.gpu for query, _ in answers), *unasked)}
            silent = [gpu for gpu in devices.gpus if gpu.uuid not in heard]
            hanging = list(self._silences.list_findings(silent, self._session.list_late()))
        spoken = [query for query, _ in answers]
        coverage = [list(who.list_unanswered()) for who in spoken]
        unanswered = tuple(item for items in coverage for item in items)
        if len(coverage) > 1 and len({tuple(c.text for c in items) for items in coverage}) == 1:
            unanswered = tuple(Coverage("node", f"all GPUs: {c.text}") for c in coverage[0])
        self._modes |= {who.gpu.uuid: who.modes for who in spoken}
        return GpuAnswers(
            answers={who.gpu.uuid: answer for who, answer in answers},
            findings=(
                *devices.unlisted_findings,
                *hanging,
                *_list_troubles(spoken),
                *_list_slow(spoken, unasked),
                *_find_unlike(spoken),
            ),
            unanswered=unanswered,
        )

    def _visit(
        self, gpus: Sequence[Gpu], question: Callable[[GpuQuery], T], patience: float
    ) -> tuple[list[tuple[GpuQuery, T]], list[Gpu]]:
        """Return the answers, and the GPUs that were not asked since the others are slow."""
        answers: list[tuple[GpuQuery, T]] = []
        unasked: list[Gpu] = []
        slow: list[float] = []
        left_behind: list[tuple[GpuQuery, Visit[T]]] = []
        self._silences.drop_ended(patience, self._hurried_seconds * GRACE_SHARE)
        is_held = self._silences.may_hold_up(self._session.list_late())
        in_a_row = int(is_held)
        for gpu in gpus:
            if gpu in self._silences or in_a_row == MAX_SILENT_IN_A_ROW:
                continue
            if len(slow) >= MIN_SLOW_IN_A_ROW and sum(slow) >= SLOW_ROUND_SECONDS:
                unasked.append(gpu)
                continue
            query = GpuQuery(gpu, self._modes.get(gpu.uuid, Modes()))
            visit = Visit(partial(question, query))
            limit = self._hurried_seconds if is_held else patience
            if _returns(visit, query, limit):
                answers.append((query, visit.take()))
                self._silences.note_answer(visit)
                in_a_row = 0
                slow = [*slow, sum(query.durations)] if _is_slow(query) else []
            else:
                self._silences.note_silence(query, visit)
                left_behind.append((query, visit))
                in_a_row += 1
                is_held = True
        answers += [(query, visit.take()) for query, visit in left_behind if visit.ends_within(0)]
        return sorted(answers, key=lambda answer: answer[0].gpu.index), unasked

    def list_reachable(self) -> Iterator[Gpu]:
        """List the GPUs that have no call under way which an earlier question left behind."""
        yield from (g for g in self.list_devices().gpus if g not in self._silences)

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
