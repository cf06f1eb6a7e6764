"""
What a worker is doing, for the engine to read when it finds the worker dead or stuck.

One line in a mapped file, which takes half a microsecond to change and which the engine
can always read: a call into a driver may never return, or may end the process.
"""

from __future__ import annotations

import mmap
import os

BREADCRUMB_BYTES = 160

_breadcrumb: mmap.mmap | None = None


def begin(descriptor: int) -> None:
    """Keep the breadcrumb of this process in the file *descriptor* from now on."""
    global _breadcrumb  # noqa: PLW0603 - one process, one breadcrumb, left from deep inside
    os.posix_fallocate(descriptor, 0, BREADCRUMB_BYTES)
    _breadcrumb = mmap.mmap(descriptor, BREADCRUMB_BYTES)


def leave(text: str) -> None:
    """Record what this process is about to do; an empty text when it is done."""
    if _breadcrumb is not None:
        _breadcrumb[:] = text.encode()[:BREADCRUMB_BYTES].ljust(BREADCRUMB_BYTES)


def read(descriptor: int) -> str:
    """Read what the process with its breadcrumb in *descriptor* was about to do."""
    return os.pread(descriptor, BREADCRUMB_BYTES, 0).strip(b"\0 ").decode(errors="replace")
