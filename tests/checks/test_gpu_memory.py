"""Memory that does not hold what was written is found, and sound memory passes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import pytest
import torch
from torch import Tensor

from hpcverify.check import Judgement, Skip, Unable
from hpcverify.model import (
    Cause,
    CheckItem,
    Coverage,
    Inventory,
    Measurement,
    Part,
    Remedy,
    Verdict,
)
from hpcverify.testing import find_value, judge_items, list_findings, make_context
from hpcverify_checks import gpu_memory
from hpcverify_checks.common.timing import time_on_host
from hpcverify_checks.gpu_memory import CHECK, GpuMemoryParams, PassTally
from hpcverify_checks.gpu_memory import march as marching
from hpcverify_checks.gpu_memory.allocate import (
    MAX_CHUNK_BYTES,
    MIN_CHUNK_BYTES,
    RESERVE_BYTES,
    DeviceMemory,
    allocate_chunks,
)
from hpcverify_checks.gpu_memory.march import (
    BACKGROUND_NAMES,
    HARDWARE,
    MarchPass,
    Memory,
    MemorySeams,
)

GPU = "GPU-1"
CPU = torch.device("cpu")
AT_ONCE = 128
WORDS = 1100


def chunks(*sizes: int) -> tuple[Tensor, ...]:
    """Make memory that holds what someone left there."""
    return tuple(torch.randint(-(2**63), 2**63 - 1, (size,)) for size in sizes)


def room(total: int = WORDS * 8) -> DeviceMemory:
    return DeviceMemory(total, lambda: 0, lambda _: torch.empty(0))


def enough() -> bool:
    return True


def passes(wanted: int) -> Callable[[], bool]:
    """Be satisfied after so many passes."""
    left = iter(range(wanted - 1))
    return lambda: next(left, None) is None


def examined(
    memory: tuple[Tensor, ...], seams: MemorySeams = HARDWARE, laps: int = 4, seed: int = 1
) -> list[CheckItem]:
    tested = Memory(memory, AT_ONCE, seams)
    return list(gpu_memory.examine_memory(tested, GPU, room(), seed, passes(laps)))


def bit(place: int) -> int:
    return 1 << place if place < 63 else -(1 << 63)


@dataclass
class Faulty:
    """Writes as it should, and does harm after (or also before) the chosen writes."""

    harm: Callable[[Tensor], object]
    before: Callable[[Tensor], object] = lambda _: None
    only: int | None = None
    calls: int = field(default=0, init=False)

    def __call__(self, words: Tensor, table: Tensor, mask: int) -> None:
        """Write, and do harm if it is time."""
        hit = self.only in (None, self.calls)
        self.calls += 1
        if hit:
            self.before(words)
        marching.write(words, table, mask)
        if hit:
            self.harm(words)


@dataclass
class Disturbed:
    """Reads as it should, but for one bit of the reading number *only*."""

    only: int
    word: int = 3
    calls: int = field(default=0, init=False)

    def __call__(self, words: Tensor, mask: int, out: Tensor) -> None:
        """Read, and disturb it if it is time."""
        marching.read(words, mask, out)
        if self.calls == self.only:
            out[self.word].bitwise_xor_(bit(9))
        self.calls += 1


def test_sound_memory_passes_whatever_its_size_and_the_seed() -> None:
    sizes = [(1,), (127, 1), (128,), (129, 64), (640, 333, 65, 62), (1000, 100)]
    for seed in range(25):
        for size in sizes:
            assert list_findings(found := examined(chunks(*size), seed=seed)) == []
            assert find_value(found, "mismatches") == 0


def test_sound_memory_passes_in_pieces_of_the_real_size() -> None:
    memory = Memory(chunks(2 * marching.WORDS_PER_PIECE, 1000))
    total = room(memory.size)
    found = list(gpu_memory.examine_memory(memory, GPU, total, 1, passes(2)))
    assert judge_items(CHECK, found) == Judgement(verdict=Verdict.PASS)


@pytest.mark.parametrize("at", [0, 1])
def test_every_stuck_bit_of_a_word_is_found(at: int) -> None:
    for place in range(64):
        memory = chunks(500, 500, 100)
        cell = memory[1][321]

        def hold(_: Tensor, cell: Tensor = cell, mask: int = bit(place)) -> None:
            _ = cell.bitwise_or_(mask) if at else cell.bitwise_and_(~mask)

        found = examined(memory, MemorySeams(write=Faulty(hold)), laps=1)
        [finding] = list_findings(found)
        assert finding.evidence["bits"] == str(place)
        assert finding.evidence["offset"] == hex((500 + 321) * 8)
        assert finding.evidence["chunk"] == "1"
        assert finding.evidence["again"].startswith("the same when read again")


def test_corrupted_memory_fails_and_the_part_is_to_be_replaced() -> None:
    memory = chunks(1000, 100)
    found = examined(memory, MemorySeams(write=Faulty(lambda _: memory[0][7].fill_(5))))
    judgement = judge_items(CHECK, found)
    assert (judgement.verdict, judgement.remedy) == (Verdict.FAIL, Remedy.REPLACE)
    assert "byte 0x38 of the memory tested: 0x0000000000000005, not 0x" in judgement.reason
    assert "mismatches 3 > 0" in judgement.reason


def test_evidence_says_what_was_expected_and_found() -> None:
    memory = chunks(1000, 100)
    lone = Faulty(lambda _: memory[0][130].bitwise_xor_(bit(63)), only=17)
    [finding] = list_findings(examined(memory, MemorySeams(write=lone), laps=1))
    evidence = finding.evidence
    table, masks = marching.hash_addresses(AT_ONCE, 9, "1 0")
    wanted = ~(int(table[2]) ^ masks[1]) % 2**64
    assert evidence["pattern"] == "hashed addresses, inverted"
    assert int(evidence["expected"], 16) == wanted
    assert int(evidence["found"], 16) == wanted ^ 2**63 == wanted ^ int(evidence["xor"], 16)
    assert (evidence["bits"], evidence["wrong_words"]) == ("63", "1 of 128")
    assert evidence["reference"] == "intact"


def test_a_bit_that_cannot_fall_once_it_has_risen_is_found() -> None:
    memory, kept = chunks(1000, 100), list[Tensor]()
    cell = memory[0][600]
    slow = Faulty(
        before=lambda _: kept.append(cell.clone()),
        harm=lambda _: cell.bitwise_or_(kept.pop() & bit(44)),
    )
    memory[0].zero_()
    [finding] = list_findings(examined(memory, MemorySeams(write=slow), laps=1))
    assert finding.evidence["bits"] == "44"


@pytest.mark.parametrize("shared", [128, 200, 500])
def test_two_addresses_that_lead_to_the_same_cells_are_found(shared: int) -> None:
    whole = torch.zeros(1100 - shared, dtype=torch.int64)
    found = examined((whole[:600], whole[600 - shared :]), laps=1)
    first = list_findings(found)[0]
    assert first.evidence["pattern"] == "hashed addresses"
    assert int(first.evidence["offset"], 16) == (600 - shared) * 8
    assert judge_items(CHECK, found).verdict is Verdict.FAIL


def test_one_uniform_pattern_alone_would_not_see_an_address_fault() -> None:
    whole = torch.zeros(512, dtype=torch.int64)
    memory = Memory((whole, whole), AT_ONCE)
    background = next(islice(marching.generate_backgrounds(AT_ONCE, 8, 1), 1, None))
    bench = memory.start_pass(background)
    for piece in sum(bench.pieces, ()):
        bench.write(piece, marching.PLAIN)
    wrong = [w for pieces in bench.pieces for w in bench.verify(pieces, marching.PLAIN)]
    assert (background.name, wrong) == ("00/FF", [])


def test_a_cell_that_is_disturbed_by_a_write_elsewhere_is_found() -> None:
    memory = chunks(1000, 100)

    def couple(words: Tensor) -> None:
        if words.data_ptr() == memory[0][256:].data_ptr():
            memory[0][900].bitwise_xor_(bit(5))

    assert list_findings(examined(memory, MemorySeams(write=Faulty(couple)), laps=1))


def test_a_tile_that_is_not_written_is_found_and_counted() -> None:
    kept = list[Tensor]()
    for only in range(27):  # of the three writes of each of the nine pieces
        lost = Faulty(
            before=lambda words: kept.append(words[10:20].clone()),
            harm=lambda words: words[10:20].copy_(kept.pop()),
            only=only,
        )
        found = examined(chunks(1000, 100), MemorySeams(write=lost), laps=1)
        assert list_findings(found)[0].evidence["wrong_words"] == f"10 of {size(only)}"


def size(write: int) -> int:
    """Give the words in the piece of the *write*-th write."""
    order = [128] * 7 + [104, 100]
    return [*order, *order, *order[::-1]][write]


def test_a_reading_that_was_disturbed_once_is_told_from_a_bad_cell() -> None:
    for only in range(27):
        found = examined(chunks(1000, 100), MemorySeams(read=Disturbed(only)), laps=1)
        [finding] = list_findings(found)
        assert finding.evidence["again"].startswith("right when read again")
        assert finding.evidence["bits"] == "9"
        assert find_value(found, "mismatches") == 1


def test_a_word_that_is_different_each_time_is_said_to_be() -> None:
    def noisy(words: Tensor, mask: int, out: Tensor) -> None:
        marching.read(words, mask, out)
        out[3].random_()

    found = examined(chunks(1000), MemorySeams(read=noisy), laps=1)
    assert list_findings(found)[0].evidence["again"].startswith("different")


def test_few_wrong_words_are_described_and_all_are_counted() -> None:
    memory = chunks(1000, 100)
    found = examined(memory, MemorySeams(write=Faulty(lambda w: w.zero_())))
    assert len(list_findings(found)) == gpu_memory.MAX_DESCRIBED_WORDS
    assert find_value(found, "mismatches") == 3 * 1100
    assert find_value(found, "passes") == 1


def test_the_same_word_is_described_once() -> None:
    memory = chunks(1000)
    found = examined(memory, MemorySeams(write=Faulty(lambda _: memory[0][7].fill_(5))))
    assert len(list_findings(found)) == 1


def test_a_reference_that_changed_is_said_to_have() -> None:
    spoilt = MemorySeams(write=Spoiler(5))
    found = examined(chunks(1000), spoilt, laps=1)
    assert list_findings(found)[0].evidence["reference"] == "changed in GPU memory"


@dataclass
class Spoiler:
    """Flips a bit of the table before the write number *at*."""

    at: int
    calls: int = field(default=0, init=False)

    def __call__(self, words: Tensor, table: Tensor, mask: int) -> None:
        """Write, and strike if it is time."""
        if self.calls == self.at:
            table[17].bitwise_xor_(1)
        self.calls += 1
        marching.write(words, table, mask)


def test_a_reference_that_was_wrong_from_the_start_is_found() -> None:
    bench = bench_on(Memory(chunks(1000), AT_ONCE))
    bench.table[17].bitwise_xor_(1)
    tally = PassTally()
    [finding] = gpu_memory.run_pass(bench, GPU, tally)
    assert (finding.code, tally.mismatches) == ("memory_corrupted", 1)


def bench_on(memory: Memory, seed: int = 1) -> MarchPass:
    pieces = sum(map(len, memory.split_pieces()))
    return memory.start_pass(
        next(marching.generate_backgrounds(memory.words_per_piece, pieces, seed))
    )


def test_a_blind_comparison_makes_the_check_report_itself() -> None:
    def blind(_found: Tensor, _expected: Tensor, row: Tensor) -> None:
        row.zero_()

    with pytest.raises(Unable, match="did not notice") as caught:
        examined(chunks(1000), MemorySeams(compare=blind))
    assert caught.value.cause is Cause.CHECKER


def test_every_word_of_the_hashed_background_is_another() -> None:
    table, masks = marching.hash_addresses(1000, 20, "1 0")
    words = torch.tensor(masks)[:, None] ^ table
    assert len(set(words.flatten().tolist())) == 20_000
    ones = ((words.reshape(-1, 1) >> torch.arange(64)) & 1).double().mean(0)
    assert 0.45 < ones.min() < ones.max() < 0.55


def test_hashed_backgrounds_differ_between_runs_and_laps() -> None:
    def tables(seed: int) -> list[int]:
        made = islice(marching.generate_backgrounds(8, 1, seed), 0, 12, 4)
        return [int(b.table[0]) for b in made]

    assert len({*tables(1), *tables(2)}) == 6
    assert tables(1) == tables(1)


def test_the_walking_bit_comes_to_every_place_of_every_word() -> None:
    laps = [b.table for b in islice(marching.generate_backgrounds(65, 1, 1), 3, 256, 4)]
    seen = torch.stack(laps)
    assert set((seen[:, 64]).tolist()) == {bit(place) for place in range(64)}
    assert all((word % 2**64).bit_count() == 1 for word in seen[0].tolist())


def test_the_first_pass_is_whole_however_little_time_there_is() -> None:
    found = examined(chunks(1000, 100), laps=1)
    assert find_value(found, "passes") == 1
    assert judge_items(CHECK, found).verdict is Verdict.PASS
    [text] = [f.text for f in found if isinstance(f, Coverage)]
    assert "hashed addresses 1; no time for: 00/FF, 55/AA, walking bit" in text


def test_further_patterns_follow_while_time_lasts() -> None:
    found = examined(chunks(1000, 100), laps=9)
    [text] = [f.text for f in found if isinstance(f, Coverage)]
    assert text.endswith("hashed addresses 3, 00/FF 2, 55/AA 2, walking bit 2")
    assert find_value(found, "passes") == 9


def test_every_piece_is_written_first_and_compared_only_then() -> None:
    order: list[str] = []

    def write(words: Tensor, table: Tensor, mask: int) -> None:
        order.append("w")
        marching.write(words, table, mask)

    def read(words: Tensor, mask: int, out: Tensor) -> None:
        order.append("r")
        marching.read(words, mask, out)

    bench = bench_on(Memory(chunks(256, 100), AT_ONCE, MemorySeams(write, read)))
    assert list(marching.find_wrong_pieces(bench)) == []
    assert "".join(order) == "www" + "rrwwrw" + "rwrrww" + "rrr"


def test_nothing_between_two_looks_at_the_log_waits_for_the_device() -> None:
    # On the meta device any look at a value raises; shapes and types are the GPU's.
    memory = Memory((torch.empty(2**27, dtype=torch.int64, device="meta"),))
    bench = memory.start_pass(marching.Background("any", torch.zeros(1), (0,) * 32))
    log = torch.zeros(1, 3, dtype=torch.int64, device="meta")
    for piece in bench.pieces[0]:
        bench.write(piece, marching.INVERSE)
        bench.compare(piece, marching.INVERSE, log[0])
    bench.evict(0)
    assert len(bench.pieces[0]) == 32


def test_what_the_check_needs_besides_fits_into_the_reserve() -> None:
    # Two tables while they change, what was read, its comparison in bytes.
    table = MIN_CHUNK_BYTES
    assert 3 * table + table // 8 < RESERVE_BYTES / 2
    assert MAX_CHUNK_BYTES % MIN_CHUNK_BYTES == 0


@dataclass
class Device:
    """A device with *free* bytes, that grants no chunk above *largest*."""

    free: int
    largest: int = 2**40
    until: int = 0
    """Refuses once no more than this is left, although it is said to be free."""
    granted: list[int] = field(default_factory=list[int])

    def room(self, total: int) -> DeviceMemory:
        """Offer it."""
        return DeviceMemory(total, lambda: self.free, self.allocate)

    def allocate(self, size: int) -> Tensor:
        """Grant or refuse *size* bytes."""
        if size > self.largest or self.free - size < self.until:
            raise torch.OutOfMemoryError("CUDA out of memory")
        self.free -= size
        self.granted.append(size)
        return torch.zeros(size // 8, dtype=torch.int64)


def taken(device: Device) -> tuple[Tensor, ...]:
    return allocate_chunks(device.room(0), largest=8192, smallest=1024, reserve=4096)


def test_all_but_the_reserve_is_taken_in_chunks_that_get_smaller() -> None:
    device = Device(free=8192 * 3 + 4096 + 2048 + 1500)
    assert [8 * chunk.numel() for chunk in taken(device)] == [8192] * 3 + [2048, 1024]
    assert device.free == 4096 + 476


def test_memory_in_pieces_is_taken_in_smaller_chunks() -> None:
    device = Device(free=32768, largest=2048)
    assert sum(8 * chunk.numel() for chunk in taken(device)) == 32768 - 4096
    assert set(device.granted) == {2048}


def tried(device: Device, total: int, seams: MemorySeams = HARDWARE) -> list[CheckItem]:
    memory = Memory(taken(device), AT_ONCE, seams)
    where = device.room(total)
    return list(gpu_memory.examine_memory(memory, GPU, where, 1, enough))


@pytest.mark.parametrize(
    "device",
    [Device(free=50_000), Device(free=98_000, until=60_000)],
    ids=["someone else holds memory", "the allocator refuses"],
)
def test_an_allocation_that_falls_short_never_passes(device: Device) -> None:
    found = tried(device, total=100_000)
    judgement = judge_items(CHECK, found)
    assert (judgement.verdict, judgement.remedy) == (Verdict.ERROR, Remedy.FIX_CONFIGURATION)
    assert "covered" in judgement.reason
    assert "< 90 %" in judgement.reason
    assert "end the processes of others" in judgement.reason


def test_an_allocation_of_nearly_all_passes() -> None:
    found = tried(Device(free=98_000), total=100_000)
    assert judge_items(CHECK, found) == Judgement(verdict=Verdict.PASS)
    covered = find_value(found, "covered")
    assert covered is not None
    assert 0.92 < covered < 0.94


def test_bad_memory_fails_also_where_the_allocation_fell_short() -> None:
    bad = MemorySeams(write=Faulty(lambda words: words[0].bitwise_or_(1)))
    found = tried(Device(free=50_000), 100_000, bad)
    assert judge_items(CHECK, found).verdict is Verdict.FAIL


def test_no_memory_at_all_is_no_space() -> None:
    with pytest.raises(Unable, match="end the processes") as caught:
        tried(Device(free=1000), total=2**30)
    assert caught.value.cause is Cause.NO_SPACE


def test_bandwidth_counts_a_copy_both_ways() -> None:
    def timer(_step: object, seconds: float) -> list[float]:
        return [9.0, 0.5, 0.5] if seconds == 1.0 else [100.0]

    steps = gpu_memory.make_steps(CPU, 10**6)
    found = list(gpu_memory.measure_bandwidths(steps, GPU, 1.0, timer))
    rates = {m.name: m.value for m in found if isinstance(m, Measurement)}
    assert rates == {"memory.read": 0.002, "memory.write": 0.002, "memory.copy": 0.004}


def test_the_steps_read_write_and_copy_all_of_their_buffers() -> None:
    steps = {name: step for name, (step, _) in gpu_memory.make_steps(CPU, 4096).items()}
    copied, total = steps["copy"](), steps["read"]()
    assert isinstance(copied, Tensor)
    assert isinstance(total, Tensor)
    assert copied.sum().item() == pytest.approx(-total.item(), abs=1e-3)
    filled = steps["write"]()
    assert isinstance(filled, Tensor)
    assert filled.data_ptr() == copied.data_ptr()
    assert set(filled.tolist()) == {1.5}
    assert filled.numel() * 4 == 4096


def test_bandwidth_is_measured_here_too() -> None:
    steps = gpu_memory.make_steps(CPU, 2**20)
    found = list(gpu_memory.measure_bandwidths(steps, GPU, 0.01, time_on_host))
    numbers = [m for m in found if isinstance(m, Measurement)]
    assert all(m.value and m.unit == "GB/s" for m in numbers)
    assert len(numbers) == 3


@pytest.mark.parametrize(("slow", "verdict"), [(0.97, "pass"), (0.94, "fail")])
def test_memory_slower_than_the_siblings_fails(slow: float, verdict: str) -> None:
    names = [f"GPU-{i}" for i in range(4)]
    parts = tuple(Part("gpu", n, n, {"name": "some GPU"}) for n in names)
    sound = [*clean_numbers()]
    rates = [
        Measurement("memory.read", 3000.0 * (slow if n == "GPU-2" else 1), "GB/s", n) for n in names
    ]
    judgement = judge_items(CHECK, [*sound, *rates], Inventory(parts=parts))
    assert judgement.verdict.value == verdict
    assert (judgement.remedy is Remedy.INSPECT) == (judgement.verdict is Verdict.FAIL)
    assert ("GPU-2: memory.read 2820 GB/s < 2850" in judgement.reason) == (
        judgement.verdict is Verdict.FAIL
    )


def clean_numbers() -> list[CheckItem]:
    return [f for f in examined(chunks(1100), laps=1) if isinstance(f, Measurement)]


def test_every_number_has_the_unit_that_was_declared() -> None:
    steps = gpu_memory.make_steps(CPU, 4096)
    rates = gpu_memory.measure_bandwidths(steps, GPU, 0.0, time_on_host)
    found = [*rates, *examined(chunks(1100))]
    for item in found:
        if isinstance(item, Measurement):
            metric = CHECK.find_metric(item.name)
            assert metric is not None
            assert metric.unit == item.unit
            assert item.where == GPU


def test_the_memory_of_the_host_is_not_applicable(tmp_path: Path) -> None:
    with pytest.raises(Skip, match="host memory") as skip:
        list(gpu_memory.measure(make_context(tmp_path), GpuMemoryParams()))
    assert skip.value.cause is Cause.NOT_APPLICABLE


def test_backgrounds_take_turns_in_the_order_that_is_told() -> None:
    made = islice(marching.generate_backgrounds(8, 2, 1), 8)
    assert tuple(b.name for b in made) == BACKGROUND_NAMES * 2
