"""Sizes of messages, in words."""

from __future__ import annotations

from hpcverify.units import GIB, KIB, MIB


def format_size(size: int) -> str:
    """Format a number of bytes as nccl-tests does: 64KiB, 1GiB."""
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if size >= unit and size % unit == 0:
            return f"{size // unit}{name}"
    return f"{size}B"
