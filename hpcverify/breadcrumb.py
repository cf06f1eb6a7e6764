"""
What a worker is doing, for the engine to read when it finds the worker dead or stuck.

One line in a mapped file, which takes a microsecond to change and which the engine can
always read: a call into a driver may never return, or may end the process.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress

from msgspec import Struct

BREADCRUMB_BYTES = 256

_breadcrumb: mmap.mmap | None = None
_open: list[tuple[str, str, float]] = []
"""The operations that have begun and not ended, of all threads, the latest last."""


class Breadcrumb(Struct, frozen=True):
    """What a process was about to do."""

    text: str
    part: str
    """The part that was to do it; empty if that is not known."""
    since: float
    """When it began, on the monotonic clock."""


def begin(descriptor: int) -> None:
    """Keep the breadcrumb of this process in the file *descriptor* from now on."""
    global _breadcrumb  # noqa: PLW0603 - one process, one breadcrumb, left from deep inside
    os.posix_fallocate(descriptor, 0, BREADCRUMB_BYTES)
    _breadcrumb = mmap.mmap(descriptor, BREADCRUMB_BYTES)


def leave(text: str) -> None:
    """Record what this process is about to do; an empty text when it is done."""
    _open.clear()
    _write(text, "", time.monotonic())


@contextmanager
def during(text: str, part: str) -> Generator[None]:
    """Record while the block runs what *part* is doing; not for a loop that is timed."""
    entry = (text, part, time.monotonic())
    _open.append(entry)
    _write(*entry)
    try:
        yield
    finally:
        with suppress(ValueError):  # after `leave`
            _open.remove(entry)
        latest = _open[-1:]  # in one step: another thread may end its block meanwhile
        _write(*(latest[0] if latest else ("", "", 0.0)))


def _write(text: str, part: str, since: float) -> None:
    if _breadcrumb is not None:
        line = f"{since!r} {part}\t{text}" if text else ""
        _breadcrumb[:] = line.encode()[:BREADCRUMB_BYTES].ljust(BREADCRUMB_BYTES)


def read(descriptor: int) -> Breadcrumb | None:
    """Read what the process with its breadcrumb in *descriptor* was about to do, if anything."""
    line = os.pread(descriptor, BREADCRUMB_BYTES, 0).strip(b"\0 ").decode(errors="replace")
    when, _, what = line.partition(" ")
    part, _, text = what.partition("\t")
    try:
        return Breadcrumb(text, part, float(when)) if text else None
    except ValueError:  # read while it was written
        return None
