"""What a site needs of its nodes: ``[[params.host.expect]]`` of the site file."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase, translate
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

import hpcverify.check as hv

NodeMetric = Literal[
    "sockets",
    "cores",
    "threads",
    "numa_nodes",
    "memory.total",
    "memory.available",
    "memory.available_share",
    "swap.total",
    "swap.free",
    "load.1m",
    "load.5m",
    "load.15m",
    "processes.zombies",
    "processes.share",
]
"""What this check measures once for the whole node."""
SHARES = {"memory.available_share", "processes.share"}
Octal = Annotated[str, Meta(pattern=r"^(=?[0-7]{3,4})?$")]
PageSize = Annotated[str, Meta(pattern=r"^[0-9]+kB$")]
FullPath = Annotated[str, Meta(pattern="^/")]


class Bound(Struct, frozen=True, forbid_unknown_fields=True):
    """A limit on a measurement, in its unit, as a site writes it."""

    low: float | None = None
    high: float | None = None

    def __post_init__(self) -> None:
        """
        Refuse a range that holds nothing.

        Raises:
            ValueError: its low end is above its high one.

        """
        if self.low is not None and self.high is not None and self.low > self.high:
            raise ValueError(f"low = {self.low:g} is above high = {self.high:g}")


class MountNeed(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file system that must be mounted; texts are patterns (see `fits`)."""

    path: str
    type: str = "*"
    source: str = "*"
    options: tuple[str, ...] = ()
    """Each must fit one option, or all of them as one text."""
    writable: bool | None = None
    """Whether a file can be written there: tried, not only read off its options."""

    def __post_init__(self) -> None:
        """Take the slash off the end of the path: the kernel lists mount points without."""
        msgspec.structs.force_setattr(self, "path", "/" + self.path.strip("/"))


class SpaceNeed(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the file system that holds *path* must have; GiB, inodes, and shares of 1."""

    path: FullPath
    size: Bound = Bound()
    free: Bound = Bound()
    free_share: Bound = Bound()
    used: Bound = Bound()
    inodes: Bound = Bound()
    free_inodes: Bound = Bound()
    free_inodes_share: Bound = Bound()
    used_inodes: Bound = Bound()

    @property
    def bounds(self) -> dict[str, Bound]:
        """What it bounds, by the names of its fields."""
        fields = msgspec.structs.asdict(self).items()
        return {n: b for n, b in fields if isinstance(b, Bound) and b != Bound()}

    def __post_init__(self) -> None:
        """
        Refuse per cent.

        Raises:
            ValueError: a share is above 1.

        """
        refuse_per_cent("free_share", self.free_share)
        refuse_per_cent("free_inodes_share", self.free_inodes_share)


class ProcessNeed(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A process that must be there, or, with ``running = false``, must not."""

    name: str
    """A pattern for the name of its program (the first 15 characters, as in ps -C)."""
    user: str = ""
    """A pattern for its name or number."""
    running: bool = True


class FileNeed(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file that must be there."""

    path: FullPath
    type: Literal["", "file", "directory", "link", "character", "block", "pipe", "socket"] = ""
    mode: Octal = ""
    """The permission bits that must be set, in octal: ``1777``; with ``=0600``, those alone."""
    user: str = ""
    group: str = ""
    empty: bool | None = None
    contains: tuple[str, ...] = ()
    """Patterns: each must fit a line without the space around it; with ``!``, none may."""


class Expectation(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the nodes that *nodes* names must have."""

    nodes: str = "*"
    """``n[01-64],gpu*``, ``/regex/``, or either after ``!``."""
    mounts: tuple[MountNeed, ...] = ()
    space: tuple[SpaceNeed, ...] = ()
    bounds: dict[NodeMetric, Bound] = {}
    """By measurement of the whole node, in its unit: counts, GiB, shares of 1."""
    services: tuple[str, ...] = ()
    """Units of systemd that must be active."""
    processes: tuple[ProcessNeed, ...] = ()
    files: tuple[FileNeed, ...] = ()
    modules: tuple[str, ...] = ()
    """Modules of the kernel, loaded or built in."""
    kernel_arguments: tuple[str, ...] = ()
    """Patterns: each must fit one argument; with ``!``, none may."""
    sysctls: dict[str, str] = {}
    """By name, as ``vm.overcommit_memory``: a pattern for the value."""
    hugepages: dict[PageSize, int] = {}
    """By size as in sysfs, ``2048kB``: how many there must be at least."""
    governor: str = ""
    """The cpufreq governor that every core must have."""
    frequency_mhz: Annotated[float, Meta(ge=0)] = 0
    """Every core must be allowed to run at this."""
    smt: bool | None = None
    """Whether each core must run several threads, or must not."""
    users: tuple[str, ...] = ()
    """Must be known to the name service (NSS: files, sssd, ldap)."""
    hosts: tuple[str, ...] = ()
    """Must have an address, by the same or by DNS."""
    clock_offset: Annotated[float, Meta(ge=0)] = 0
    """The clock must be in step, within these seconds; 0: not asked."""

    def __post_init__(self) -> None:
        """
        Refuse what could never be met, or would silently ask for nothing.

        Raises:
            ValueError: no node can have such a name, a pattern is not a regular expression, or
                a bound has no end, or is in per cent.

        """
        refuse_bad_nodes(self.nodes)
        for name, bound in self.bounds.items():
            if bound == Bound():
                raise ValueError(f"bounds: {name} needs low, high or both")
            if name in SHARES:
                refuse_per_cent(name, bound)
        for pattern in (
            *(*self.kernel_arguments, *self.sysctls.values()),
            *(p for mount in self.mounts for p in (mount.type, mount.source, *mount.options)),
            *(process.name for process in self.processes),
            *(p for file in self.files for p in file.contains),
        ):
            refuse_bad_pattern(pattern)


class HostParams(hv.Params, frozen=True):
    """What the site needs of its nodes, and how long to wait for an answer."""

    expect: tuple[Expectation, ...] = ()
    deadline: Annotated[float, Meta(gt=0, le=30)] = 2.0
    """Seconds for a mount, the name service or a time daemon to answer."""
    smartctl: bool = True
    """Whether disks that only smartctl can ask are asked (some 20 ms each); NVMe always is."""


def refuse_bad_pattern(pattern: str) -> None:
    """Raise ValueError if *pattern* holds what is not a regular expression."""
    try:
        fits("", pattern)
    except re.error as exc:
        raise ValueError(f"{pattern} is not a regular expression: {exc}") from None


def refuse_per_cent(name: str, bound: Bound) -> None:
    """Raise ValueError if *bound* of a share is above 1."""
    for end in (bound.low, bound.high):
        if end is not None and end > 1:
            raise ValueError(f"{name} is a share, 1 at most (10 % is 0.1), not {end:g}")


def refuse_bad_nodes(nodes: str) -> None:
    """Raise ValueError if *nodes*, or a name in it, can be the name of no node."""
    listed = nodes.removeprefix("!")
    if listed.startswith("/"):
        if len(listed) == 1 or not listed.endswith("/"):
            raise ValueError(f"nodes = {nodes!r} names no node: a regular expression ends in /")
        refuse_bad_pattern(listed)
        return
    for item in _split_nodes(listed):
        if item.strip().upper() == "ALL":
            raise ValueError(f"nodes = {nodes!r} is the name of no node: all nodes are '*'")
        globs, ranges = _split_name(item)
        if not item.strip():
            raise ValueError(f"nodes = {nodes!r} has an empty name")
        if any(bracket in glob for glob in globs for bracket in "[]"):
            raise ValueError(f"nodes = {nodes!r}: a bracket is left open or closed twice")
        for part in (part for listing in ranges for part in listing.split(",")):
            if _parse_range(part) is None:
                hint = "brackets hold numbers, the lower first, as in n[01-12,20]"
                raise ValueError(f"nodes = {nodes!r}: {part!r} is not a range: {hint}")


def is_pattern(text: str) -> bool:
    """Whether *text* stands for other texts, so that nothing can be set to it."""
    return text.startswith(("!", "/")) or any(sign in text for sign in "*?[")


def fits(text: str, pattern: str) -> bool:
    """Whether *pattern* fits all of *text*: a glob, ``/regex/`` found in it, or ``!`` and one."""
    if pattern.startswith("!"):
        return not fits(text, pattern[1:])
    if len(pattern) > 1 and pattern.startswith("/") and pattern.endswith("/"):
        return re.search(pattern[1:-1], text) is not None
    return text == pattern or fnmatchcase(text, pattern)


def names_node(nodes: str, node: str) -> bool:
    """Whether *node* is one of *nodes*: a host list with globs, ``/regex/``, or ``!`` and one."""
    if nodes.startswith("!"):
        return not names_node(nodes[1:], node)
    if nodes.startswith("/"):
        return fits(node, nodes)
    for item in _split_nodes(nodes):
        globs, ranges = _split_name(item)
        # `translate` ends a pattern in \Z, which only the last may have.
        pattern = r"(\d+)".join(translate(glob).removesuffix(r"\Z") for glob in globs)
        match = re.fullmatch(pattern, node)
        if match and all(map(_is_within, match.groups(), ranges)):
            return True
    return False


def _split_nodes(nodes: str) -> list[str]:
    return re.split(r",(?![^\[]*\])", nodes)


def _split_name(item: str) -> tuple[list[str], list[str]]:
    pieces = re.split(r"\[([^\]]*)\]", item.strip())
    return pieces[::2], pieces[1::2]


def _is_within(number: str, listed: str) -> bool:
    for part in listed.split(","):
        if (ends := _parse_range(part)) is None:
            continue
        first, last = ends
        padded = str(int(number)).zfill(len(first))
        if number == padded and int(first) <= int(number) <= int(last):
            return True
    return False


def _parse_range(part: str) -> tuple[str, str] | None:
    # Python refuses to read a number of some thousand digits.
    match = re.fullmatch(r"\s*([0-9]{1,100})(?:-([0-9]{1,100}))?\s*", part)
    if match is None:
        return None
    first, last = match[1], match[2] or match[1]
    return (first, last) if int(first) <= int(last) else None
