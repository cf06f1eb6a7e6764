"""Each write of a place can be told from the others, and which blocks it wrote is exact."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from hpcverify.units import MIB
from hpcverify_checks.storage.extents import (
    GENERATIONS,
    HEADER_BYTES,
    SECTOR_BYTES,
    FileExtent,
    PartialOverwrite,
    cut_to,
    format_reads,
    mark_beginning,
    parse_writes,
)

EXTENT = FileExtent(Path("/scratch/stream0"), 7 * MIB, 4 * MIB)


def at(generation: int) -> FileExtent:
    return FileExtent(EXTENT.path, EXTENT.offset, EXTENT.size, generation)


def test_the_headers_of_generations_do_not_overlap_and_stay_within_their_sector() -> None:
    places = [at(generation).header_offset for generation in range(GENERATIONS)]

    assert len(set(places)) == GENERATIONS == 31
    assert all(place % HEADER_BYTES == 0 for place in places)
    assert min(places) >= HEADER_BYTES  # fio: not within the place of a header at the front
    assert max(places) + HEADER_BYTES <= SECTOR_BYTES


def test_what_is_written_again_is_of_the_next_generation() -> None:
    assert EXTENT.write_again().write_again() == at(2)


@pytest.mark.parametrize(
    "trace",
    [
        # as written by fio 3.28, and by 3.33 and later
        "fio version 2 iolog\n/a b add\n/a b open\n/a b write {0} 4096\n/a b write {1} 4096\n",
        "fio version 3 iolog\n9 x write {0} 4096\n10 x write {1} 4096\n12 x sync {0} 0\n",
    ],
)
def test_the_blocks_that_were_written_are_read_from_the_trace(trace: str) -> None:
    places = (EXTENT.offset, EXTENT.offset + 5 * SECTOR_BYTES)

    written = parse_writes(EXTENT, trace.format(*places))

    assert written.count == 2
    assert [i for i, again in enumerate(written.again) if again] == [0, 5]


def test_every_sector_is_in_one_group_and_the_right_one() -> None:
    rng = random.Random(3)  # noqa: S311 - no secret
    again = bytes(rng.random() < 0.5 for _ in range(EXTENT.size // SECTOR_BYTES))

    seen: dict[int, int] = {}
    for extent, runs in PartialOverwrite(EXTENT, again).list_groups():
        for offset, size in runs:
            for place in range(offset, offset + size, SECTOR_BYTES):
                assert place not in seen
                seen[place] = extent.generation

    assert [seen[place] for place in sorted(seen)] == list(again)
    assert min(seen) == EXTENT.offset


def test_what_lies_in_a_row_is_read_in_blocks_of_1_mib() -> None:
    (first, again) = mark_beginning(EXTENT, MIB + SECTOR_BYTES).list_groups()

    assert again[0] == at(1)
    assert again[1] == [(7 * MIB, MIB), (8 * MIB, SECTOR_BYTES)]
    assert first[0] == at(0)
    assert [size for _, size in first[1]] == [MIB, MIB, MIB - SECTOR_BYTES]


def test_an_extent_of_one_generation_is_one_group() -> None:
    (group,) = mark_beginning(EXTENT, 0).list_groups()

    assert group[0] == EXTENT


def test_the_last_read_is_repeated_because_fio_does_not_verify_the_end_of_a_trace() -> None:
    assert format_reads(EXTENT, [(0, 4096), (8192, 4096)], depth=2).splitlines() == [
        "fio version 2 iolog",
        "stream0 add",
        "stream0 open",
        "stream0 read 0 4096",
        *["stream0 read 8192 4096"] * 3,
    ]


def test_a_stream_that_got_no_turn_is_left_out() -> None:
    assert cut_to([EXTENT, EXTENT], [0, MIB]) == (replace(EXTENT, size=MIB),)


def test_an_extent_contains_what_lies_within_it() -> None:
    block = FileExtent(EXTENT.path, EXTENT.offset, SECTOR_BYTES)

    assert EXTENT.contains(block)
    assert not EXTENT.contains(FileExtent(EXTENT.path, EXTENT.offset - 1, SECTOR_BYTES))
    assert not EXTENT.contains(FileExtent(EXTENT.path, EXTENT.offset + EXTENT.size - 1, 2))
    assert not EXTENT.contains(FileExtent(Path("/scratch/stream1"), EXTENT.offset, SECTOR_BYTES))
