"""
Make the disk answer, and not the page cache: give up its copy, and see that it is gone.

Reading with O_DIRECT goes past the page cache where the file system knows it. Elsewhere, and
where it falls back to it without a word (btrfs does for compressed data), the cache must
have let go of the data first.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterable
from pathlib import Path

from hpcverify_checks.storage.extents import FileExtent

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p)


def flush_file_system(folder: Path) -> None:
    """
    Write all that the page cache holds for the file system of *folder* to its disk.

    Raises:
        OSError: the disk refused some of it.

    """
    opened = os.open(folder, os.O_RDONLY)
    try:
        _check(_libc.syncfs(opened))
    finally:
        os.close(opened)


def evict(extents: Iterable[FileExtent]) -> int:
    """Have the page cache give up *extents*, flushed before; return the bytes that it kept."""
    kept = 0
    for extent in extents:
        opened = os.open(extent.path, os.O_RDWR)
        try:
            os.posix_fadvise(opened, extent.offset, extent.size, os.POSIX_FADV_DONTNEED)
            kept += _count_cached_bytes(opened, extent)
        finally:
            os.close(opened)
    return kept


def _count_cached_bytes(opened: int, extent: FileExtent) -> int:
    try:
        mapped = mmap.mmap(opened, extent.size, offset=extent.offset)
    except (OSError, ValueError):
        return extent.size  # cannot be seen, or the file is shorter: so it is not shown
    with mapped:
        pages = ctypes.create_string_buffer(-(-extent.size // mmap.PAGESIZE))
        start = ctypes.c_char.from_buffer(mapped)
        status = _libc.mincore(ctypes.addressof(start), extent.size, pages)
        del start  # or the mapping could not be closed
    _check(status)
    return sum(page & 1 for page in pages.raw) * mmap.PAGESIZE


def _check(status: int) -> None:
    if status:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
