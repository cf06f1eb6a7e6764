"""
Serve tasks in a process of its own, one after the other, until told to stop.

``python -m hpcverify.worker PARENT ORDERS REPLIES TRAIL`` is told of orders on standard
input and appends replies; PARENT is the engine's process id, the others are inherited
descriptors (`hpcverify.early.Files`). A worker stays
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
from hpcverify.check import (
    Check,
    Context,
    Judged,
    Placement,
    Skip,
    Trial,
    Unable,
    Watch,
)
from hpcverify.early import READY
from hpcverify.errors import HpcverifyError, shortage
from hpcverify.model import (
    Cause,
    Covered,
    Found,
    Inventory,
    Measurement,
    Remedy,
    Verdict,
)
from hpcverify.processes import die_with
from hpcverify.wire import (
    Holder,
    Measure,
    Observe,
    Order,
    Outcome,
    Probe,
    Prove,
    Reconcile,
    Reply,
    Settle,
    Task,
    decode,
    encode,
    reply,
)

if TYPE_CHECKING:
    from hpcverify.telemetry.sampler import Sampler


FRESH = 1.0
"""Seconds for which what was seen ahead of the order still counts as now."""


class Sight(Struct, frozen=True):
    """What the probe saw, and when."""

    when: float
    inventory: Inventory
    holders: tuple[tuple[str, int], ...]


class Worker:
    """Serves orders; the telemetry worker is the one that was told to probe."""

    def __init__(self, replies: BinaryIO, ahead: Sight | None = None) -> None:
        """Write to *replies*, unbuffered; *ahead* is what was seen before any order."""
        self._replies = replies
        self._ahead = ahead
        self._inventory = Inventory()
        self._sampler: Sampler | None = None

    def serve(self, order: Order) -> None:
        """Carry out *order*; whatever happens becomes an outcome."""
        start = time.monotonic()
        outcome = Outcome()
        try:
            for item in self._carry_out(order):
                self._say(item)
        except Skip as exc:
            outcome = Outcome(verdict=Verdict.SKIP, reason=str(exc), cause=exc.cause)
        except Unable as exc:
            outcome = Outcome(
                verdict=Verdict.ERROR,
                reason=str(exc),
                cause=exc.cause,
                remedy=exc.remedy,
            )
        except Exception as exc:  # noqa: BLE001 - the one place where a bug in a check becomes data
            outcome = _done_by_the_node(exc, order.task) or _crashed(exc)
        ended = msgspec.structs.replace(
            outcome, start=start, end=time.monotonic(), spent=not releases_memory(order)
        )
        self._say(Reply(number=order.number, outcome=ended))

    def _carry_out(self, order: Order) -> Iterator[Reply]:
        match order.task:
            case Probe() as task:
                yield self._probe(order.number, task.folder)
                if task.sample:
                    self._begin_to_sample()
            case Settle() as task:
                yield from (reply(order.number, f) for f in self._settle(task))
            case Measure() as task:
                yield from (reply(order.number, f) for f in self._measure(task))
            case Observe() as task:
                yield from (reply(order.number, f) for f in self._observe(task))
            case Reconcile() as task:
                yield from (reply(order.number, f) for f in _reconciled(task))
            case Prove() as task:
                yield from (Reply(number=order.number, trial=t) for t in _proven(task))

    def _probe(self, number: int, folder: Path | None) -> Reply:
        sight, self._ahead = self._ahead, None
        if sight is None or time.monotonic() - sight.when > FRESH:
            sight = see()
        self._inventory = sight.inventory
        if folder is not None:
            self._inventory = with_mount(sight.inventory, folder)
        held = tuple(Holder(part, pid) for part, pid in sight.holders)
        return Reply(number=number, inventory=self._inventory, holders=held)

    def _begin_to_sample(self) -> None:
        from hpcverify.telemetry import readers  # noqa: PLC0415
        from hpcverify.telemetry.sampler import Sampler  # noqa: PLC0415

        self._sampler = Sampler(readers(self._inventory))
        self._sampler.start()

    def _settle(self, task: Settle) -> Iterator[Found]:
        from hpcverify.telemetry.settling import settle  # noqa: PLC0415 - only one worker does

        if not _applies_anywhere(task):
            return
        if self._sampler is None:
            yield Covered("node", "nobody watched whether the devices had settled")
            return
        seconds, late = settle(self._sampler, task.patience)
        yield Covered("node", f"began after {seconds:.0f} s of settling")
        for part in late:
            yield Covered(part, "was still warm or at work when this began")

    def _measure(self, task: Measure) -> Iterator[Found]:
        check = catalog.load(task.name, task.packages)
        params = msgspec.convert(task.params, check.params)
        yield from map(
            partial(in_declared_unit, check), check.measure(task.context, params)
        )

    def _observe(self, task: Observe) -> Iterator[Found]:
        check = catalog.load(task.name, task.packages)
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
            start=task.start,
            end=task.end,
            samples=self._sampler.window(task.start, task.end),
        )
        once = check.placement in (Placement.PASSIVE, Placement.NODE)
        for context in task.contexts[:1] if once else task.contexts:
            found = check.observe(watch, context, params)
            yield from map(partial(in_declared_unit, check), found)

    def _say(self, item: Reply) -> None:
        line = encode(item)
        decode(line, Reply)  # what a check yields may be of the wrong types within
        self._replies.write(line)


def _done_by_the_node(exc: Exception, task: Task) -> Outcome | None:
    """Say so if *exc* is no bug, but what the node did to a check at work."""
    reason, cause = shortage(exc), Cause.NO_RESOURCES
    if isinstance(task, Measure) and not task.context.scratch.is_dir():
        reason = (
            f"the scratch directory {task.context.scratch} is gone: it was unmounted "
            "or removed while the check was at work"
        )
        cause = Cause.MISSING
    if not reason:
        return None
    return Outcome(
        verdict=Verdict.ERROR, reason=reason, cause=cause, remedy=Remedy.INSPECT
    )


def _crashed(exc: Exception) -> Outcome:
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
    applies = catalog.load(task.name, task.packages).applies
    return applies is None or any(_is_fit(applies, ctx) for ctx in task.contexts)


def _is_fit(applies: Callable[[Context], None], ctx: Context) -> bool:
    try:
        applies(ctx)
    except (Skip, Unable):
        return False
    return True


def _reconciled(task: Reconcile) -> Iterator[Found]:
    check = catalog.load(task.name, task.packages)
    found: list[Judged] = [*task.measurements, *task.findings]
    if check.reconcile is None:
        yield from found
        return
    together = check.reconcile(found, task.inventory)
    yield from map(partial(in_declared_unit, check), together)


def _proven(task: Prove) -> Iterator[Trial]:
    check = catalog.load(task.name, task.packages)
    if check.selftest is None:
        raise Skip(f"{task.name} has no selftest")
    yield from check.selftest(task.context)


def with_mount(inventory: Inventory, folder: Path) -> Inventory:
    """Add what is mounted below *folder*, which is known when the run begins."""
    # Only the telemetry worker pays for this.
    from hpcverify.telemetry.blockdev import mount_part  # noqa: PLC0415

    part = mount_part(folder, inventory)
    return msgspec.structs.replace(inventory, parts=(*inventory.parts, *part))


def see_ahead() -> Sight | None:
    """Look before any order has come; what goes wrong then is told by the order."""
    try:
        return see()
    except Exception:  # noqa: BLE001 - it will be raised again when somebody listens
        return None


def see() -> Sight:
    """List what the node is made of and who holds its GPUs."""
    # Only the telemetry worker pays for this.
    from hpcverify.telemetry.probe import look  # noqa: PLC0415

    inventory, holders = look()
    return Sight(time.monotonic(), inventory, holders)


def in_declared_unit(check: Check[Any], item: Found) -> Found:
    """Refuse a measurement in another unit than its limits are written in."""
    if isinstance(item, Measurement):
        metric = check.metric(item.name)
        if metric is not None and metric.unit != item.unit:
            raise ValueError(
                f"{item.name} was measured in {item.unit!r} and is declared in "
                f"{metric.unit!r}"
            )
    return item


def releases_memory(order: Order) -> bool:
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
    task = order.task
    return not (isinstance(task, Measure) and task.context.device.kind == "cpu")


def begin(parent: int, way: int) -> None:
    """Make this process a worker of *parent*, with its trail in the file *way*."""
    die_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the engine's to answer
    faulthandler.enable(2)
    trail.begin(way)


def serve(orders: int, replies: int, ahead: Sight | None = None) -> None:
    """
    Serve until standard input ends.

    Each line of it says where in the file *orders* one lies, and how long it is, or
    names checks of which there will be one.
    """
    with os.fdopen(replies, "wb", buffering=0) as out, os.fdopen(0, "rb") as told:
        worker = Worker(out, ahead)
        for line in told:
            first, *rest = line.decode().split()
            if first == READY:
                get_ready(rest)
                continue
            text = os.pread(orders, int(rest[0]), int(first))
            worker.serve(decode(text, Order))
            trail.leave("")


def get_ready(checks: Sequence[str]) -> None:
    """Import those of *checks* that are ours; what is wrong with one shows later."""
    for name in checks:
        with suppress(HpcverifyError):
            catalog.load(name)


if __name__ == "__main__":
    engine, where, into, way = map(int, sys.argv[1:])
    begin(engine, way)
    serve(where, into)
