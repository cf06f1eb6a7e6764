"""
Chunks of the host's memory: mapped on a NUMA node, kept from swapping, and where they are.

Python has none of these calls. They are those of mbind(2), move_pages(2) and mlock(2);
/proc/self/pagemap tells root the page frame of an address (admin-guide/mm/pagemap).
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from hpcverify.telemetry import sysfs
from hpcverify_checks.exact.bits import WORD_BYTES

if TYPE_CHECKING:
    from torch import Tensor

CALL_NUMBERS = {"x86_64": (237, 279), "aarch64": (235, 239)}
"""The numbers of mbind and move_pages; the C library has no functions for them."""
PREFERRED = 1
"""This mode of mbind goes elsewhere if the node is full. MPOL_BIND would let the kernel end
processes."""
MAX_NODES = 1024
SAMPLE_BYTES = 2**21
"""One page in so many bytes is asked for: the size of a huge page."""
FRAME_BITS, PRESENT_BIT = 55, 63
"""The layout of an entry of pagemap."""
OOM_SCORE = Path("/proc/self/oom_score_adj")
WORST_OOM_SCORE = "1000"

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def map_chunk(size: int, node: int) -> Tensor:
    """
    Map *size* bytes on the NUMA node *node*, or elsewhere if it is full, and fill them.

    Huge pages make that several times as fast. Where we may, the pages are locked.

    Raises:
        OSError: There is no room, or a limit of this process is reached.

    """
    import torch

    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel without huge pages
        pages.madvise(mmap.MADV_HUGEPAGE)
    words = torch.frombuffer(pages, dtype=torch.int64)
    _prefer_node(words.data_ptr(), size, node)
    locked = _libc.mlock(ctypes.c_void_p(words.data_ptr()), ctypes.c_size_t(size))
    if locked != 0:  # no privilege: then they are only filled
        words.fill_(0)
    return words


def _prefer_node(address: int, size: int, node: int) -> None:
    """Ask for pages of *node*; whether it was done, `count_nodes` tells."""
    if platform.machine() not in CALL_NUMBERS:
        return
    mbind, _ = CALL_NUMBERS[platform.machine()]
    mask = (1 << node).to_bytes(MAX_NODES // 8, "little")
    _libc.syscall(
        ctypes.c_long(mbind),
        ctypes.c_void_p(address),
        ctypes.c_ulong(size),
        ctypes.c_long(PREFERRED),
        ctypes.c_char_p(mask),
        ctypes.c_ulong(MAX_NODES),
        ctypes.c_ulong(0),
    )


def find_nodes(addresses: list[int]) -> list[int] | None:
    """Find the NUMA node of the page at each address; None if the kernel does not tell."""
    if platform.machine() not in CALL_NUMBERS:
        return None
    _, move_pages = CALL_NUMBERS[platform.machine()]
    count = len(addresses)
    pages = (ctypes.c_void_p * count)(*addresses)
    status = (ctypes.c_int * count)(*[-1] * count)
    arguments = (ctypes.c_long(0), ctypes.c_ulong(count), pages, None, status, ctypes.c_long(0))
    failed = _libc.syscall(ctypes.c_long(move_pages), *arguments)
    return None if failed or min(status, default=-1) < 0 else list(status)


def count_nodes(words: Tensor) -> Counter[int] | None:
    """Count the bytes of *words* on each NUMA node, by a sample; None if it is not known."""
    size, first = words.numel() * WORD_BYTES, words.data_ptr()
    nodes = find_nodes([first + offset for offset in range(0, size, SAMPLE_BYTES)])
    if nodes is None:
        return None
    shares = Counter(nodes)
    return Counter({node: size * n // len(nodes) for node, n in shares.items()})


def find_physical_address(address: int, root: Path = Path("/")) -> int | None:
    """Find the physical address of a virtual one; None unless this is root's process."""
    page = os.sysconf("SC_PAGESIZE")
    try:
        with (root / "proc/self/pagemap").open("rb") as pagemap:
            pagemap.seek(address // page * WORD_BYTES)
            entry = int.from_bytes(pagemap.read(WORD_BYTES), "little")
    except OSError:
        return None
    frame = entry % (1 << FRAME_BITS)  # zero for who is not privileged
    return frame * page + address % page if entry >> PRESENT_BIT and frame else None


@contextmanager
def die_first(path: Path = OOM_SCORE) -> Generator[None]:
    """Let the kernel end this process before any other, if memory runs out meanwhile."""
    before = sysfs.read_text(path)
    with suppress(OSError):
        path.write_text(WORST_OOM_SCORE)
    try:
        yield
    finally:
        if before is not None:
            with suppress(OSError):
                path.write_text(before)
