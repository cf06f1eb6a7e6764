"""What the checks make of a board that works, by what was sampled of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean

import msgspec

from hpcverify.check import Context, Placement, Watch
from hpcverify.limits.specs import find_spec
from hpcverify.model import CheckItem, Device, Finding, Inventory, Measurement, Result
from hpcverify.plan.config import Site
from hpcverify.plan.suite import Step, load_suite, make_plan
from hpcverify.run.conclude import conclude
from hpcverify.run.executor import Answer
from hpcverify.run.wire import Outcome
from hpcverify.testing import CPU, make_context
from hpcverify_checks.exact.soak import StretchResult
from hpcverify_checks.ranks.board import FolderBoard
from hpcverify_checks.thermal import plan
from hpcverify_checks.thermal.plan import LoadRecord
from tests.nvml_lab.nvmllab import Lab
from tests.telemetry.nvml.test_survey import PROBE

CHECKS = ("thermal", "gpu_setup", "pcie", "nvlink", "ecc", "xid")
"""Those that watch a board at work."""
SECONDS = range(0, 121, 2)
GOOD = 0.75
"""Of what a part could do at its clock, what a good one does."""


def watched(
    lab: Lab, lines: Sequence[str], seconds: Sequence[float] = SECONDS
) -> tuple[Inventory, Watch]:
    """Probe the board that *lines* describe, and sample it at these *seconds*."""
    lab.write(*lines, "freeze_t = 0")
    found = lab.python(PROBE, 1)
    (inventory,) = msgspec.json.decode(found, type=list[Inventory])
    return inventory, lab.sampled(lines, seconds)


def judged(inventory: Inventory, watch: Watch, folder: Path) -> Iterator[Result]:
    """Judge what each check makes of *watch*, as the engine does."""
    for step in make_plan(load_suite("quick"), Site(), CHECKS).steps:
        yield _judged(step, inventory, watch, folder)


def _judged(step: Step, inventory: Inventory, watch: Watch, folder: Path) -> Result:
    assert step.check.observe is not None
    items: list[CheckItem] = []
    for ctx in _contexts(step, inventory, folder):
        if step.check.placement is Placement.ALL_DEVICES:
            _leave_account(watch, ctx)
            if step.name == "thermal":  # as its workers do once their load is over
                items.append(Measurement("rate.mean", 1e6, "GFLOP/s", ctx.device.part))
        items += step.check.observe(watch, ctx, step.params)
    if step.check.reconcile is not None:
        told = [item for item in items if isinstance(item, Measurement | Finding)]
        items = [item for item in items if item not in told]
        items += step.check.reconcile(told, inventory)
    answer = Answer(items=tuple(items), outcome=Outcome())
    return conclude(step, {"observed": answer}, inventory, lambda _n, _w: (), 0.0)


def _leave_account(watch: Watch, ctx: Context) -> None:
    """Do as the device's own worker would: at each clock as much work as a good one."""
    clocks = [s.value for p, ss in watch.group_by_part("clock") if p == ctx.device.part for s in ss]
    (part,) = (p for p in ctx.inventory.parts if p.id == ctx.device.part)
    sheet = find_spec(part)
    per_clock = (sheet and (sheet.sms or 100) * (sheet.flop_per_clk_per_sm or 0)) or 4e5
    flop = GOOD * per_clock * fmean(clocks) * 1e6 * (watch.end - watch.start)
    done = StretchResult(0.0, watch.start, watch.end, int(watch.end) * 1000, flop)
    plan.write_record(FolderBoard(ctx.shared), ctx.rank, LoadRecord((done,)))


def _contexts(step: Step, inventory: Inventory, folder: Path) -> Iterator[Context]:
    gpus = tuple(d for d in inventory.devices if d.kind == "cuda")
    devices: tuple[Device, ...] = gpus
    if step.check.placement is Placement.PASSIVE:
        devices = (CPU,)
    for device in devices:
        yield make_context(folder, inventory=inventory, device=device, peers=devices)
