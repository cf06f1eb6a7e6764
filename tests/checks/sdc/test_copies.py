"""Copies in which every byte is compared, and copies that go wrong."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Generator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from msgspec import structs
from torch import Tensor

from hpcverify.check import Unable
from hpcverify.model import (
    Cause,
    CheckItem,
    Coverage,
    Device,
    Finding,
    FindingRule,
    Limit,
    Measurement,
    Remedy,
    Verdict,
)
from hpcverify.testing import judge_by, list_findings, make_context
from hpcverify_checks import sdc
from hpcverify_checks.exact.transfers import Copy, copy
from hpcverify_checks.exact.vote import HOST_MEMORY, MEMORY_CODE, PRODUCT_FINDING_RULES
from hpcverify_checks.sdc import copies as copy_phase
from hpcverify_checks.sdc.copies import (
    CopyPath,
    CopyTally,
    CountUnequal,
    PlannedCopy,
    check_copies,
    copy_for_seconds,
    draw_copies,
)

ROOM = 2**18
MEMORY_RULE = PRODUCT_FINDING_RULES[MEMORY_CODE]
HOST = torch.device("cpu")
RULINGS = {"miscopied": FindingRule(Verdict.FAIL, Remedy.INSPECT), MEMORY_CODE: MEMORY_RULE}
LIMITS = [Limit("copied_wrong_words", high=0)]
LARGE = 1000
"""Bytes from which on the copies here go wrong."""


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copy between small memories: what goes wrong is the same."""
    monkeypatch.setattr(copy_phase, "ROOM_BYTES", {"cuda": ROOM, "cpu": ROOM})


def flip(target: Tensor) -> None:
    target[len(target) // 3] ^= 16


def duplicate(target: Tensor) -> None:
    target[256:512] = target[:256].clone()


def swap(target: Tensor) -> None:
    first = target[8:16].clone()
    target[8:16] = target[80:88]
    target[80:88] = first


def overrun(target: Tensor) -> None:
    beyond = target.as_strided((len(target) + 1,), (1,), target.storage_offset())
    beyond[-1] = 0


DAMAGE: dict[str, Callable[[Tensor], None]] = {
    "flip": flip,
    "duplicate": duplicate,
    "swap": swap,
    "overrun": overrun,
}
TEXTS = {"flip": "1 bytes, changed", "overrun": "bytes around it were overwritten"}


def damaging(damage: Callable[[Tensor], None], first: int = 0) -> Copy:
    """Copy, and damage what arrived of each large copy from the *first* on."""
    count = iter(range(10**6))

    def faulty(target: Tensor, source: Tensor) -> None:
        copy(target, source)
        if len(target) > LARGE and next(count) >= first:
            damage(target)

    return faulty


def idle(_target: Tensor, _source: Tensor) -> None:
    """Copy nothing."""


def short(target: Tensor, source: Tensor) -> None:
    """Leave out the last byte."""
    copy(target[:-1], source[:-1])


def late(target: Tensor, source: Tensor) -> None:
    """Take the words from one place too far up."""
    copy(target, source.roll(-8))


def way(by: Copy = copy) -> CopyPath:
    sent = copy_phase.make_source(1, ROOM, HOST)
    return CopyPath("here", sent, torch.empty_like(sent), sent.clone(), by)


def laid(seed: int) -> list[PlannedCopy]:
    return draw_copies(random.Random(seed), ROOM)  # noqa: S311 - no secret


def lapped(by: Copy, seconds: float = 0.0, part_id: str = "cpu0") -> CopyTally:
    return copy_for_seconds([way(by)], part_id, seed=1, seconds=seconds)


def only(tally: CopyTally) -> Finding:
    (finding,) = tally.findings
    return finding


def test_copies_that_arrive_whole_are_never_called_wrong() -> None:
    tally = lapped(copy, seconds=0.3)
    assert tally.copies > 1
    assert (tally.wrong.total(), tally.findings) == (0, ())
    assert tally.bytes > tally.copies


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_found_and_described(kind: str) -> None:
    tally = lapped(damaging(DAMAGE[kind]), part_id="GPU-0")
    assert tally.wrong.total() > 0
    finding = only(tally)
    assert finding.code == "miscopied"
    assert TEXTS.get(kind, "bytes, changed") in finding.text
    assert finding.evidence["reruns"].startswith("persistent")
    assert finding.evidence["place"].startswith("the copy")


@pytest.mark.parametrize("by", [idle, short])
def test_what_was_not_written_is_told_from_what_was_changed(by: Copy) -> None:
    finding = only(lapped(by))
    assert "never written" in finding.evidence["what"]


def test_a_copy_that_takes_its_words_from_elsewhere_is_found() -> None:
    finding = only(lapped(late))
    assert finding.evidence["offset"] == "0x0"
    assert finding.evidence["found"] != finding.evidence["expected"]


def test_one_flipped_bit_is_one_wrong_word_with_its_bytes() -> None:
    tally = lapped(damaging(flip, first=0))
    evidence = only(tally).evidence
    assert evidence["wrong_words"] == "1"
    had, wanted = (bytes.fromhex(evidence[name]) for name in ("found", "expected"))
    differing = [a ^ b for a, b in zip(had, wanted, strict=True) if a != b]
    assert differing == [16]
    assert int(evidence["offset"], 16) == int(evidence["bytes"]) // 3


def test_a_copy_that_goes_wrong_once_is_intermittent() -> None:
    count = iter(range(10**6))

    def once(target: Tensor, source: Tensor) -> None:
        copy(target, source)
        if next(count) == 0:
            flip(target)

    assert only(lapped(once)).evidence["reruns"] == "intermittent: 0 of 3 reruns wrong"


def test_a_fault_that_comes_late_is_found_while_time_is_left() -> None:
    tally = lapped(damaging(flip, first=40), seconds=30)
    assert len(tally.findings) == 1
    assert tally.copies > 40


def spoiled() -> Tensor:
    made = copy_phase.make_source(1, ROOM, HOST)
    made[::100] ^= 1
    return made


@pytest.mark.parametrize(
    ("bad", "place"),
    [
        (replace(way(), source=spoiled()), "copied from"),
        (replace(way(), expected=spoiled()), "compared with"),
    ],
)
def test_memory_that_is_wrong_is_not_taken_for_the_copy(bad: CopyPath, place: str) -> None:
    tally = copy_for_seconds([bad], "cpu0", seed=1, seconds=0)
    assert only(tally).evidence["place"] == f"memory that it was {place}"


def test_a_way_that_errs_is_left_and_the_others_go_on() -> None:
    left = iter(range(3 * copy_phase.MAX_COPIES_PER_LAP))

    def ends(target: Tensor, source: Tensor) -> None:
        if next(left, None) is None:
            raise RuntimeError(ILLEGAL)
        copy(target, source)

    tally = copy_for_seconds([way(idle), way(ends)], "GPU-0", seed=1, seconds=60)
    assert len(tally.findings) == 1
    assert isinstance(tally.error, RuntimeError)


@pytest.mark.parametrize("counted", [0, 2])
def test_a_comparison_that_sleeps_is_reported_as_such(counted: int) -> None:
    def blind(found: Tensor, expected: Tensor) -> Tensor:
        return torch.count_nonzero(copy_phase.count_unequal_words(found, expected)) * counted

    tally = copy_for_seconds([replace(way(), count_unequal=blind)], "cpu0", seed=1, seconds=0)
    assert isinstance(tally.error, Unable)
    assert "do not trust its other answers" in str(tally.error)
    assert (tally.error.cause, tally.error.remedy) == (Cause.CHECKER, Remedy.FIX_CHECKER)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="no other core to ask")
def test_a_core_whose_comparison_sleeps_where_anothers_does_not_errs_and_not_the_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, count = max(os.sched_getaffinity(0)), copy_phase.count_unequal_words

    def blind(found: Tensor, expected: Tensor) -> Tensor:
        return count(found, expected) * (os.sched_getaffinity(0) != {bad})

    monkeypatch.setattr(CopyPath.__init__, "__defaults__", (blind,))
    steps = check_copies(make_context(tmp_path), HOST, 0.0)
    caught = None

    def drain() -> Generator[CheckItem]:
        nonlocal caught
        caught = yield from steps

    list(drain())
    assert isinstance(caught, Unable)
    assert str(caught).startswith(f"cpu{bad}: ")
    assert "do not trust" in str(caught)
    assert (caught.cause, caught.remedy) == (Cause.CHECKER, Remedy.INSPECT)


ILLEGAL = "CUDA error: an illegal memory access was encountered"


def lost(_target: Tensor, _source: Tensor) -> None:
    raise RuntimeError(ILLEGAL)


def test_what_was_found_outlives_what_ends_the_copies() -> None:
    tally = copy_for_seconds([way(idle), way(lost)], "GPU-1", seed=1, seconds=1)
    assert only(tally).code == "miscopied"
    assert isinstance(tally.error, RuntimeError)


def test_reruns_that_are_not_possible_are_said_to_be_so() -> None:
    piece = PlannedCopy(source=0, target=64, size=64)
    found = copy_phase.investigate_miscopy(way(lost), [piece], [1], 1, "GPU-1")
    assert found.evidence["reruns"] == f"no reruns: {ILLEGAL}"


def counting_wrongly(times: int) -> CountUnequal:
    """Count one word too many, so many times."""
    left = iter(range(times))

    def count(found: Tensor, expected: Tensor) -> Tensor:
        return copy_phase.count_unequal_words(found, expected) + (next(left, None) is not None)

    return count


def test_a_core_of_the_host_that_miscounts_once_fails_no_gpu() -> None:
    bad = replace(way(), count_unequal=counting_wrongly(1))
    tally = copy_for_seconds([bad], "GPU-0", seed=1, seconds=0)
    rule = sdc.CHECK.finding_rules[only(tally).code]

    assert (only(tally).part_id, only(tally).code) == ("GPU-0", "unwitnessed")
    assert (rule.verdict, rule.remedy, rule.conclusive) == (Verdict.ERROR, Remedy.INSPECT, False)
    assert tally.wrong.total() == 0


def test_words_around_a_copy_that_the_host_wrote_wrongly_once_fail_no_gpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fill, left = Tensor.fill_, iter([True])

    def err(self: Tensor, value: int) -> Tensor:
        made = fill(self, value)
        if next(left, False):
            made[0] ^= 4
        return made

    monkeypatch.setattr(Tensor, "fill_", err)

    assert only(lapped(copy, part_id="GPU-0")).code == "unwitnessed"


@pytest.mark.parametrize("seed", range(50))
def test_copies_are_drawn_apart_from_each_other_and_within_the_room(seed: int) -> None:
    pieces = laid(seed)
    assert len(pieces) > 1
    assert pieces[0].size == ROOM // 2
    for piece, following in zip(pieces, [*pieces[1:], None], strict=True):
        limit = following.target if following else ROOM
        assert 0 < piece.target < piece.guard_after.stop <= limit
        assert 0 <= piece.source < piece.source_slice.stop <= ROOM


def test_copies_of_all_sizes_begin_on_all_alignments() -> None:
    pieces = [p for seed in range(50) for p in laid(seed)]
    sizes = {piece.size.bit_length() for piece in pieces}
    assert sizes == set(range(1, ROOM.bit_length()))
    for offsets in ({p.source % 8 for p in pieces}, {p.target % 8 for p in pieces}):
        assert offsets == set(range(8))
    assert any(p.source % 4096 == p.target % 4096 == 0 for p in pieces)


@pytest.mark.parametrize("size", [1, 7, 8, 9, 1000, 2 * copy_phase.CHUNK_BYTES + 5])
def test_all_words_that_differ_are_counted(size: int) -> None:
    right = torch.arange(size, dtype=torch.uint8)
    wrong = right.clone()
    assert int(copy_phase.count_unequal_words(wrong, right)) == 0
    wrong[0] ^= 1
    wrong[-1] ^= 128
    assert int(copy_phase.count_unequal_words(wrong, right)) == (1 if size <= 8 else 2)


def test_all_cores_copy_and_pass(tmp_path: Path) -> None:
    found = list(check_copies(make_context(tmp_path), HOST, 0.2))
    numbers = [f for f in found if isinstance(f, Measurement)]
    assert {m.part_id for m in numbers} == {f"cpu{c}" for c in os.sched_getaffinity(0)}
    assert all(m.value == 0 for m in numbers if m.name == "copied_wrong_words")
    assert all(m.value and m.unit == "B" for m in numbers if m.name == "copied_bytes")
    assert not list_findings(found)


def test_a_core_that_copies_wrongly_fails_and_alone(tmp_path: Path) -> None:
    bad = max(os.sched_getaffinity(0))

    def faulty(target: Tensor, source: Tensor) -> None:
        copy(target, source)
        if os.sched_getaffinity(0) == {bad}:
            flip(target)

    found = list(check_copies(make_context(tmp_path), HOST, 0.0, faulty))
    judgement = judge_by(
        (f for f in found if isinstance(f, (Measurement, Finding))), LIMITS, RULINGS
    )
    assert (judgement.verdict, judgement.remedy) == (Verdict.FAIL, Remedy.INSPECT)
    assert {f.part_id for f in list_findings(found)} == {f"cpu{bad}"}
    assert [f.evidence["way"] for f in list_findings(found)] == ["with torch"]


class RottingSource:
    """Copies as it should, from memory in which *size* bytes change at the first copy."""

    def __init__(self, size: int) -> None:
        """Harm nothing yet."""
        self._left = size

    def __call__(self, target: Tensor, source: Tensor) -> None:
        """Let the bytes rot, then copy."""
        rotten = source[: self._left]
        rotten ^= 1
        self._left -= len(rotten)
        copy(target, source)


@pytest.mark.parametrize("size", [1, 8192])
def test_a_source_that_rots_fails_the_memory_once(tmp_path: Path, size: int) -> None:
    found = list(check_copies(make_context(tmp_path), HOST, 0.0, RottingSource(size)))

    judgement = judge_by(
        (f for f in found if isinstance(f, (Measurement, Finding))), LIMITS, RULINGS
    )
    assert judgement.verdict is Verdict.FAIL
    [finding] = list_findings(found)
    assert (finding.part_id, finding.code) == (HOST_MEMORY, MEMORY_CODE)
    assert finding.evidence["place"] == "memory that it was copied from"
    assert not MEMORY_RULE.conclusive  # or the core that wrote it erred, once
    wrong = {m.part_id: m.value for m in found if isinstance(m, Measurement) and "wrong" in m.name}
    assert wrong == {f"cpu{core}": 0 for core in os.sched_getaffinity(0)}


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="no other core to ask")
def test_memory_that_spoils_the_copies_of_every_core_accuses_none(tmp_path: Path) -> None:
    found = list(check_copies(make_context(tmp_path), HOST, 0.0, damaging(flip)))

    [finding] = list_findings(found)
    assert (finding.part_id, finding.code) == (HOST_MEMORY, MEMORY_CODE)
    assert "makes the same copy wrongly, too" in finding.evidence["place"]
    wrong = {m.part_id: m.value for m in found if isinstance(m, Measurement) and "wrong" in m.name}
    assert wrong == {f"cpu{core}": 0 for core in os.sched_getaffinity(0)}


def test_what_must_arrive_is_made_apart_from_what_is_copied() -> None:
    sent, expected = copy_phase.make_both(sorted(os.sched_getaffinity(0)), 1, ROOM)
    assert torch.equal(sent, expected)
    paths = copy_phase.make_core_paths(sent, expected, copy)
    paths += copy_phase.make_gpu_paths(HOST, 1, ROOM, copy)
    assert all(path.source.data_ptr() != path.expected.data_ptr() for path in paths)


def test_a_gpu_copies_on_five_ways_and_each_is_watched(tmp_path: Path) -> None:
    gpu = Device("cuda", "GPU-0", "GPU 0")
    ctx = structs.replace(make_context(tmp_path), device=gpu)
    assert not list_findings(list(check_copies(ctx, HOST, 0.2)))
    found = list(check_copies(ctx, HOST, 0.0, damaging(flip)))
    assert {f.part_id for f in list_findings(found)} == {"GPU-0"}
    assert [f.evidence["way"] for f in list_findings(found)] == [
        "from pinned memory to the GPU",
        "from pageable memory to the GPU",
        "within the GPU's memory",
        "from the GPU to pinned memory",
        "from the GPU to pageable memory",
    ]


def test_coverage_states_what_was_copied(tmp_path: Path) -> None:
    found = list(check_copies(make_context(tmp_path), HOST, 0.1))
    (covered,) = (f for f in found if isinstance(f, Coverage))
    assert "of 1 byte to 0.125 MiB" in covered.text
    assert covered.text.endswith("with torch and with memmove")


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_nothing_between_two_laps_waits_for_the_device(device: str) -> None:
    # On the meta device any look at a value raises.
    sent = torch.empty(ROOM, dtype=torch.uint8, device=device)
    made = CopyPath("there", sent, torch.empty_like(sent), sent, copy)
    pieces = laid(1)
    made.make_copies(pieces)
    assert [made.count_wrong(piece).shape for piece in pieces] == [()] * len(pieces)
