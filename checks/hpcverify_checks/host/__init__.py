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
from msgspec.structs import replace

import hpcverify.check as hv
from hpcverify.processes import ToolRunner, run_tool
from hpcverify.telemetry.blockdev import list_mounts
from hpcverify.telemetry.memory import read_memory
from hpcverify_checks.host.clock import KernelClockReader, measure_clock, read_kernel_clock
from hpcverify_checks.host.disks import measure_disks
from hpcverify_checks.host.mounts import (
    ERRORS,
    LEFT_BEHIND,
    READ_ONLY,
    SPACE_METRICS,
    WRITABLE,
    measure_mounts,
)
from hpcverify_checks.host.needs import Bound, HostParams, names_node
from hpcverify_checks.host.processes import (
    LEFT_OVER,
    STUCK,
    compare_processes,
    list_tasks,
    measure_processes,
    report_shared_memory,
)
from hpcverify_checks.host.resources import compare_settings, measure_cores, measure_memory
from hpcverify_checks.host.services import compare_files, compare_services, measure_names
from hpcverify_checks.node.disk_health import SMART_FINDINGS, SMART_METRICS, limit_growth
from hpcverify_checks.node.mounts import MOUNT_MISSING

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


def measure(ctx: hv.Context, params: HostParams) -> Iterator[hv.CheckItem]:
    """Report on this node, by default and as the site expects."""
    yield from inspect(ctx, params, HostSeams())


def inspect(ctx: hv.Context, params: HostParams, node: HostSeams) -> Iterator[hv.CheckItem]:
    """Report on *node*, the quick and the certain first."""
    needs = [need for need in params.expect if names_node(need.nodes, ctx.node)]
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
        if isinstance(item, hv.Finding) and item.code in {"mount_hung", "fuse_hung"}:
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


def demand(params: HostParams, node: str) -> Iterator[hv.Rule]:
    """List the limits that the site's expectations of *node* are, the strictest first."""
    rules: list[hv.Rule] = []
    for need in (n for n in params.expect if names_node(n.nodes, node)):
        bounds: list[tuple[str, str, Bound]] = [(n, "", bound) for n, bound in need.bounds.items()]
        for want in need.space:
            bounds += [(SPACE_METRICS[n][0], want.path, bound) for n, bound in want.bounds.items()]
        bounds.append(("clock.offset", "", Bound(high=need.clock_offset or None)))
        for metric, part, bound in bounds:
            rule = hv.Rule(
                metric=metric,
                part=part,
                otherwise=hv.Verdict.ERROR,
                cause=hv.Cause.MISCONFIGURED,
                remedy=hv.Remedy.FIX_CONFIGURATION,
                optional=metric not in need.bounds,
                source="the site's params.host.expect",
            )
            ends = (("low", bound.low), ("high", bound.high))
            rules += (replace(rule, **{end: at}) for end, at in ends if at is not None)
    yield from sorted(rules, key=lambda rule: rule.high or 0 if rule.low is None else -rule.low)


NHC_SOURCE = "NHC's sample configuration"

CHECK = hv.Check(
    summary="what a job needs of the host: mounts, space, memory, cores, services, clock, disks",
    measure=measure,
    params=HostParams,
    demand=demand,
    metrics={
        "sockets": hv.Metric("", "low", "processors"),
        "cores": hv.Metric("", "low", "physical cores"),
        "threads": hv.Metric("", "low", "logical CPUs that are online"),
        "numa_nodes": hv.Metric("", "neither", "NUMA nodes with cores and memory"),
        "memory.total": hv.Metric("GiB", "low", "memory that the kernel manages"),
        "memory.available": hv.Metric("GiB", "low", "memory that a job can have"),
        "memory.available_share": hv.Metric("ratio", "low", "the same as a share of all").warn(
            low=0.01, source="hpcverify default: nearly full"
        ),
        "swap.total": hv.Metric("GiB", "neither", "swap"),
        "swap.free": hv.Metric("GiB", "neither", "swap that is not used"),
        "load.*": hv.Metric("", "neither", "tasks that run or wait, mean of 1, 5 and 15 minutes"),
        "processes.zombies": hv.Metric("", "high", "processes that were not reaped"),
        "processes.share": hv.Metric("ratio", "high", "threads of all that there may be").warn(
            high=0.9, source="hpcverify default: nearly all taken"
        ),
        "processes.stuck": hv.Metric("", "high", "in uninterruptible sleep for over 120 s"),
        "processes.left_over": hv.Metric("", "high", "processes of Slurm jobs that are over"),
        "clock.error": hv.Metric("s", "neither", "error of the clock as reported to the kernel"),
        "clock.offset": hv.Metric("s", "neither", "absolute offset, by the time daemon").error(
            high=300,
            cause=hv.Cause.MISCONFIGURED,
            remedy=hv.Remedy.FIX_CONFIGURATION,
            optional=True,
            source="munge and Kerberos: what is older than 300 s is refused",
        ),
        "space.size": hv.Metric("GiB", "neither", "size of a file system"),
        "space.free": hv.Metric("GiB", "neither", "free for users"),
        "space.used": hv.Metric("GiB", "neither", "used"),
        "space.free_share": hv.Metric(
            "ratio", "neither", "free for users, of what they can have"
        ).warn(low=0.03, source=f"{NHC_SOURCE}: check_fs_free / 3%"),
        "inodes.total": hv.Metric("", "neither", "inodes, where the site bounds them"),
        "inodes.free": hv.Metric("", "neither", "inodes that are free, likewise"),
        "inodes.used": hv.Metric("", "neither", "inodes in use, likewise"),
        "inodes.free_share": hv.Metric("ratio", "neither", "inodes that are free").warn(
            low=0.01, source="hpcverify default: nearly full"
        ),
        **SMART_METRICS,
        "smart.*.delta": limit_growth("growth of a count since the last run"),
    },
    finding_rules={
        **SMART_FINDINGS,
        # What the hardware lost, or what its failure did.
        **hv.fail_on("cores_missing", "turned_read_only"),
        # What a job would meet, and no part of this node need be bad for.
        **hv.error_on("full", remedy=hv.Remedy.FIX_CONFIGURATION, cause=hv.Cause.NO_SPACE),
        **hv.error_on("mount_hung", "disk_hung", cause=hv.Cause.HUNG),
        **hv.error_on("mount_stale", cause=hv.Cause.MISCONFIGURED),
        **hv.error_on("names_hung", cause=hv.Cause.TIMEOUT),
        # What the site needs, and the node is not.
        **hv.not_set_up(
            *(MOUNT_MISSING, "mount_wrong", "mount_read_only"),
            *("service_down", "service_unknown", "process_missing", "process_unwanted"),
            *("file_wrong", "module_missing", "kernel_argument", "sysctl", "hugepages"),
            *("governor", "frequency", "smt", "name_unknown", "clock_unsynchronized"),
        ),
        **hv.warn_on(
            *("cores_fewer", "file_system_errors", "maybe_read_only", "numa_missing", "fuse_hung"),
            *("fuse_stale", "process_left_over", "memory_left_over"),
        ),
        **hv.warn_on("cores_offline", remedy=hv.Remedy.FIX_CONFIGURATION),
        **hv.warn_on("process_stuck", remedy=hv.Remedy.REBOOT),
        **hv.listed("clock_free"),
    },
    placement=hv.Placement.PASSIVE,
    timeout=120,
)
