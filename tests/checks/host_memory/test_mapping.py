"""Chunks of real memory are where they were asked for, and the kernel tells where that is."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from hpcverify.telemetry.memory import list_numa_nodes
from hpcverify_checks.host_memory.mapping import (
    CALL_NUMBERS,
    count_nodes,
    die_first,
    find_nodes,
    find_physical_address,
    map_chunk,
)

SIZE = 2**22
needs_calls = pytest.mark.skipif(
    platform.machine() not in CALL_NUMBERS, reason="the numbers of the calls are not known here"
)


@needs_calls
def test_a_chunk_is_on_the_node_that_was_asked_for() -> None:
    for node in list_numa_nodes():
        words = map_chunk(SIZE, node.number)
        assert words.numel() * 8 == SIZE
        counted = count_nodes(words)
        if counted is not None:  # a container may forbid the question
            assert counted == {node.number: SIZE}


def test_a_page_that_is_not_there_has_no_node() -> None:
    assert find_nodes([8]) is None


def test_the_physical_address_has_the_offset_of_the_virtual_one() -> None:
    words = map_chunk(SIZE, 0)
    address = words.data_ptr() + 8 * 700
    found = find_physical_address(address)
    assert found is None or found % 4096 == address % 4096


@pytest.mark.parametrize(
    ("entry", "expected"),
    [(1 << 63 | 0x1234, 0x1234_678), (0x1234, None), (1 << 63, None)],
    ids=["present", "not present", "not privileged"],
)
def test_a_page_frame_is_read_from_its_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entry: int, expected: int | None
) -> None:
    monkeypatch.setattr("os.sysconf", lambda _: 4096)
    folder = tmp_path / "proc/self"
    folder.mkdir(parents=True)
    (folder / "pagemap").write_bytes(bytes(8 * 5) + entry.to_bytes(8, "little"))
    assert find_physical_address(5 * 4096 + 0x678, tmp_path) == expected
    assert find_physical_address(5 * 4096, tmp_path / "none") is None


def test_this_process_offers_itself_to_the_oom_killer_and_takes_it_back(tmp_path: Path) -> None:
    score = tmp_path / "oom_score_adj"
    score.write_text("-17\n")
    with die_first(score):
        assert score.read_text() == "1000"
    assert score.read_text() == "-17"
    with die_first(tmp_path / "no folder/score"):
        pass
