"""Nodes with GPUs of any part, and how what is found on their links is judged."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from hpcverify.check import Context, Sample, Watch
from hpcverify.limits.specs import Spec, load_specs
from hpcverify.model import (
    CarryOver,
    CheckItem,
    Device,
    Finding,
    Inventory,
    Part,
    Result,
    Verdict,
)
from hpcverify.testing import CPU, make_context
from tests.doubles import read_items
from tests.limits.physics import read_number
from tests.nvml_lab.nvmllab import Lab
from tests.telemetry.trees import grow

BY_KEY = {sheet.key: sheet for sheet in load_specs()}
H100 = BY_KEY["h100-sxm5-80gb"]


def ids(count: int) -> list[str]:
    return [f"GPU-{i}" for i in range(count)]


def address(index: int) -> str:
    return f"0000:{0x10 + index:02x}:00.0"


def gpu(sheet: Spec | None, index: int) -> Part:
    """Describe one GPU; one of no *sheet* is of a part that nobody knows."""
    facts = {"name": "unknown"}
    if sheet is not None:
        facts = {
            "name": sheet.name,
            "pci_device_id": sheet.pci_device_ids[0],
            "compute_capability": sheet.compute_capability,
            "pcie_generation": str(int(read_number(sheet, "pcie_gen") or 5)),
            "pcie_width": str(sheet.pcie_width),
        }
    facts |= {"driver": "580.1", "pci_address": address(index)}
    return Part("gpu", ids(index + 1)[index], f"GPU {index}", facts)


def inventory(sheet: Spec | None, count: int) -> Inventory:
    parts = tuple(gpu(sheet, i) for i in range(count))
    devices = tuple(Device("cuda", p.id, p.label) for p in parts)
    return Inventory(parts=parts, devices=(CPU, *devices))


def node(tmp_path: Path, sheet: Spec | None = H100, count: int = 8, **changes: Any) -> Context:
    return make_context(tmp_path, inventory=inventory(sheet, count), **changes)


def clock(root: Path, seconds: float, boot: str = "boot-1") -> Path:
    """Say when it is, in seconds from the node's start."""
    return grow(
        root, {"proc/uptime": f"{seconds} {seconds}", "proc/sys/kernel/random/boot_id": boot}
    )


def accused(judged: Result, ctx: Context) -> list[str]:
    """List the GPUs that the verdict is about."""
    worst = [c for c in judged.faults if c.verdict is judged.verdict]
    ids = {c.part_id for c in worst if c.part_kind == "gpu"}
    return sorted(ctx.inventory.list_aliases(part_id)[-1] for part_id in ids)


def passes(judged: Result) -> bool:
    """Whether there is nothing to say; pytest shows the faults if there are some."""
    assert judged.faults == ()
    return judged.verdict is Verdict.PASS


def marks(found: Iterable[CheckItem]) -> tuple[CarryOver, ...]:
    return tuple(f for f in found if isinstance(f, CarryOver))


def codes(found: Iterable[CheckItem]) -> set[str]:
    return {f.code for f in found if isinstance(f, Finding)}


def series(name: str, part_id: str, values: Sequence[float]) -> list[Sample]:
    """Make samples of one a second."""
    return [Sample(name, v, "", part_id, float(t)) for t, v in enumerate(values)]


def watch(*tracks: list[Sample]) -> Watch:
    samples = sorted((s for track in tracks for s in track), key=lambda s: s.t)
    return Watch(start=0.0, end=samples[-1].t if samples else 0.0, samples=samples)


ON_LAB = """
import pathlib, sys
import msgspec
from hpcverify.model import CarryOver
from hpcverify.telemetry import nvml
from hpcverify.telemetry.probe import probe
from hpcverify.run.wire import encode_response
from hpcverify_checks import nvlink, pcie
from hpcverify.testing import make_context
root = pathlib.Path(sys.argv[1])
inventory = probe(root)
print(msgspec.json.encode(inventory).decode())
marks = msgspec.json.decode(sys.argv[3], type=tuple[CarryOver, ...])
ctx = make_context(root.parent, inventory=inventory, carry_overs=marks)
if sys.argv[2] == "pcie":
    found = pcie.report_links(nvml.get_source().read_pcie(), ctx, root)
else:
    params = nvlink.NvlinkParams()
    found = nvlink.report_linkage(nvml.get_source().read_links(), ctx, params, root)
for item in found:
    print(encode_response(1, item).decode(), end="")
"""


def on_lab(lab: Lab, check: str, told: Iterable[CarryOver] = ()) -> tuple[Context, list[CheckItem]]:
    """Measure a lab's GPUs, with the marks of the last run; give the context, too."""
    marked = msgspec.json.encode(list(told)).decode()
    first, *rest = lab.python(ON_LAB, check, marked).splitlines()
    ctx = make_context(lab.folder, inventory=msgspec.json.decode(first, type=Inventory))
    return ctx, read_items(rest)
