"""A node that is not this one: its files, and the check run on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hpcverify.check import CarryOver, CheckItem, Context
from hpcverify.model import Cause, Inventory, Remedy, Verdict
from hpcverify.processes import CompletedTool
from hpcverify.testing import INVENTORY, judge_items, make_context
from hpcverify_checks.host import CHECK, HostSeams, demand, inspect
from hpcverify_checks.host.clock import KernelClock
from hpcverify_checks.host.needs import Expectation, HostParams
from tests.telemetry.trees import grow

CPU = "sys/devices/system/cpu"
FILES: dict[str, object] = {
    "proc/meminfo": "MemTotal: 1000000 kB\nMemAvailable: 900000 kB\nSwapTotal: 0 kB",
    "proc/loadavg": "1.00 2.00 3.00 1/200 4000",
    "proc/uptime": "10000.0 10.0",
    "proc/sys/kernel/pid_max": 32768,
    "proc/sys/kernel/threads-max": 100000,
    "proc/cmdline": "BOOT_IMAGE=/vmlinuz root=/dev/sda1 ro iommu=pt",
    "proc/cpuinfo": "processor : 0\nflags : sse2",
    "proc/self/mountinfo": "20 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw",
    f"{CPU}/present": "0-3",
    f"{CPU}/online": "0-3",
    f"{CPU}/smt/control": "on",
    f"{CPU}/smt/active": 1,
    "etc/nsswitch.conf": "passwd: files systemd\ngroup: files sss",
}
"""Of a healthy node, whose mounts are those of this machine."""


def never_run(*command: object, **_: object) -> CompletedTool:
    raise AssertionError(f"{command} was started")


def in_step() -> KernelClock:
    return KernelClock(in_step=True, estimated_error=0.0001)


def a_node(root: Path, **changes: Any) -> HostSeams:
    """Make a healthy node below *root*; *changes* are those of `HostSeams`."""
    grow(root, FILES)
    given: dict[str, Any] = {"root": root, "tool": never_run, "read_clock": in_step}
    return HostSeams(**given | changes)


def a_process(root: Path, pid: int, name: str, state: str = "S", **files: object) -> None:
    """Give a node a process that started at its pid's tick."""
    fields = [state, "1", *["0"] * 17, str(pid), "0"]
    status = "voluntary_ctxt_switches:\t7\nnonvoluntary_ctxt_switches:\t1"
    given = {"stat": f"{pid} ({name}) {' '.join(fields)}", "status": status} | files
    grow(root, {f"proc/{pid}/{file}": text for file, text in given.items()})


def look(
    folder: Path,
    node: HostSeams,
    need: Expectation | None = None,
    before: list[CheckItem] | None = None,
    inventory: Inventory | None = None,
    **changes: Any,
) -> list[CheckItem]:
    """Run the check on *node*, after a run that found *before*."""
    marks = tuple(item for item in before or () if isinstance(item, CarryOver))
    given = {"carry_overs": marks} | ({"inventory": inventory} if inventory else {})
    ctx: Context = make_context(folder, **given | changes)
    params = HostParams(expect=(need,) if need else (), deadline=1)
    return list(inspect(ctx, params, node))


def list_unmet(
    found: list[CheckItem], need: Expectation, inventory: Inventory = INVENTORY
) -> list[tuple[str, str]]:
    """List the limits of *need* that *found* breaks: measurement and part, each misconfigured."""
    rules = tuple(demand(HostParams(expect=(need,)), "n1"))
    faults = judge_items(CHECK, found, inventory, overrides=rules).faults
    unmet = [f for f in faults if f.limit and f.limit.otherwise is Verdict.ERROR]
    assert {f.remedy for f in unmet} <= {Remedy.FIX_CONFIGURATION, Remedy.FIX_CHECKER}
    assert {f.cause for f in unmet} <= {Cause.MISCONFIGURED, Cause.UNMEASURED}
    return [(f.code, f.part_id) for f in unmet]
