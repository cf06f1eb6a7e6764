"""Memory of the host that does not hold what was written fails, and sound memory passes."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from msgspec import structs
from torch import Tensor

from hpcverify.check import Unable
from hpcverify.model import Cause, CheckItem, Coverage, Finding, Remedy, Verdict
from hpcverify.telemetry.memory import NumaNode
from hpcverify.testing import find_value, judge_items, list_findings, make_context
from hpcverify.units import GIB, MIB
from hpcverify_checks import host_memory
from hpcverify_checks.exact import march as marching
from hpcverify_checks.exact.march import MemorySeams
from hpcverify_checks.host_memory import CHECK, HostMemoryParams
from hpcverify_checks.host_memory.mapping import count_nodes, map_chunk
from hpcverify_checks.host_memory.regions import (
    WORDS_PER_PIECE,
    HostMemory,
    choose_chunk_bytes,
    find_host_memory,
)
from tests.checks.exact.faulty_memory import (
    EFFECTS,
    Cell,
    Coupling,
    Effect,
    FaultyTorch,
    contains,
)

CHUNK = 16 * 1024
CORES = tuple(sorted(os.sched_getaffinity(0)))
BAD = CORES[-1]
needs_two_cores = pytest.mark.skipif(len(CORES) < 2, reason="one core cannot be told from another")


class Clock:
    """Stands still, but for rests, which take a little longer than they should."""

    def __init__(self, on_rest: Callable[[], object] = int, step: float = 0.0) -> None:
        """Begin at 0; each look takes a *step*."""
        self.now = 0.0
        self._on_rest, self._step = on_rest, step

    def read(self) -> float:
        self.now += self._step
        return self.now

    def rest(self, seconds: float) -> None:
        self.now += 1.1 * seconds
        self._on_rest()


def map_small(size: int, _node: int) -> Tensor:
    return torch.randint(-(2**63), 2**63 - 1, (size // 8,))


def make_host(
    chunks: int = 8, nodes: int = 1, on_rest: Callable[[], object] = int, **changes: object
) -> HostMemory:
    """Make a host with so many chunks free on each node, which takes no time."""
    clock = Clock(on_rest)
    several = tuple(NumaNode(n, CORES if n == 0 else (), chunks * CHUNK) for n in range(nodes))
    made = HostMemory(
        several,
        read_free=lambda: chunks * nodes * CHUNK,
        map_chunk=map_small,
        count_nodes=lambda _: None,
        find_physical_address=lambda _: 0x1234567890,
        chunk_bytes=CHUNK,
        words_per_piece=128,
        rest=clock.rest,
        read_clock=clock.read,
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def examine(
    tmp_path: Path, host: HostMemory, seed: int = 1, seconds: float = 5.0
) -> list[CheckItem]:
    """Make one pass: its pauses take all of the time."""
    params = HostMemoryParams(seconds=seconds, pause=2.4)
    return list(host_memory.measure(make_context(tmp_path, seed=seed), params, host))


def test_sound_memory_passes_each_time(tmp_path: Path) -> None:
    for seed in range(20):
        found = examine(tmp_path, make_host(), seed=seed)
        assert judge_items(CHECK, found).verdict is Verdict.PASS
        assert find_value(found, "mismatches") == 0


def test_memory_of_this_host_passes_in_chunks_of_the_real_size(tmp_path: Path) -> None:
    real = find_host_memory()
    (first, *_) = real.nodes
    little = structs.replace(first, free=len(CORES) * 4 * real.chunk_bytes)
    host = replace(make_host(), nodes=(little,), chunk_bytes=real.chunk_bytes)
    host = replace(host, read_free=lambda: little.free, map_chunk=map_chunk)
    host = replace(host, count_nodes=count_nodes, words_per_piece=WORDS_PER_PIECE)
    found = examine(tmp_path, host)
    assert judge_items(CHECK, found).verdict is Verdict.PASS
    assert find_value(found, "tested", f"numa{first.number}") == little.free / 2


@pytest.mark.parametrize(
    ("cache_mib", "free_gib", "chunk_mib"),
    [
        (480, 1.88, 448),  # the cache of the whole host, shown to a small virtual machine
        (480, 64, 960),
        (480, 0.1, 64),
        (32, 64, 64),
        (1, 64, 64),
    ],
)
def test_chunks_are_larger_than_caches_where_there_is_room(
    cache_mib: int, free_gib: float, chunk_mib: int
) -> None:
    nodes = (NumaNode(0, CORES, int(free_gib * GIB)), NumaNode(1, (), 0))
    chunk = choose_chunk_bytes(nodes, cache_mib * MIB, nodes[0].free)
    assert chunk == chunk_mib * MIB


@pytest.mark.parametrize(("cache", "is_said"), [(0, False), (2 * CHUNK, False), (8 * CHUNK, True)])
def test_what_a_cache_may_have_answered_is_said(
    tmp_path: Path, cache: int, *, is_said: bool
) -> None:
    found = examine(tmp_path, make_host(chunks=8, cache_bytes=cache))
    texts = [item.text for item in found if isinstance(item, Coverage)]
    assert any("may have answered" in text for text in texts) is is_said


def test_half_of_the_memory_of_each_node_is_tested(tmp_path: Path) -> None:
    found = examine(tmp_path, make_host(chunks=16, nodes=2))
    for part_id in ("numa0", "numa1"):
        assert find_value(found, "covered", part_id) == 0.5
    texts = [item.text for item in found if isinstance(item, Coverage)]
    assert "(50%)" in texts[0]
    assert not any("no time or no room" in text for text in texts)
    assert "does not say on which NUMA node" in texts[-1]


def test_what_the_kernel_put_elsewhere_counts_where_it_is(tmp_path: Path) -> None:
    host = make_host(nodes=2, count_nodes=lambda words: Counter({1: words.numel() * 8}))
    found = examine(tmp_path, host)
    assert find_value(found, "tested", "numa0") == 0
    judgement = judge_items(CHECK, found)
    assert (judgement.verdict, judgement.cause) == (Verdict.ERROR, Cause.NO_SPACE)
    assert "numa0" in judgement.reason


def test_with_little_time_less_is_tested_and_said_to_be(tmp_path: Path) -> None:
    clock = Clock(step=0.001)
    host = make_host(chunks=400, read_clock=clock.read, rest=clock.rest)
    found = examine(tmp_path, host, seconds=4.9)
    covered = find_value(found, "covered")
    assert covered is not None
    assert 0 < covered < 0.5
    assert judge_items(CHECK, found).verdict is Verdict.PASS
    texts = [item.text for item in found if isinstance(item, Coverage)]
    assert any("no time or no room for half of it" in text for text in texts)


def test_on_a_busy_host_memory_is_given_back_to_end_in_time(tmp_path: Path) -> None:
    clock = Clock()
    reads = list[int]()

    def read(words: Tensor, mask: int, out: Tensor) -> None:
        reads.append(1)
        clock.now += 0.001 if len(reads) < 600 else 0.5  # then the machine is busy
        marching.read(words, mask, out)

    host = make_host(chunks=64, read_clock=clock.read, rest=clock.rest)
    host = replace(host, seams=MemorySeams(read=read))
    found = examine(tmp_path, host, seconds=20.0)
    covered = find_value(found, "covered")
    assert covered is not None
    assert covered < 0.5
    assert judge_items(CHECK, found).verdict is Verdict.PASS


def test_no_more_is_taken_than_leaves_a_quarter_to_others(tmp_path: Path) -> None:
    taken = list[Tensor]()

    def grab(size: int, node: int) -> Tensor:
        taken.append(map_small(size, node))
        return taken[-1]

    # Others take memory as fast as we do: of 64 chunks, 48 are gone after 16 of ours.
    host = make_host(chunks=64, map_chunk=grab, read_free=lambda: (64 - 3 * len(taken)) * CHUNK)
    examine(tmp_path, host)
    assert len(taken) <= 16 + len(CORES)


def test_memory_is_given_back_if_others_need_it_meanwhile(tmp_path: Path) -> None:
    free = [64 * CHUNK]

    def crowd() -> None:
        free[0] = 4 * CHUNK

    host = make_host(chunks=64, read_free=lambda: free[0], on_rest=crowd)
    found = examine(tmp_path, host)
    covered = find_value(found, "covered")
    assert covered is not None
    assert covered < 0.4
    assert judge_items(CHECK, found).verdict is Verdict.PASS


def test_too_little_memory_is_no_space_with_what_is_needed(tmp_path: Path) -> None:
    with pytest.raises(Unable, match="must be free") as caught:
        examine(tmp_path, make_host(chunks=1))
    assert caught.value.cause is Cause.NO_SPACE


def refuse(_size: int, _node: int) -> Tensor:
    raise OSError(12, "Cannot allocate memory")


def test_a_limit_of_the_process_is_no_space(tmp_path: Path) -> None:
    with pytest.raises(Unable) as caught:
        examine(tmp_path, make_host(map_chunk=refuse))
    assert caught.value.cause is Cause.NO_SPACE


class Lab:
    """Keeps the chunks that were mapped, so that a fault can be put into one of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.chunks: list[Tensor] = []
        self.cores: list[int] = []
        self._patch = monkeypatch

    def map(self, size: int, node: int) -> Tensor:
        self.chunks.append(map_small(size, node))
        self.cores.append(min(os.sched_getaffinity(0)))
        return self.chunks[-1]

    def list_own(self, core: int) -> list[Tensor]:
        return [c for c, owner in zip(self.chunks, self.cores, strict=True) if owner == core]

    def install(self, after_write: Callable[[Tensor], object]) -> None:
        """Put a fault under torch that acts after each write."""
        self._patch.setattr(torch, "bitwise_xor", FaultyTorch(self.chunks, after_write).xor)


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch) -> Lab:
    return Lab(monkeypatch)


def only(found: Sequence[CheckItem]) -> Finding:
    judgement = judge_items(CHECK, found)
    assert (judgement.verdict, judgement.remedy) == (Verdict.FAIL, Remedy.REPLACE)
    assert CHECK.finding_rules[list_findings(found)[0].code].conclusive
    return list_findings(found)[0]


@pytest.mark.parametrize("value", [0, 1])
def test_a_stuck_bit_is_found_with_its_place(tmp_path: Path, lab: Lab, value: int) -> None:
    def hold(_: Tensor) -> None:
        for chunk in lab.chunks[2:3]:
            Cell(chunk, 300, 17).write(value)

    lab.install(hold)

    finding = only(examine(tmp_path, make_host(map_chunk=lab.map)))

    assert finding.part_id == "numa0"
    assert finding.evidence[f"bits_{1 - value}_to_{value}"] == "17"
    assert finding.evidence["virtual"] == hex(lab.chunks[2].data_ptr() + 300 * 8)
    assert "physical address 0x1234567890" in finding.text
    assert finding.evidence["same_core"] == "wrong 3 of 3 times"
    if len(CORES) > 1:
        assert finding.evidence["another_core"] == "wrong 3 of 3 times"


@pytest.mark.parametrize("effect", EFFECTS.values(), ids=list(EFFECTS))
@pytest.mark.parametrize("ends", [(0, -1), (-1, 0)], ids=["aggressor first", "victim first"])
def test_a_cell_that_another_one_of_its_region_changes_is_found(
    tmp_path: Path, lab: Lab, ends: tuple[int, int], effect: Effect
) -> None:
    faults: list[Coupling] = []

    def start() -> None:  # all chunks are mapped by then
        if not faults:
            aggressor, victim = (Cell(lab.list_own(BAD)[n], 200, 9) for n in ends)
            faults.append(Coupling(aggressor, victim, (0, 1), effect))
            faults[0].before = aggressor.read()
            lab.install(watch)

    def watch(words: Tensor) -> None:
        if faults[0].aggressor.find_in(words) is not None:
            faults[0].disturb(words)
            faults[0].before = faults[0].aggressor.read()

    found = examine(tmp_path, make_host(map_chunk=lab.map, on_rest=start))

    assert only(found).evidence["virtual"] == hex(lab.list_own(BAD)[ends[1]].data_ptr() + 1600)


def test_memory_that_forgets_in_a_pause_is_found(tmp_path: Path, lab: Lab) -> None:
    host = make_host(map_chunk=lab.map, on_rest=lambda: Cell(lab.chunks[1], 77, 5).write(0))

    finding = only(examine(tmp_path, host))

    assert finding.evidence["bits_1_to_0"] == "5"
    assert finding.evidence["same_core"] == "wrong 0 of 3 times"


def test_without_a_fault_the_same_memory_passes(tmp_path: Path, lab: Lab) -> None:
    lab.install(lambda _: None)
    found = examine(tmp_path, make_host(map_chunk=lab.map))
    assert judge_items(CHECK, found).verdict is Verdict.PASS


@needs_two_cores
def test_a_core_that_reads_wrongly_is_accused_and_not_the_memory(tmp_path: Path) -> None:
    def read(words: Tensor, mask: int, out: Tensor) -> None:
        marching.read(words, mask, out)
        if os.sched_getaffinity(0) == {BAD}:
            out[3].bitwise_xor_(4)

    found = examine(tmp_path, make_host(seams=MemorySeams(read=read)))
    finding = only(found)

    assert {f.part_id for f in list_findings(found)} == {f"cpu{BAD}"} == {finding.part_id}
    assert find_value(found, "mismatches", "numa0") == 0
    assert find_value(found, "mismatches", f"cpu{BAD}")
    assert finding.text.startswith(f"core {BAD}, ")
    assert finding.evidence["another_core"] == "wrong 0 of 3 times"


def test_a_blind_comparison_is_reported_as_such(tmp_path: Path) -> None:
    with pytest.raises(Unable, match="did not notice") as caught:
        examine(tmp_path, make_host(seams=MemorySeams(compare=lambda _found, _right: None)))
    assert caught.value.cause is Cause.CHECKER


def test_the_pauses_are_those_that_were_asked_for(tmp_path: Path) -> None:
    asked = list[float]()
    params = HostMemoryParams(seconds=1, pause=120)
    host = make_host(rest=asked.append)
    host = replace(host, read_clock=lambda: sum(asked))
    list(host_memory.measure(make_context(tmp_path), params, host))
    assert asked == [120, 120]


def test_chunks_belong_to_the_cores_that_sweep_them(tmp_path: Path, lab: Lab) -> None:
    writers: dict[int, set[int]] = {}

    def note(words: Tensor) -> None:
        (number,) = (n for n, chunk in enumerate(lab.chunks) if contains(chunk, words))
        writers.setdefault(number, set()).update(os.sched_getaffinity(0))

    lab.install(note)
    examine(tmp_path, make_host(chunks=8 * len(CORES), map_chunk=lab.map))
    assert all(len(cores) == 1 for cores in writers.values())
    assert set().union(*writers.values()) == set(CORES)


def test_the_selftest_finds_what_it_puts_in(tmp_path: Path) -> None:
    trials = list(CHECK.selftest(make_context(tmp_path))) if CHECK.selftest else []
    assert [t.fault for t in trials if not t.is_as_expected] == []
    assert len(trials) == 6
