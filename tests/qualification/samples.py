"""Runs of steps, and what a qualification says of them: made up, in the shape of real ones."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from hpcverify.model import Device, Finding, Inventory, Measurement, Part, Result, Run, Verdict

STARTED = datetime(2026, 11, 22, 9, 0, tzinfo=UTC)
GPUS = tuple(
    Part(
        "gpu",
        f"GPU-{i}",
        f"GPU {i} (…000{i})",
        {
            "name": "NVIDIA H100 80GB HBM3",
            "pci_device_id": "2330",
            "driver": "565.57.01",
            "serial": f"165432200{i}187",
        },
    )
    for i in range(4)
)
INVENTORY = Inventory(
    parts=(Part("system", "node", "node", {"product": "PowerEdge XE9680"}), *GPUS),
    devices=tuple(Device("cuda", gpu.id, gpu.label) for gpu in GPUS),
)


def measure_all(name: str, values: Sequence[float], unit: str) -> tuple[Measurement, ...]:
    return tuple(Measurement(name, v, unit, g.id) for v, g in zip(values, GPUS, strict=False))


def a_result(check: str, *found: Measurement | Finding, **changes: Any) -> Result:
    """Make the result of a check that passed, or as *changes* say."""
    fields: dict[str, Any] = {
        "verdict": Verdict.PASS,
        "measurements": tuple(item for item in found if isinstance(item, Measurement)),
        "findings": tuple(item for item in found if isinstance(item, Finding)),
        **changes,
    }
    return Result(check=check, **fields)


def a_run(*results: Result, **changes: Any) -> Run:
    fields: dict[str, Any] = {
        "id": "20261122-090000-abcdef",
        "node": "node",
        "suite": "products",
        "started": STARTED,
        "seconds": 60.0,
        "verdict": max((r.verdict for r in results), default=Verdict.PASS),
        "complete": True,
        "inventory": INVENTORY,
        "results": results,
        **changes,
    }
    return Run(**fields)
