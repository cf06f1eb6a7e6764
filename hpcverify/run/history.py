"""What earlier runs of a node, and earlier rounds of this one, know about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec
from msgspec import Struct

from hpcverify.limits.resolve import PastValues
from hpcverify.model import CarryOver, Device, Inventory, Result, Verdict


class NodeHistory(Struct, frozen=True, kw_only=True):
    """What is known about the node from its earlier runs."""

    previous: Inventory | None = None
    past_values: Callable[[str], PastValues] = lambda _check: lambda _name, _where: ()
    carry_overs: Mapping[str, tuple[CarryOver, ...]] = {}
    """What each check carries over from its last run."""
    run_count: int = 0
    """Each round counts as one."""
    accepts_parts: bool = False
    """Whether this round accepts what parts lost since earlier runs."""


def extend_history(
    history: NodeHistory, results: Sequence[Result], inventory: Inventory
) -> NodeHistory:
    """Add a round to *history*; *inventory* is the new reference if the check accepted it."""
    marks = dict(history.carry_overs)
    for r in results:
        known = (*marks.get(r.check, ()), *r.marks)
        marks[r.check] = tuple({(m.name, m.part_id): m for m in known}.values())
    verdicts = [r.verdict for r in results if r.check == "inventory"]
    previous = history.previous
    if any(verdict in (Verdict.PASS, Verdict.WARN) for verdict in verdicts):
        previous = inventory
    elif not verdicts:
        previous = _merge_inventories(inventory, history.previous)
    return NodeHistory(
        previous=previous,
        past_values=history.past_values,
        carry_overs=marks,
        run_count=history.run_count + 1,
    )


def _merge_inventories(inventory: Inventory, previous: Inventory | None) -> Inventory:
    if previous is None:
        return inventory
    missed = list_missing_devices(inventory, previous)
    gone = {device.part for device in missed} - {part.id for part in inventory.parts}
    return msgspec.structs.replace(
        inventory,
        parts=(*inventory.parts, *(p for p in previous.parts if p.id in gone)),
        devices=(*inventory.devices, *missed),
    )


def list_missing_devices(inventory: Inventory, previous: Inventory) -> tuple[Device, ...]:
    """List the devices of *previous* that are gone and have not been replaced."""
    here = {device.part for device in inventory.devices}
    taken = {_find_pci_address(inventory, part) for part in here} - {""}
    return tuple(
        device
        for device in previous.devices
        if device.part not in here and _find_pci_address(previous, device.part) not in taken
    )


def _find_pci_address(inventory: Inventory, part: str) -> str:
    gpu = inventory.find_part(part)
    return gpu.facts.get("pci_address", "") if gpu else ""
