"""
Small files under /sys and /proc, of which any may be missing or refuse a read.

A machine lacks most of what some machine has, and a file that is there can still
answer EIO, ENODATA or EACCES: all of that is "not known", never an error.
"""

from __future__ import annotations

import fnmatch
import os
import re
from functools import partial
from pathlib import Path

CHUNK_BYTES = 65536


def read_text(path: Path | str) -> str | None:
    """Read *path* without the white space around it; None if there is nothing."""
    # A prolog reads hundreds of these, and pathlib takes twice as long.
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        content = b"".join(iter(partial(os.read, descriptor, CHUNK_BYTES), b""))
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return content.decode(errors="replace").strip("\0 \t\n") or None


BOOT_ID_PATH = "proc/sys/kernel/random/boot_id"


def read_boot_id(root: Path) -> str:
    """Read what is different after each boot of the node; empty if it is not known."""
    return read_text(root / BOOT_ID_PATH) or ""


def read_number(path: Path | str) -> float | None:
    """Read *path* as one number, or as none."""
    try:
        return float(read_text(path) or "")
    except ValueError:
        return None


def parse_cpu_list(text: str) -> tuple[int, ...]:
    """Expand the kernel's list format, as in ``0-3,8``; what is none of that is none."""
    numbers: list[int] = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        if not (first.isdigit() and (last or first).isdigit()):
            return ()
        numbers += range(int(first), int(last or first) + 1)
    return tuple(numbers)


def list_entries(folder: Path, pattern: str = "*") -> list[Path]:
    """List what matches in *folder*, in the order a person counts: cpu2, cpu10."""
    first, _, rest = pattern.partition("/")
    try:
        # `Path.glob` takes five times as long.
        names = os.listdir(folder)  # noqa: PTH208 - see above
    except OSError:
        return []
    if first != "*":
        names = fnmatch.filter(names, first)
    entries = [folder / name for name in sorted(names, key=_make_natural_key)]
    return [e for entry in entries for e in list_entries(entry, rest)] if rest else entries


def _make_natural_key(name: str) -> list[tuple[int, str]]:
    words = re.findall(r"\d+|\D+", name)
    return [(int(word), "") if word.isdigit() else (-1, word) for word in words]


def resolve_link(link: Path) -> Path | None:
    """Follow *link* to the end; None if it leads nowhere."""
    # The kernel follows it in one call; `Path.resolve` asks for each name on the way.
    try:
        end = os.open(link, os.O_PATH | os.O_CLOEXEC)
        try:
            return Path(os.readlink(f"/proc/self/fd/{end}"))  # noqa: PTH115 - not that of a Path
        finally:
            os.close(end)
    except OSError:
        return None


def is_hardware(entry: Path) -> bool:
    """Whether *entry* hangs on a device that is plugged in for good."""
    if not os.path.exists(f"{entry}/device"):  # noqa: PTH110 - most have none
        return False
    device = resolve_link(entry / "device")
    return (
        device is not None
        and not (entry / "device/physfn").exists()  # a virtual function
        and not any(name.startswith("usb") for name in device.parts)
    )


def drop_unknown(**facts: str | None) -> dict[str, str]:
    """Keep the *facts* that could be read."""
    return {key: value for key, value in facts.items() if value}
