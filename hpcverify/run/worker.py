"""
A worker process: it runs one task after the other until its standard input ends.

``python -m hpcverify.run.worker PARENT REQUESTS RESPONSES BREADCRUMB DONE`` learns of
requests on standard input and appends responses. PARENT is the engine's process id, the others are
inherited descriptors (`hpcverify.run.process.WorkerFiles`). A worker stays alive between
checks, so that torch is imported once for each device and not for each check. It ends
when the engine ends.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec

from hpcverify import breadcrumb
from hpcverify.check import Check, Context, JudgedItem, Placement, Skip, Trial, Unable, Watch
from hpcverify.errors import BrokenCheckError, HpcverifyError, explain_shortage
from hpcverify.model import (
    Cause,
    CheckItem,
    Coverage,
    Fact,
    Finding,
    Inventory,
    Measurement,
    Remedy,
    Verdict,
)
from hpcverify.plan import catalog
from hpcverify.processes import die_with_parent
from hpcverify.run import wire

if TYPE_CHECKING:
    from hpcverify.telemetry.sampler import Sampler


MAX_PROBE_AGE_SECONDS = 1.0
"""Seconds for which a probe from before the request still counts as current."""


class WorkerServer:
    """Runs tasks; the telemetry worker is the one that gets the `Probe`."""

    def __init__(self, responses: BinaryIO, ahead: wire.ProbeResult | None = None) -> None:
        """Write to *responses*, unbuffered; *ahead* was probed before any request."""
        self._responses = responses
        self._ahead = ahead
        self._inventory = Inventory()
        self._sampler: Sampler | None = None
        self._log_cursor: str | None = None
        """Where the kernel log ended when the sampling began."""
        self._unowned: dict[str, int] = {}
        """Memory of GPUs that nobody owned when the sampling began."""

    def handle(self, request: wire.Request) -> None:
        """Run *request*; anything that happens becomes an outcome."""
        start = time.monotonic()
        outcome = wire.Outcome()
        try:
            for item in self._execute(request.task):
                line = wire.encode_response(request.number, item)
                wire.decode_response(line)  # a check may yield fields of the wrong types
                self._responses.write(line)
            if "torch" in sys.modules:
                from hpcverify.run.cuda_failure import raise_pending_error  # noqa: PLC0415

                raise_pending_error(request.task)
        except Skip as exc:
            outcome = wire.Outcome(verdict=Verdict.SKIP, reason=str(exc), cause=exc.cause)
        except Unable as exc:
            outcome = wire.Outcome(
                verdict=Verdict.ERROR,
                reason=str(exc),
                cause=exc.cause,
                remedy=exc.remedy,
                code=exc.code,
                fix=exc.fix,
            )
        except BrokenCheckError as exc:
            outcome = wire.Outcome(
                verdict=Verdict.ERROR,
                reason=str(exc),
                cause=Cause.CHECKER,
                remedy=Remedy.FIX_CHECKER,
            )
        except (Exception, SystemExit) as exc:  # noqa: BLE001 - here a bug in a check becomes data
            # A prolog on a healthy node does not pay for this.
            from hpcverify.run.cuda_failure import explain_cuda_failure  # noqa: PLC0415

            failure = explain_cuda_failure(exc, request.task)
            if failure is not None:
                outcome = failure.outcome
                for finding in failure.items:
                    self._responses.write(wire.encode_response(request.number, finding))
            else:
                outcome = _explain_node_failure(exc, request.task) or _build_crash_outcome(
                    exc, request.task
                )
        # What is broken is not asked to free anything: it may never answer.
        spent = outcome.is_worker_spent or not release_memory(request.task)
        ended = msgspec.structs.replace(
            outcome, start=start, end=time.monotonic(), is_worker_spent=spent
        )
        self._responses.write(wire.encode_response(request.number, ended))

    def _execute(self, task: wire.Task) -> Iterable[wire.Item]:
        if isinstance(task, wire.Probe):
            return self._probe(task)
        if isinstance(task, wire.FindXids):
            return self._find_xids(task)
        check = catalog.load_check(task.name, task.packages)
        items: Iterable[CheckItem | Trial]
        match task:
            case wire.Settle():
                items = self._settle(check, task)
            case wire.Measure():
                items = check.measure(task.context, msgspec.convert(task.params, check.params))
            case wire.ReadBmc():
                items = _read_bmc(check, task)
            case wire.Observe():
                items = self._observe(check, task)
            case wire.Reconcile():
                found: list[JudgedItem] = [*task.measurements, *task.findings]
                items = check.reconcile(found, task.inventory) if check.reconcile else found
            case wire.RunSelftest():
                items = _run_selftest(check, task)
        items = map(partial(require_declared_unit, check), items)
        if isinstance(task, wire.Measure) and task.packages != (catalog.BUILTIN_PACKAGE,):
            return map(partial(require_sound_item, check, task.context), items)
        return items

    def _probe(self, task: wire.Probe) -> Iterator[wire.ProbeResult]:
        probed, self._ahead = self._ahead, None
        if probed is None or time.monotonic() - probed.probed_at > MAX_PROBE_AGE_SECONDS:
            probed = probe_hardware()
        if task.folder is not None:
            # Only the telemetry worker pays for this import.
            from hpcverify.telemetry.blockdev import describe_mount  # noqa: PLC0415

            parts = (*probed.inventory.parts, *describe_mount(task.folder, probed.inventory))
            mounted = msgspec.structs.replace(probed.inventory, parts=parts)
            probed = msgspec.structs.replace(probed, inventory=mounted)
        self._inventory = probed.inventory
        yield probed
        if task.sample and self._sampler is None:
            self._start_sampling()

    def _start_sampling(self) -> None:
        from hpcverify.telemetry import make_readers  # noqa: PLC0415
        from hpcverify.telemetry.sampler import Sampler  # noqa: PLC0415

        self._unowned = self._measure_unowned()
        self._sampler = Sampler(make_readers(self._inventory))
        self._sampler.start()
        if self._inventory.of_kind("gpu"):
            from hpcverify.telemetry.xids import read_cursor  # noqa: PLC0415 - the log of a GPU

            with suppress(Unable):  # the answer about Xids says so
                self._log_cursor = read_cursor()

    def _find_xids(self, task: wire.FindXids) -> Iterator[Finding | Coverage]:
        from hpcverify.telemetry import xids  # noqa: PLC0415 - a healthy node is never asked

        now = time.monotonic()
        samples = self._sampler.read_window(task.start, task.end) if self._sampler else ()
        logged: list[xids.GpuXid] = []
        try:
            since = time.time() - (now - task.start)
            logged = xids.list_logged(self._inventory, self._log_cursor, since)
        except Unable as exc:
            yield Coverage("node", str(exc))
        for event in xids.merge_xids([*xids.list_sampled(samples, now)], logged, task.parts):
            evidence = {"line": event.line} if event.line else {}
            yield Finding("xid", event.part_id, event.text, evidence, {"xid": event.xid})
        if task.with_error_states:
            states = xids.list_error_states(self._inventory)
            yield from (state for state in states if state.part_id in task.parts)

    def _settle(self, check: Check[Any], task: wire.Settle) -> Iterator[Coverage | Finding]:
        from hpcverify.telemetry.settling import await_release, settle  # noqa: PLC0415 - only one worker does

        if task.released:
            yield from await_release(
                task.released, self._unowned, self._measure_unowned, task.release_timeout
            )
        if not task.timeout:
            return
        if applies := check.applies:
            applicable: list[Context] = []
            for context in task.contexts:
                with suppress(Skip, Unable):
                    applies(context)
                    applicable.append(context)
            if not applicable:
                return
        if self._sampler is None:
            yield Coverage("node", "settling of the devices was not observed")
            return
        seconds, late = settle(self._sampler, task.timeout)
        yield Coverage("node", f"began after {seconds:.0f} s of settling")
        for part in late:
            yield Coverage(part, "was still warm or busy when this began")

    def _measure_unowned(self) -> dict[str, int]:
        if not any("driver" in gpu.facts for gpu in self._inventory.of_kind("gpu")):
            return {}
        from hpcverify.telemetry import settling, vendors  # noqa: PLC0415 - only one worker does

        source = vendors.find_source(vendors.name_vendor(self._inventory))
        return settling.measure_unowned(source.read_setup) if source else {}

    def _observe(self, check: Check[Any], task: wire.Observe) -> Iterator[CheckItem]:
        if check.observe is None:
            return
        if self._sampler is None or not self._sampler.reaches(task.end):
            raise Unable(
                "the telemetry stopped during the check, so the rest cannot be judged",
                Cause.CRASHED,
                Remedy.RERUN,
            )
        params = msgspec.convert(task.params, check.params)
        watch = Watch(
            start=task.start, end=task.end, samples=self._sampler.read_window(task.start, task.end)
        )
        once = check.placement in (Placement.PASSIVE, Placement.NODE)
        for context in task.contexts[:1] if once else task.contexts:
            yield from check.observe(watch, context, params)


def _explain_node_failure(exc: BaseException, task: wire.Task) -> wire.Outcome | None:
    reason, cause = explain_shortage(exc), Cause.NO_RESOURCES
    if isinstance(task, wire.Measure) and not task.context.scratch.is_dir():
        reason = (
            f"the scratch directory {task.context.scratch} was unmounted or "
            "removed while the check ran"
        )
        cause = Cause.MISSING
    if not reason:
        return None
    return wire.Outcome(verdict=Verdict.ERROR, reason=reason, cause=cause, remedy=Remedy.INSPECT)


def _build_crash_outcome(exc: BaseException, task: wire.Task) -> wire.Outcome:
    import traceback  # noqa: PLC0415 - hardly ever, and it takes 4 ms

    place = ""
    if not isinstance(task, wire.Probe | wire.FindXids):
        modules = (f"{package}.{task.name}" for package in task.packages)
        module = next((name for name in modules if name in sys.modules), None)
        if module is not None and not _is_ours(module):
            place = f" (in {catalog.find_place(module, exc)})"
    return wire.Outcome(
        verdict=Verdict.ERROR,
        reason=f"the check raised {type(exc).__name__}: {exc}{place}",
        cause=Cause.CRASHED,
        remedy=Remedy.FIX_CHECKER,
        trace="".join(traceback.format_exception(exc)),
    )


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] == catalog.BUILTIN_PACKAGE


def _run_selftest(check: Check[Any], task: wire.RunSelftest) -> Iterator[Trial]:
    if check.selftest is None:
        raise Skip(f"{task.name} has no selftest")
    return check.selftest(task.context)


def _read_bmc(check: Check[Any], task: wire.ReadBmc) -> Iterator[CheckItem]:
    from hpcverify.telemetry.redfish.walk import read_chassis  # noqa: PLC0415 - of the controller

    if check.interpret is None:
        raise Skip(f"{task.name} cannot be read from outside the node")
    reading = read_chassis(task.access)
    for note in reading.notes:
        yield Coverage("node", note)
    log = msgspec.structs.replace(reading.chassis.log, is_reported=task.is_log_reported)
    if task.is_log_reported:
        yield Coverage("node", "the node itself reports the event log")
    chassis = msgspec.structs.replace(reading.chassis, log=log)
    yield from check.interpret(chassis, task.context, msgspec.convert(task.params, check.params))
    yield from (Fact(name, value) for name, value in reading.facts.items())
    if reading.unreadable:
        raise Unable(
            f"the BMC at {task.access.address} did not return {', '.join(reading.unreadable)}. "
            "Fix: reset it if this persists until tomorrow",
            Cause.MISCONFIGURED,
            Remedy.INSPECT,
        )


def probe_ahead() -> wire.ProbeResult | None:
    """List the hardware before any request; None if that raises."""
    try:
        return probe_hardware()
    except Exception:  # noqa: BLE001 - the request will raise it again
        return None


def probe_hardware() -> wire.ProbeResult:
    """List the node's hardware and the processes on its GPUs."""
    # Only the telemetry worker pays for this.
    from hpcverify.telemetry.probe import probe_with_holders  # noqa: PLC0415

    inventory, holders = probe_with_holders()
    held = tuple(wire.GpuHolder(part, pid) for part, pid in holders)
    return wire.ProbeResult(inventory, held, time.monotonic())


def require_sound_item(
    check: Check[Any], ctx: Context, item: CheckItem | Trial
) -> CheckItem | Trial:
    """Refuse an item of a site's check with a wrong type, or about an unknown part."""
    if _is_ours(check.measure.__module__) or not isinstance(item, CheckItem):
        return item  # what is no item is refused when it is encoded
    msgspec.convert(msgspec.to_builtins(item), type(item))
    if not isinstance(item, Finding) or item.part_id == "node" or item.part_id.startswith("/"):
        return item
    inventories = filter(None, (ctx.inventory, ctx.previous))
    if not any(inventory.find_part(item.part_id) for inventory in inventories):
        raise ValueError(
            f"{item!r}: the node has no part {item.part_id!r}; is it Finding(code, where, text)?"
        )
    return item


def require_declared_unit(check: Check[Any], item: CheckItem | Trial) -> CheckItem | Trial:
    """Refuse a measurement in a unit that its check did not declare."""
    if isinstance(item, Measurement):
        metric = check.find_metric(item.name)
        if metric is not None and metric.unit != item.unit:
            raise ValueError(
                f"{item.name} was measured in {item.unit!r} and is declared in {metric.unit!r}"
            )
    return item


def release_memory(task: wire.Task) -> bool:
    """Free the memory of *task*; False if only ending the process can."""
    torch = sys.modules.get("torch")
    if torch is None:  # collecting takes as long as reading eight GPUs
        return True
    gc.collect()
    if not torch.cuda.is_initialized():
        return True
    try:
        torch.cuda.empty_cache()
        torch.accelerator.empty_host_cache()  # pinned, which the other does not free
    except RuntimeError:
        return False
    return not (isinstance(task, wire.Measure) and task.context.device.kind == "cpu")


def become_worker(parent: int, descriptor: int) -> None:
    """Make this process a worker of *parent*, which keeps its breadcrumb in *descriptor*."""
    die_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the engine answers Ctrl-C
    faulthandler.enable(2)
    breadcrumb.begin(descriptor)


def serve(requests: int, responses: int, done: int, ahead: wire.ProbeResult | None = None) -> None:
    """Serve requests, one (offset, length) per line of stdin; raise *done* after each."""
    with os.fdopen(responses, "wb", buffering=0) as out, os.fdopen(0, "rb") as lines:
        worker = WorkerServer(out, ahead)
        for line in lines:
            offset, length = map(int, line.split())
            text = os.pread(requests, length, offset)
            worker.handle(wire.decode_request(text))
            breadcrumb.leave("")
            os.eventfd_write(done, 1)


def preload_checks(checks: Iterable[str]) -> None:
    """Import those of *checks* that are ours; an error in one shows later."""
    for name in checks:
        with suppress(HpcverifyError):
            catalog.load_check(name)


if __name__ == "__main__":
    engine, incoming, outgoing, crumb, counter = map(int, sys.argv[1:])
    become_worker(engine, crumb)
    serve(incoming, outgoing, counter)
