"""The page cache gives up what is flushed, and what it keeps is counted."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import pytest

from hpcverify_checks.storage.extents import FileExtent
from hpcverify_checks.storage.page_cache import evict, flush_file_system
from tests.checks.storage.disks import mounted

pytestmark = pytest.mark.needs("fio")

SIZE = 8 * 4096


def cached(path: Path) -> bool:
    """Ask another way: a read that may not wait for a disk."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.preadv(file, [bytearray(4096)], 0, os.RWF_NOWAIT)
    except BlockingIOError:
        return False
    finally:
        os.close(file)
    return True


def write(folder: Path) -> FileExtent:
    path = folder / "file"
    path.write_bytes(os.urandom(SIZE))
    flush_file_system(folder)
    return FileExtent(path, 0, SIZE)


def test_what_is_flushed_leaves_the_page_cache(disk: Path) -> None:
    extent = write(disk)
    assert cached(extent.path)

    assert evict([extent]) == 0
    assert not cached(extent.path)


def test_what_a_program_has_mapped_stays_and_is_counted(disk: Path) -> None:
    extent = write(disk)
    with extent.path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as held:
        assert held[5 * 4096] >= 0  # one page, and what the kernel maps around it

        assert evict([extent]) >= 4096
    assert cached(extent.path)


def test_memory_gives_up_nothing(tmp_path: Path) -> None:
    with mounted("-t", "tmpfs", "tmpfs", tmp_path / "m") as point:
        assert evict([write(point)]) == SIZE


def test_a_file_that_is_too_short_to_be_looked_at_counts_as_kept(disk: Path) -> None:
    extent = write(disk)

    assert evict([FileExtent(extent.path, 4096 * 1024, SIZE)]) == SIZE


def test_a_flush_of_what_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        flush_file_system(tmp_path / "missing")
