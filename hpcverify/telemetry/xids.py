"""
Which Xids a GPU had in a window of time: the evidence beside an error or a hang of the GPU.

NVML reports them as they happen, on our own clock and to every user. The kernel log has the
whole line, and Xids that NVML does not report; not every user may read it. The error states
that the driver reports of GPUs name the GPU where CUDA does not.
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from msgspec import Struct

from hpcverify.check import Sample
from hpcverify.model import Finding, Inventory
from hpcverify.telemetry import kernel_log, pci, vendors
from hpcverify.telemetry.gpus import NotStartedError
from hpcverify.telemetry.kernel_log.query import CLOCK_SLACK_SECONDS
from hpcverify.telemetry.problems import ERROR_STATE_CODE
from hpcverify.telemetry.vendors import SourceFinder

# As text: on a healthy node neither is ever compiled.
ADDRESS_PATTERN = r"(?P<address>(?:[0-9A-Fa-f]{4,8}:)[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2})(?:\.[0-7])?"
XID_PATTERN = rf"NVRM: Xid \((?:PCI:)?{ADDRESS_PATTERN}[^)]*\): (?P<xid>\d+)\b,? ?(?P<rest>.*)"
XID_MARKER = b"Xid ("
XID_SAMPLE = "xid"
"""The name under which NVML's own events are sampled."""


UNCORRECTED = "ecc.uncorrected"
"""The reading that counts since the driver was loaded."""
OTHER_ACTIONS = frozenset({"none", "drain_p2p", "recover_imex"})
"""Recovery actions that are not about the GPU itself."""


class GpuXid(Struct, frozen=True, kw_only=True):
    """One Xid of the part *part_id*; *time* in seconds since 1970, if it is known."""

    part_id: str
    xid: int
    time: float | None
    line: str = ""

    @property
    def text(self) -> str:
        """The Xid as it stands beside a finding: ``Xid 94 at 03:12:05 UTC``."""
        if self.time is None:
            return f"Xid {self.xid}"
        return f"Xid {self.xid} at {datetime.fromtimestamp(self.time, UTC):%H:%M:%S} UTC"


def read_cursor(root: Path = Path("/")) -> str:
    """Read the current place in the kernel log, for `list_logged`."""
    return kernel_log.read(None, (XID_MARKER,), root).cursor


def list_logged(
    inventory: Inventory, cursor: str | None, since: float, root: Path = Path("/")
) -> list[GpuXid]:
    """List the Xids after *cursor* and, loosely, *since* (seconds since 1970)."""
    parts = pci.map_addresses(inventory.of_kind("gpu"))
    xids: list[GpuXid] = []
    for message in kernel_log.read(cursor, (XID_MARKER,), root).messages:
        match = re.match(XID_PATTERN, message.text)
        late = message.time is None or message.time >= since - CLOCK_SLACK_SECONDS
        if match and late:
            address = pci.normalize_address(f"{match['address']}.0")
            part_id = parts.get(address, address)
            xids.append(
                GpuXid(part_id=part_id, xid=int(match["xid"]), time=message.time, line=message.text)
            )
    return xids


def list_sampled(samples: Sequence[Sample], now: float) -> Iterator[GpuXid]:
    """List the Xids among *samples*, on whose clock it is *now*."""
    ahead = time.time() - now
    for sample in samples:
        if sample.name == XID_SAMPLE:
            yield GpuXid(part_id=sample.part_id, xid=int(sample.value), time=sample.t + ahead)


def merge_xids(
    sampled: Collection[GpuXid], logged: Collection[GpuXid], parts: Collection[str]
) -> list[GpuXid]:
    """Return each Xid of *parts* once: from the log, which has the line, or else from NVML."""
    merged: dict[tuple[str, int], GpuXid] = {}
    for event in (*logged, *sampled):
        if event.part_id in parts:
            merged.setdefault((event.part_id, event.xid), event)
    return list(merged.values())


def list_error_states(
    inventory: Inventory, find: SourceFinder = vendors.find_source
) -> Iterator[Finding]:
    """
    List the GPUs that need a reset or a reboot; if there are none, those with memory errors.

    The count of uncorrected errors is since the driver was loaded, and may be of last month:
    it says nothing where the driver asks for an action on another GPU, or where one of them
    is in trouble and cannot answer.
    """
    source = find(vendors.name_vendor(inventory, None))
    if source is None:
        return
    try:
        memory, recovery = source.read_memory_errors(), source.read_recovery()
    except NotStartedError:
        return
    actions = {
        part_id: state.action.replace("_", " ")
        for part_id, state in recovery.answers.items()
        if state.action is not None and state.action not in OTHER_ACTIONS
    }
    for part_id, action in actions.items():
        yield Finding(ERROR_STATE_CODE, part_id, f"the driver requests {action}")
    if actions or memory.findings:
        return
    for part_id, readings in memory.answers.items():
        count = sum(r.value for r in readings if r.name == UNCORRECTED)
        if count:
            text = f"the driver counts {count:.0f} uncorrected memory errors since it was loaded"
            yield Finding(ERROR_STATE_CODE, part_id, text)
