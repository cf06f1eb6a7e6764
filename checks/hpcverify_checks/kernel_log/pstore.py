"""
What the kernel said as it died: pstore, which firmware keeps over the reboot.

Each dump is a few files below /sys/fs/pstore, which systemd-pstore(8) moves to
/var/lib/systemd/pstore at the next boot: a head as ``Panic#1 Part2``, then the last lines
of the log, each as ``<6>[    2.608284] text``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from hpcverify.telemetry.kernel_log import KernelMessage

FOLDERS = ("sys/fs/pstore", "var/lib/systemd/pstore")
FILE_PATTERN = "dmesg-*"
"""As the kernel names a dump of its log; systemd also joins the parts in ``dmesg.txt``."""
MAX_DUMP_BYTES = 1 << 20
"""Bytes of one file to read; the kernel keeps kmsg_bytes of the log, 10 KiB by default."""
MAX_FILES = 1000
"""Files to read at most: a node that crashes all day."""
PREFIX_PATTERN = r"^<\d+>(?:\[ *\d+\.\d+\] ?)?(?:\[ *[TC]\d+\] ?)?"
"""The level, the time since boot, and who printed it."""


def read_dumps(root: Path, since: float) -> tuple[list[KernelMessage], float]:
    """
    Read the dumps that were written after *since*, in seconds since 1970.

    Returns their lines, each with the time of its dump, and the time of the latest one. A
    folder that may not be read has none: it is root's.
    """
    found = sorted(_list_files(root))
    new = [(time, path) for time, path in found if time > since][-MAX_FILES:]
    messages = [
        KernelMessage(re.sub(PREFIX_PATTERN, "", line), time, path.name)
        for time, path in new
        for line in _read_lines(path)
    ]
    return messages, max((time for time, _ in found), default=since)


def _list_files(root: Path) -> Iterator[tuple[float, Path]]:
    for folder in FOLDERS:
        try:
            for path in (root / folder).rglob(FILE_PATTERN):
                yield path.stat().st_mtime, path
        except OSError:
            continue


def _read_lines(path: Path) -> list[str]:
    try:
        with path.open("rb") as file:
            return file.read(MAX_DUMP_BYTES).decode(errors="replace").splitlines()
    except OSError:
        return []
