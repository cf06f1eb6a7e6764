"""Doubles for what a test machine does not have, and values to start from."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from hpcverify.check import Context
from hpcverify.model import Device, Inventory, Part

CPU = Device(kind="cpu", part="cpu", label="CPU")

INVENTORY = Inventory(
    parts=(Part(kind="cpu", id="cpu", label="CPU", facts={"model": "test"}),),
    devices=(CPU,),
)


def context(tmp_path: Path, **changes: Any) -> Context:
    """Make the context of a check on a node with nothing but a CPU."""
    for name in ("scratch", "shared"):
        (tmp_path / name).mkdir(exist_ok=True)
    base = Context(
        node="n1",
        device=CPU,
        peers=(CPU,),
        inventory=INVENTORY,
        previous=None,
        scratch=tmp_path / "scratch",
        shared=tmp_path / "shared",
        seed=1,
    )
    return dataclasses.replace(base, **changes)
