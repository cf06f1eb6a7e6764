"""How long a step should take on a healthy node, by what its checks estimate."""

from __future__ import annotations

from pathlib import Path

from hpcverify.check import Context, Skip, Unable
from hpcverify.model import Device, Inventory
from hpcverify.plan.suite import Plan, Step
from hpcverify.run.gather import assign_workers, estimate_seconds, select_devices

NOWHERE = Path("/nonexistent")
"""Estimates compute, and read nothing."""


def estimate_plan(plan: Plan, inventory: Inventory, device_kind: str) -> float:
    """Add up the checks of one round of *plan*, with the time to settle, in seconds."""
    chosen = select_devices(inventory, device_kind)
    active = [step for step in plan.steps if step.is_active]
    settling = max(0, len(active) - 1) * plan.settle
    return settling + sum(estimate_step(step, chosen) for step in active)


def estimate_step(step: Step, inventory: Inventory) -> float:
    """Add up the phases of a check; in each the slowest worker counts."""
    phases = assign_workers(step.check.placement, inventory.devices)
    return sum(
        max(_estimate_on(step, device, inventory) for device in phase.values()) for phase in phases
    )


def _estimate_on(step: Step, device: Device, inventory: Inventory) -> float:
    ctx = Context(
        node="",
        device=device,
        peers=tuple(d for d in inventory.devices if d.kind == device.kind),
        inventory=inventory,
        previous=None,
        scratch=NOWHERE,
        shared=NOWHERE,
        seed=0,
    )
    try:
        if step.check.applies:
            step.check.applies(ctx)
        return estimate_seconds(step, [ctx]) or 0.0
    except (Skip, Unable):
        return 0.0
