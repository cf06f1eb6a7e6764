"""
Serve tasks in a process of its own, one after the other, until told to stop.

``python -m hpcverify.worker PARENT ORDERS REPLIES TRAIL`` is told of orders on standard
input and appends replies; PARENT is the engine's process id, the others are inherited
descriptors (`hpcverify.early.WorkerFiles`). A worker stays
alive between checks, so that torch is imported once for each device and not once for
each check. It ends with the engine, however that ends.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec
from msgspec import Struct

from hpcverify import catalog, trail
from hpcverify.check import Check, Context, JudgedItem, Placement, Skip, Trial, Unable, Watch
from hpcverify.early import PRELOAD_COMMAND
from hpcverify.errors import HpcverifyError, explain_shortage
from hpcverify.model import Cause, CheckItem, Coverage, Inventory, Measurement, Remedy, Verdict
from hpcverify.processes import die_with_parent
from hpcverify.wire import (
    GpuHolder,
    Measure,
    Observe,
    Outcome,
    Probe,
    Reconcile,
    Request,
    Response,
    RunSelftest,
    Settle,
    Task,
    decode,
    encode,
    make_response,
)

if TYPE_CHECKING:
    from hpcverify.telemetry.sampler import Sampler


MAX_PROBE_AGE_SECONDS = 1.0
"""Seconds for which what was seen ahead of the order still counts as now."""


class ProbeResult(Struct, frozen=True):
    """What the probe saw, and when."""

    probed_at: float
    inventory: Inventory
    holders: tuple[tuple[str, int], ...]


class WorkerServer:
    """Serves orders; the telemetry worker is the one that was told to probe."""

    def __init__(self, responses: BinaryIO, ahead: ProbeResult | None = None) -> None:
        """Write to *replies*, unbuffered; *ahead* is what was seen before any order."""
        self._responses = responses
        self._ahead = ahead
        self._inventory = Inventory()
        self._sampler: Sampler | None = None

    def handle(self, request: Request) -> None:
        """Carry out *order*; whatever happens becomes an outcome."""
        start = time.monotonic()
        outcome = Outcome()
        try:
            for item in self._execute(request):
                self._send(item)
        except Skip as exc:
            outcome = Outcome(verdict=Verdict.SKIP, reason=str(exc), cause=exc.cause)
        except Unable as exc:
            outcome = Outcome(
                verdict=Verdict.ERROR, reason=str(exc), cause=exc.cause, remedy=exc.remedy
            )
        except Exception as exc:  # noqa: BLE001 - the one place where a bug in a check becomes data
            outcome = _explain_node_failure(exc, request.task) or _build_crash_outcome(exc)
        ended = msgspec.structs.replace(
            outcome, start=start, end=time.monotonic(), spent=not release_memory(request)
        )
        self._send(Response(number=request.number, outcome=ended))

    def _execute(self, request: Request) -> Iterator[Response]:
        match request.task:
            case Probe() as task:
                yield self._probe(request.number, task.folder)
                if task.sample:
                    self._start_sampling()
            case Settle() as task:
                yield from (make_response(request.number, f) for f in self._settle(task))
            case Measure() as task:
                yield from (make_response(request.number, f) for f in self._measure(task))
            case Observe() as task:
                yield from (make_response(request.number, f) for f in self._observe(task))
            case Reconcile() as task:
                yield from (make_response(request.number, f) for f in _reconcile_items(task))
            case RunSelftest() as task:
                yield from (Response(number=request.number, trial=t) for t in _run_selftest(task))

    def _probe(self, number: int, folder: Path | None) -> Response:
        sight, self._ahead = self._ahead, None
        if sight is None or time.monotonic() - sight.probed_at > MAX_PROBE_AGE_SECONDS:
            sight = probe_hardware()
        self._inventory = sight.inventory
        if folder is not None:
            self._inventory = add_mount(sight.inventory, folder)
        held = tuple(GpuHolder(part, pid) for part, pid in sight.holders)
        return Response(number=number, inventory=self._inventory, holders=held)

    def _start_sampling(self) -> None:
        from hpcverify.telemetry import make_readers  # noqa: PLC0415
        from hpcverify.telemetry.sampler import Sampler  # noqa: PLC0415

        self._sampler = Sampler(make_readers(self._inventory))
        self._sampler.start()

    def _settle(self, task: Settle) -> Iterator[CheckItem]:
        from hpcverify.telemetry.settling import settle  # noqa: PLC0415 - only one worker does

        if not _applies_anywhere(task):
            return
        if self._sampler is None:
            yield Coverage("node", "nobody watched whether the devices had settled")
            return
        seconds, late = settle(self._sampler, task.timeout)
        yield Coverage("node", f"began after {seconds:.0f} s of settling")
        for part in late:
            yield Coverage(part, "was still warm or at work when this began")

    def _measure(self, task: Measure) -> Iterator[CheckItem]:
        check = catalog.load_check(task.name, task.packages)
        params = msgspec.convert(task.params, check.params)
        yield from map(partial(require_declared_unit, check), check.measure(task.context, params))

    def _observe(self, task: Observe) -> Iterator[CheckItem]:
        check = catalog.load_check(task.name, task.packages)
        if check.observe is None:
            return
        if self._sampler is None or not self._sampler.reaches(task.end):
            raise Unable(
                "the telemetry stopped under way: what it missed cannot be judged",
                Cause.CRASHED,
                Remedy.RERUN,
            )
        params = msgspec.convert(task.params, check.params)
        watch = Watch(
            start=task.start, end=task.end, samples=self._sampler.read_window(task.start, task.end)
        )
        once = check.placement in (Placement.PASSIVE, Placement.NODE)
        for context in task.contexts[:1] if once else task.contexts:
            found = check.observe(watch, context, params)
            yield from map(partial(require_declared_unit, check), found)

    def _send(self, item: Response) -> None:
        line = encode(item)
        decode(line, Response)  # what a check yields may be of the wrong types within
        self._responses.write(line)


def _explain_node_failure(exc: Exception, task: Task) -> Outcome | None:
    """Say so if *exc* is no bug, but what the node did to a check at work."""
    reason, cause = explain_shortage(exc), Cause.NO_RESOURCES
    if isinstance(task, Measure) and not task.context.scratch.is_dir():
        reason = (
            f"the scratch directory {task.context.scratch} is gone: it was unmounted "
            "or removed while the check was at work"
        )
        cause = Cause.MISSING
    if not reason:
        return None
    return Outcome(verdict=Verdict.ERROR, reason=reason, cause=cause, remedy=Remedy.INSPECT)


def _build_crash_outcome(exc: Exception) -> Outcome:
    import traceback  # noqa: PLC0415 - hardly ever, and it takes 4 ms

    return Outcome(
        verdict=Verdict.ERROR,
        reason=f"the check raised {type(exc).__name__}: {exc}",
        cause=Cause.CRASHED,
        remedy=Remedy.FIX_CHECKER,
        trace="".join(traceback.format_exception(exc)),
    )


def _applies_anywhere(task: Settle) -> bool:
    """Whether the check that comes next will load any device."""
    applies = catalog.load_check(task.name, task.packages).applies
    return applies is None or any(_is_applicable(applies, ctx) for ctx in task.contexts)


def _is_applicable(applies: Callable[[Context], None], ctx: Context) -> bool:
    try:
        applies(ctx)
    except (Skip, Unable):
        return False
    return True


def _reconcile_items(task: Reconcile) -> Iterator[CheckItem]:
    check = catalog.load_check(task.name, task.packages)
    found: list[JudgedItem] = [*task.measurements, *task.findings]
    if check.reconcile is None:
        yield from found
        return
    together = check.reconcile(found, task.inventory)
    yield from map(partial(require_declared_unit, check), together)


def _run_selftest(task: RunSelftest) -> Iterator[Trial]:
    check = catalog.load_check(task.name, task.packages)
    if check.selftest is None:
        raise Skip(f"{task.name} has no selftest")
    yield from check.selftest(task.context)


def add_mount(inventory: Inventory, folder: Path) -> Inventory:
    """Add what is mounted below *folder*, which is known when the run begins."""
    # Only the telemetry worker pays for this.
    from hpcverify.telemetry.blockdev import describe_mount  # noqa: PLC0415

    part = describe_mount(folder, inventory)
    return msgspec.structs.replace(inventory, parts=(*inventory.parts, *part))


def probe_ahead() -> ProbeResult | None:
    """Look before any order has come; what goes wrong then is told by the order."""
    try:
        return probe_hardware()
    except Exception:  # noqa: BLE001 - it will be raised again when somebody listens
        return None


def probe_hardware() -> ProbeResult:
    """List what the node is made of and who holds its GPUs."""
    # Only the telemetry worker pays for this.
    from hpcverify.telemetry.probe import probe_with_holders  # noqa: PLC0415

    inventory, holders = probe_with_holders()
    return ProbeResult(time.monotonic(), inventory, holders)


def require_declared_unit(check: Check[Any], item: CheckItem) -> CheckItem:
    """Refuse a measurement in another unit than its limits are written in."""
    if isinstance(item, Measurement):
        metric = check.find_metric(item.name)
        if metric is not None and metric.unit != item.unit:
            raise ValueError(
                f"{item.name} was measured in {item.unit!r} and is declared in {metric.unit!r}"
            )
    return item


def release_memory(request: Request) -> bool:
    """
    Give back what *order* took, so that the next one has all of it.

    Returns whether that can be had without ending the process. Some errors of CUDA
    stay until then; so do the contexts on GPUs that have workers of their own.
    """
    torch = sys.modules.get("torch")
    if torch is None:  # to collect takes as long as to read eight GPUs
        return True
    gc.collect()
    if not torch.cuda.is_initialized():
        return True
    try:
        torch.cuda.empty_cache()
    except RuntimeError:
        return False
    task = request.task
    return not (isinstance(task, Measure) and task.context.device.kind == "cpu")


def become_worker(parent: int, descriptor: int) -> None:
    """Make this process a worker of *parent*, with its trail in the file *way*."""
    die_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the engine's to answer
    faulthandler.enable(2)
    trail.begin(descriptor)


def serve(requests: int, responses: int, ahead: ProbeResult | None = None) -> None:
    """
    Serve until standard input ends.

    Each line of it says where in the file *orders* one lies, and how long it is, or
    names checks of which there will be one.
    """
    with os.fdopen(responses, "wb", buffering=0) as out, os.fdopen(0, "rb") as told:
        worker = WorkerServer(out, ahead)
        for line in told:
            first, *rest = line.decode().split()
            if first == PRELOAD_COMMAND:
                preload_checks(rest)
                continue
            text = os.pread(requests, int(rest[0]), int(first))
            worker.handle(decode(text, Request))
            trail.leave("")


def preload_checks(checks: Sequence[str]) -> None:
    """Import those of *checks* that are ours; what is wrong with one shows later."""
    for name in checks:
        with suppress(HpcverifyError):
            catalog.load_check(name)


if __name__ == "__main__":
    engine, where, into, way = map(int, sys.argv[1:])
    become_worker(engine, way)
    serve(where, into)
