"""
What the kernel said as it died: pstore, which firmware keeps over the reboot.

Each dump is a few files below /sys/fs/pstore, which systemd-pstore(8) moves to
/var/lib/systemd/pstore at the next boot: a head as ``Panic#1 Part2``, then the last lines
of the log, each as ``<6>[    2.608284] text``.
"""

from __future__ import annotations

import itertools
import re
import zlib
from collections.abc import Iterator
from pathlib import Path

from hpcverify.telemetry.kernel_log import KernelMessage

FOLDERS = ("sys/fs/pstore", "var/lib/systemd/pstore")
FILE_PATTERN = "dmesg-*"
"""The kernel's name for a dump of its log; systemd also joins the parts in ``dmesg.txt``."""
MAX_DUMP_BYTES = 1 << 20
"""Bytes of one file to read; the kernel keeps kmsg_bytes of the log, 10 KiB by default."""
MAX_FILES = 1000
"""Files to read at most: a node that crashes all day."""
PREFIX_PATTERN = r"^<\d+>(?:\[ *(?P<stamp>\d+\.\d+)\] ?)?(?:\[ *[TC]\d+\] ?)?"
"""The level, the time since boot, and who printed it."""


def read_dumps(
    root: Path, mark: str | None, since: float, seen_until: float | None = None
) -> tuple[list[KernelMessage], str]:
    """
    Read the dumps that *mark* does not name; return their lines, and the next mark.

    Without a mark, dumps written after *since* (seconds since 1970) are new. A
    dump is known by its name and time, not by a latest time alone: the clock of a machine
    that crashed may be years off, either way. Lines from before *seen_until*, the last look
    before the crash, are left out. A folder that only root may read counts as empty.
    """
    files = sorted(_list_files(root))[-MAX_FILES:]
    ids = [f"{zlib.crc32(f'{path.name} {time}'.encode()):08x}" for time, path in files]
    known = set((mark or "").split())
    messages = [
        message
        for (time, path), name in zip(files, ids, strict=True)
        if (name not in known if mark is not None else time > since)
        for message in _read_messages(path, time)
        if seen_until is None or not message.time or not message.time < seen_until < time
    ]
    return messages, " ".join(ids)


def _list_files(root: Path) -> Iterator[tuple[float, Path]]:
    for folder in FOLDERS:
        try:
            for path in (root / folder).rglob(FILE_PATTERN):
                yield path.stat().st_mtime, path
        except OSError:
            continue


def _read_messages(path: Path, written: float) -> Iterator[KernelMessage]:
    """
    Read the lines of a dump that was *written* as the last of them was printed.

    All lines of a message have the time of the first. They are joined, so that a user's words that
    the kernel quotes do not look like a message of their own.
    """
    lines = [(re.match(PREFIX_PATTERN, line), line) for line in _read_lines(path)]
    parted = [
        (match["stamp"] or "" if match else "", line[match.end() :] if match else line)
        for match, line in lines
    ]
    last = max((float(stamp) for stamp, _ in parted if stamp), default=0.0)
    numbers = itertools.count()
    for (stamp, _), group in itertools.groupby(
        # A line without a time is a message; so is one of the start of the boot: time stands still.
        parted,
        lambda part: (part[0], 0 if part[0] and float(part[0]) else next(numbers)),
    ):
        age = last - float(stamp) if stamp else 0.0
        yield KernelMessage("\n".join(text for _, text in group), written - age, path.name)


def _read_lines(path: Path) -> list[str]:
    try:
        with path.open("rb") as file:
            # Not splitlines: the kernel ends a line with nothing else, a user may.
            return file.read(MAX_DUMP_BYTES).decode(errors="replace").removesuffix("\n").split("\n")
    except OSError:
        return []
