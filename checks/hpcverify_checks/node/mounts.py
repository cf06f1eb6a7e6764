"""The file system that the checks write to, and whether it is the same as before."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import hpcverify.check as hv

MOUNT_KIND = "mount"
"""The kind of the part that stands for the file system that the checks write to."""
MOUNT_MISSING = "mount_missing"
NETWORK_FILE_SYSTEMS = frozenset(
    {
        "9p",
        "afs",
        "beegfs",
        "ceph",
        "cifs",
        "dvs",
        "glusterfs",
        "gpfs",
        "lustre",
        "nfs",
        "nfs4",
        "orangefs",
        "panfs",
        "pvfs2",
        "smb3",
        "virtiofs",
        "wekafs",
    }
)


def is_remote(kind: str) -> bool:
    """Whether another machine, or a process, answers for a file system of *kind*."""
    return kind in NETWORK_FILE_SYSTEMS or kind.partition(".")[0] == "fuse"


def require_mounted(ctx: hv.Context) -> None:
    """Refuse to verify the disk below instead of the one that was mounted before."""
    changes = compare_mounts(ctx.inventory, ctx.previous) if ctx.previous else ()
    for change in changes:
        if change.code == MOUNT_MISSING:
            raise hv.Unable(change.text, hv.Cause.MISCONFIGURED, hv.Remedy.FIX_CONFIGURATION)


def compare_mounts(now: hv.Inventory, before: hv.Inventory) -> Iterator[hv.Finding]:
    """
    Report if the checks write to another file system than in the earlier run.

    If one was mounted before and none is now, they verified the disk below: no part is at
    fault, but nothing was verified. The same file system at another place, as a bind
    mount, counts as the same. Another directory, chosen by the site, has nothing to compare.
    """
    earlier = {p.id: p for p in before.of_kind(MOUNT_KIND)}
    for part in now.of_kind(MOUNT_KIND):
        old = earlier[part.id].facts if part.id in earlier else part.facts
        if identify_file_system(old) == identify_file_system(part.facts):
            continue
        evidence = {f"was_{name}": value for name, value in old.items()} | part.facts
        text = f"{part.label} is now on {describe_mount(part.facts)}, before {describe_mount(old)}"
        if Path(part.facts["mount"]) in Path(old["mount"]).parents:
            fix = "mount it again, or run once with --accept-parts"
            yield hv.Finding(MOUNT_MISSING, part.id, f"{text}: {fix}", evidence)
        else:
            yield hv.Finding("mount_changed", part.id, text, evidence)


def identify_file_system(facts: Mapping[str, str]) -> tuple[str | None, ...]:
    """List the facts that identify a file system, wherever it is mounted."""
    return tuple(facts.get(name) for name in ("type", "disk", "volume", "source"))


def describe_mount(facts: Mapping[str, str]) -> str:
    """Describe a mount as mount(8) does."""
    source = [facts[name] for name in ("volume", "disk", "source") if name in facts]
    return f"{facts['mount']} ({facts['type']} of {' of '.join(source)})"
