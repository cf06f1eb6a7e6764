"""
What a job needs of its node besides the GPUs.

Mounts that are there and answer, room to write, memory, cores, processes, settings,
services, the name service, the clock, and the health of every disk. By default it tells
what is wrong on any machine: a hung mount, a full or failed file system, a socket that is
gone, a disk that predicts its own failure. What only a site can know, such as which file
systems its jobs need, it lists in ``params.host.expect``.

What may never be answered (a file system, the name service, a disk) is asked in a process
that can be left behind (`apart`), within a deadline. An expectation that is not met is an
ERROR, misconfigured: no part need be bad. Only what the hardware lost or says of itself
fails: cores, sockets, disks, a file system that the kernel turned read-only.

What takes one look to be wrong is reported at once. A process that waits, or was left over,
is reported when two runs saw it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from msgspec import Struct

from hpcverify.check import (
    LISTED,
    NOT_SET_UP,
    Cause,
    Check,
    CheckItem,
    Context,
    Finding,
    FindingRule,
    Measurement,
    Metric,
    Placement,
    Remedy,
    Rule,
    Verdict,
    warn_outside,
)
from hpcverify.processes import ToolRunner, run_tool
from hpcverify.telemetry.blockdev import list_mounts
from hpcverify.telemetry.memory import read_memory
from hpcverify_checks.common.disk_health import SMART_FINDINGS, SMART_METRICS, SMART_RULES
from hpcverify_checks.common.mounts import MOUNT_MISSING
from hpcverify_checks.host.clock import KernelClockReader, measure_clock, read_kernel_clock
from hpcverify_checks.host.disks import measure_disks
from hpcverify_checks.host.mounts import (
    ERRORS,
    LEFT_BEHIND,
    READ_ONLY,
    WRITABLE,
    measure_mounts,
)
from hpcverify_checks.host.needs import Expectation, HostParams, names_node
from hpcverify_checks.host.processes import (
    LEFT_OVER,
    STUCK,
    compare_processes,
    list_tasks,
    measure_processes,
    report_shared_memory,
)
from hpcverify_checks.host.resources import (
    compare_settings,
    measure_cores,
    measure_memory,
)
from hpcverify_checks.host.services import compare_files, compare_services, measure_names

LEFT_OVER_SHARE = 0.01
"""The share of the memory from which files of users who are gone, in /dev/shm, are reported."""
SHARED_MEMORY = "dev/shm"
LEAST_SHARE = 0.25
"""The share of the deadline for names and disks where mounts or daemons hang."""


class HostSeams(Struct, frozen=True):
    """Where the check looks: a test gives another node."""

    root: Path = Path("/")
    tool: ToolRunner = run_tool
    read_clock: KernelClockReader = read_kernel_clock


def measure(ctx: Context, params: HostParams) -> Iterator[CheckItem]:
    """Report on this node, by default and as the site expects."""
    yield from inspect(ctx, params, HostSeams())


def inspect(ctx: Context, params: HostParams, node: HostSeams) -> Iterator[CheckItem]:
    """Report on *node*, the quick and the certain first."""
    needs = [need for need in params.expect if names_node(need.nodes, ctx.node)]
    shown: list[CheckItem] = []
    for item in _measure_all(ctx, params, node, needs):
        shown.append(item)
        yield item
    yield from _compare_bounds(needs, shown)


def _measure_all(
    ctx: Context, params: HostParams, node: HostSeams, needs: list[Expectation]
) -> Iterator[CheckItem]:
    root, seconds = node.root, params.deadline
    began = time.monotonic()
    memory = read_memory(root)
    tasks = list_tasks(root)
    yield from measure_cores(ctx, root)
    yield from measure_memory(memory)
    yield from measure_processes(tasks, root, ctx.recall(STUCK), ctx.recall(LEFT_OVER))
    least = memory.get("MemTotal", 0.0) * LEFT_OVER_SHARE
    if least and memory.get("Shmem", least) >= least:  # else there are no files to look for
        yield from report_shared_memory(root / SHARED_MEMORY, tasks, root, least, seconds)
    for need in needs:
        yield from compare_settings(need, root)
        yield from compare_processes(need.processes, tasks, root)
        yield from compare_services(need.services, root, node.tool, seconds)
    wanted = min((n.clock_offset for n in needs if n.clock_offset), default=0.0)
    names = [task.name for task in tasks]
    yield from measure_clock(names, node.read_clock, node.tool, wanted, seconds)
    hung: list[str] = []
    for item in measure_mounts(
        list_mounts(root),
        [mount for need in needs for mount in need.mounts],
        [space for need in needs for space in need.space],
        ctx.recall(LEFT_BEHIND),
        writable=ctx.recall(WRITABLE) if ctx.previous else None,  # or --accept-parts
        read_only=ctx.recall(READ_ONLY),
        errors=ctx.recall(ERRORS),
        seconds=seconds,
        root=root,
        scratch=ctx.scratch,
    ):
        yield item
        if isinstance(item, Finding) and item.code in {"mount_hung", "fuse_hung"}:
            hung.append(item.part_id)
    yield from compare_files([file for need in needs for file in need.files], seconds, hung)
    users = [user for need in needs for user in need.users]
    hosts = [host for need in needs for host in need.hosts]
    # What hung cost time already: the rest gets less, so that the prolog's budget holds it all.
    spent = time.monotonic() - began
    seconds = max(seconds - spent / 2, seconds * LEAST_SHARE)
    yield from measure_names(users, hosts, root, seconds)
    smartctl = partial(node.tool, package="smartmontools")
    yield from measure_disks(ctx, root / "dev", smartctl, seconds=seconds, smartctl=params.smartctl)


def _compare_bounds(needs: list[Expectation], shown: list[CheckItem]) -> Iterator[Finding]:
    values = {m.name: m for m in shown if isinstance(m, Measurement)}
    for need in needs:
        for name, bound in need.bounds.items():
            measured = values.get(name)
            if measured is None or measured.value is None:
                text = f"{name} is not measured on this node: take it out of bounds"
                yield Finding("outside_bounds", "node", text)
            elif not bound.admits(measured.value):
                value = f"{measured.value:.6g} {measured.unit}".rstrip()
                text = f"{name} is {value}, the site needs {bound}: correct the node, or the site"
                yield Finding("outside_bounds", measured.part_id, f"{text}'s params.host.expect")


NHC_SOURCE = "NHC's sample configuration"

CHECK = Check(
    summary="what a job needs of the host: mounts, space, memory, cores, services, clock, disks",
    measure=measure,
    params=HostParams,
    metrics={
        "sockets": Metric(unit="", worse="low", meaning="processors"),
        "cores": Metric(unit="", worse="low", meaning="physical cores"),
        "threads": Metric(unit="", worse="low", meaning="logical CPUs that are online"),
        "numa_nodes": Metric(unit="", worse="neither", meaning="NUMA nodes with cores and memory"),
        "memory.total": Metric(unit="GiB", worse="low", meaning="memory that the kernel manages"),
        "memory.available": Metric(unit="GiB", worse="low", meaning="memory that a job can have"),
        "memory.available_share": Metric(
            unit="ratio", worse="low", meaning="the same as a share of all"
        ),
        "swap.total": Metric(unit="GiB", worse="neither", meaning="swap"),
        "swap.free": Metric(unit="GiB", worse="neither", meaning="swap that is not used"),
        "load.*": Metric(
            unit="", worse="neither", meaning="tasks that run or wait, mean of 1, 5 and 15 minutes"
        ),
        "processes.zombies": Metric(
            unit="", worse="high", meaning="processes that were not reaped"
        ),
        "processes.share": Metric(
            unit="ratio", worse="high", meaning="threads of all that there may be"
        ),
        "processes.stuck": Metric(
            unit="", worse="high", meaning="in uninterruptible sleep for over 120 s"
        ),
        "processes.left_over": Metric(
            unit="", worse="high", meaning="processes of Slurm jobs that are over"
        ),
        "clock.error": Metric(
            unit="s", worse="neither", meaning="error of the clock as reported to the kernel"
        ),
        "clock.offset": Metric(
            unit="s", worse="neither", meaning="absolute offset, by the time daemon"
        ),
        "space.size": Metric(unit="GiB", worse="neither", meaning="size of a file system"),
        "space.free": Metric(unit="GiB", worse="neither", meaning="free for users"),
        "space.used": Metric(unit="GiB", worse="neither", meaning="used"),
        "space.free_share": Metric(
            unit="ratio", worse="neither", meaning="free for users, of what they can have"
        ),
        "inodes.free_share": Metric(unit="ratio", worse="neither", meaning="inodes that are free"),
        **SMART_METRICS,
        "smart.*.delta": Metric(
            unit="", worse="high", meaning="growth of a count since the last run"
        ),
    },
    rules={
        "space.free_share": warn_outside(low=0.03, source=f"{NHC_SOURCE}: check_fs_free / 3%"),
        "inodes.free_share": warn_outside(low=0.01, source="hpcverify default: nearly none left"),
        "memory.available_share": warn_outside(low=0.01, source="hpcverify default: nearly none"),
        "processes.share": warn_outside(high=0.9, source="hpcverify default: nearly all taken"),
        "clock.offset": Rule(
            high=300,
            otherwise=Verdict.ERROR,
            cause=Cause.MISCONFIGURED,
            remedy=Remedy.FIX_CONFIGURATION,
            optional=True,
            source="munge and Kerberos: what is older than 300 s is refused",
        ),
        **SMART_RULES,
    },
    finding_rules={
        **SMART_FINDINGS,
        # What the hardware lost, or what its failure did.
        "cores_missing": FindingRule(Verdict.FAIL, Remedy.INSPECT),
        "turned_read_only": FindingRule(Verdict.FAIL, Remedy.INSPECT),
        # What a job would meet, and no part of this node need be bad for.
        "full": FindingRule(Verdict.ERROR, Remedy.FIX_CONFIGURATION, Cause.NO_SPACE),
        "mount_hung": FindingRule(Verdict.ERROR, Remedy.INSPECT, Cause.HUNG),
        "disk_hung": FindingRule(Verdict.ERROR, Remedy.INSPECT, Cause.HUNG),
        "mount_stale": FindingRule(Verdict.ERROR, Remedy.INSPECT, Cause.MISCONFIGURED),
        "names_hung": FindingRule(Verdict.ERROR, Remedy.INSPECT, Cause.TIMEOUT),
        # What the site needs, and the node is not.
        **dict.fromkeys(
            (
                *(MOUNT_MISSING, "mount_wrong", "mount_read_only", "outside_bounds"),
                *("service_down", "service_unknown", "process_missing", "process_unwanted"),
                *("file_wrong", "module_missing", "kernel_argument", "sysctl", "hugepages"),
                *("governor", "frequency", "smt", "name_unknown", "clock_unsynchronized"),
            ),
            NOT_SET_UP,
        ),
        "cores_fewer": FindingRule(Verdict.WARN, Remedy.INSPECT),
        "cores_offline": FindingRule(Verdict.WARN, Remedy.FIX_CONFIGURATION),
        "file_system_errors": FindingRule(Verdict.WARN, Remedy.INSPECT),
        "maybe_read_only": FindingRule(Verdict.WARN, Remedy.INSPECT),
        "numa_missing": FindingRule(Verdict.WARN, Remedy.INSPECT),
        "fuse_hung": FindingRule(Verdict.WARN, Remedy.INSPECT),
        "fuse_stale": FindingRule(Verdict.WARN, Remedy.INSPECT),
        "process_stuck": FindingRule(Verdict.WARN, Remedy.REBOOT),
        "process_left_over": FindingRule(Verdict.WARN, Remedy.INSPECT),
        "memory_left_over": FindingRule(Verdict.WARN, Remedy.INSPECT),
        "clock_free": LISTED,
    },
    placement=Placement.PASSIVE,
    timeout=120,
)
