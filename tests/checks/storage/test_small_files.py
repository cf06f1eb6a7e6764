"""Small files are read from the disk, and what is wrong with one is told from its content."""

from __future__ import annotations

import resource
from dataclasses import replace
from pathlib import Path

import pytest

from hpcverify.check import Cause, Unable
from hpcverify_checks.storage.compare import explain_wrong, find_wrong
from hpcverify_checks.storage.small_files import (
    FILE_BYTES,
    SmallFiles,
    read_files,
    remove_files,
    write_files,
)
from tests.checks.storage.disks import flip_below, mounted

pytestmark = pytest.mark.needs("fio")

FILES = SmallFiles(folder=Path("/scratch/files"), count=6, seed=5, direct=True)
SOUND = {n: FILES.make_content(n, FILES.find_generation(n)) for n in range(FILES.count)}


def test_small_files_are_timed_call_by_call_and_gone(disk: Path) -> None:
    files = replace(FILES, folder=disk / "files", count=200)
    times = write_files(files)
    answers, reading, _ = read_files(files)
    times |= {"read": reading, **remove_files(files)}

    assert find_wrong(files, answers) == []
    assert {name: len(calls.seconds) for name, calls in times.items()} == {
        **dict.fromkeys(("create", "write", "read", "stat", "unlink"), 200),
        "overwrite": 100,
    }
    assert all(0 < calls.p99 <= max(calls.seconds) * 1e3 for calls in times.values())
    assert {path.name for path in disk.iterdir()} == {"lost+found"}


def test_a_write_that_is_cut_short_is_an_error_and_no_wrong_data(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES // 4, before[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            write_files(replace(FILES, folder=tmp_path / "files"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_no_two_writes_put_the_same_content_anywhere() -> None:
    other = replace(FILES, seed=6)
    contents = [
        files.make_content(number, generation)
        for files in (FILES, other)
        for number in range(50)
        for generation in (0, 1)
    ]

    assert len(set(contents)) == 200
    assert {len(content) for content in contents} == {FILE_BYTES}


@pytest.mark.parametrize("direct", [True, False])
def test_the_disk_answers_and_not_the_page_cache(disk: Path, image: Path, *, direct: bool) -> None:
    files = replace(FILES, folder=disk / "files", direct=direct)
    write_files(files)
    flip_below(image, files.locate(3), at=77)
    assert files.locate(3).read_bytes() == SOUND[3]  # so the page cache has the right bytes

    answers, _, cached = read_files(files)

    assert find_wrong(files, answers) == [3]
    assert cached == 0


def test_where_there_is_no_disk_the_page_cache_keeps_all(tmp_path: Path) -> None:
    with mounted("-t", "tmpfs", "tmpfs", tmp_path / "m") as point:
        files = replace(FILES, folder=point / "files", direct=False)
        write_files(files)
        answers, _, cached = read_files(files)

    assert find_wrong(files, answers) == []
    assert cached == files.count * FILE_BYTES


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (None, "is lost"),
        (b"", "has 0 of 4096 bytes"),
        (SOUND[2][:2048], "has 2048 of 4096 bytes"),
        (SOUND[2] + b"x", "has 4097 of 4096 bytes"),
        (SOUND[4], "holds the data of /scratch/files/4"),
        (FILES.make_content(5, 1), "holds the data of /scratch/files/5"),
        (FILES.make_content(2, 0), "holds what was written before: a write was lost"),
        (
            SOUND[2][:9] + bytes([SOUND[2][9] ^ 4]) + SOUND[2][10:],
            "differs in 1 byte: the first at byte 0x9 is ",
        ),
    ],
    ids=["lost", "empty", "short", "long", "swapped", "old of another", "stale", "flipped"],
)
def test_a_wrong_file_is_described_by_what_it_holds(answer: bytes | None, said: str) -> None:
    answers = {**SOUND, 2: answer}
    assert find_wrong(FILES, answers) == [2]

    fault = explain_wrong(FILES, answers, answers)

    assert str(fault).startswith(f"1 of 6 small files are wrong: /scratch/files/2 {said}")
    assert fault.evidence["read again"] == "wrong"


def test_a_file_that_is_right_when_read_again_was_spoiled_on_its_way() -> None:
    fault = explain_wrong(FILES, {**SOUND, 2: b""}, SOUND)

    assert fault.evidence["read again"] == "clean"


@pytest.mark.parametrize(("first", "second"), [(1, 3), (6, 6)], ids=["goes on", "all are gone"])
def test_files_that_a_clean_up_removes_accuse_no_disk(first: int, second: int) -> None:
    left, later = ({n: None if n < lost else SOUND[n] for n in SOUND} for lost in (first, second))

    with pytest.raises(Unable, match="was emptied while the check ran") as caught:
        explain_wrong(FILES, left, later)

    assert caught.value.cause is Cause.MISCONFIGURED
