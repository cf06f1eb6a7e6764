"""Memory that does not hold what was written is found, and sound memory passes."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from msgspec import structs
from torch import Tensor

from hpcverify.check import Skip, Unable
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
from hpcverify.telemetry.gpus import GpuAnswers, Process
from hpcverify.telemetry.probe import CPU_DEVICE
from hpcverify.testing import find_value, judge_items, list_findings, make_context
from hpcverify.units import GIB, MIB
from hpcverify_checks import gpu_memory
from hpcverify_checks.exact import march as marching
from hpcverify_checks.exact.march import (
    HARDWARE,
    Memory,
    MemorySeams,
    PassTally,
    go_on,
    hash_addresses,
)
from hpcverify_checks.gpu_memory import CHECK, GpuMemoryParams
from hpcverify_checks.gpu_memory.allocate import (
    MAX_CHUNK_BYTES,
    MIN_CHUNK_BYTES,
    RESERVE_BYTES,
    WORDS_PER_PIECE,
    DeviceMemory,
    allocate_chunks,
    query_gpu_memory,
)
from hpcverify_checks.node.device import read_gpu_free_bytes
from hpcverify_checks.node.timing import time_on_host

GPU = "GPU-1"
CPU = torch.device("cpu")
AT_ONCE = 128
WORDS = 1100


def chunks(*sizes: int) -> tuple[Tensor, ...]:
    """Make memory that holds what someone left there."""
    return tuple(torch.randint(-(2**63), 2**63 - 1, (size,)) for size in sizes)


def room(total: int = WORDS * 8) -> DeviceMemory:
    return DeviceMemory(total, lambda: 0, lambda _: torch.empty(0))


def passes(wanted: int) -> Callable[[], bool]:
    """Be satisfied after so many passes."""
    left = iter(range(wanted - 1))
    return lambda: next(left, None) is None


def examined(
    memory: tuple[Tensor, ...], seams: MemorySeams = HARDWARE, laps: int = 4
) -> list[CheckItem]:
    return examine(Memory(memory, AT_ONCE, seams), room(), laps)


def examine(
    memory: Memory, part_id: DeviceMemory, laps: int = 1, rest: Callable[[], None] = go_on
) -> list[CheckItem]:
    enough = passes(laps)
    return list(gpu_memory.examine_memory(memory, GPU, part_id, 1, enough=enough, rest=rest))


def put(value: int, word: Tensor) -> marching.Write:
    """Write as it should be, and *value* into *word* each time."""

    def write(words: Tensor, table: Tensor, mask: int) -> None:
        marching.write(words, table, mask)
        word.fill_(value)

    return write


def test_sound_memory_passes_in_pieces_of_the_real_size() -> None:
    memory = Memory(chunks(2 * WORDS_PER_PIECE, 1000), WORDS_PER_PIECE)
    found = examine(memory, room(memory.size), 2)
    assert judge_items(CHECK, found).faults == ()


def test_corrupted_memory_fails_and_the_part_is_to_be_replaced() -> None:
    memory = chunks(1000, 100)
    found = examined(memory, MemorySeams(write=put(5, memory[0][7])))
    judgement = judge_items(CHECK, found)
    assert (judgement.verdict, judgement.remedy) == (Verdict.FAIL, Remedy.REPLACE)
    assert "byte 0x38 of the memory tested is 0x0000000000000005, not 0x" in judgement.reason
    assert "mismatches 5 > 0" in judgement.reason


def test_memory_that_forgets_in_a_pause_fails_and_only_the_first_pass_has_pauses() -> None:
    memory, rests = chunks(1000, 100), list[int]()

    def forget() -> None:
        rests.append(1)
        memory[1][3].bitwise_and_(~1)

    found = examine(Memory(memory, AT_ONCE), room(), 3, forget)
    assert judge_items(CHECK, found).verdict is Verdict.FAIL
    assert [f.evidence["bits_1_to_0"] for f in list_findings(found)] == ["0"]

    examine(Memory(chunks(1000, 100), AT_ONCE), room(), 3, lambda: rests.append(1))
    assert len(rests) == 4


def test_a_reference_that_was_wrong_from_the_start_is_found() -> None:
    bench = Memory(chunks(1000), AT_ONCE).start_pass(hash_addresses(AT_ONCE, "1 0"))
    bench.table[17].bitwise_xor_(1)
    tally = PassTally()
    [finding] = gpu_memory.report_pass(bench, GPU, tally, go_on)
    assert (finding.code, tally.mismatches) == ("memory_corrupted", 1)


def test_the_first_pass_is_whole_however_little_time_there_is() -> None:
    found = examined(chunks(1000, 100), laps=1)
    assert find_value(found, "passes") == 1
    assert judge_items(CHECK, found).verdict is Verdict.PASS
    [text] = [f.text for f in found if isinstance(f, Coverage)]
    assert "hashed addresses 1; not reached: 00/FF, 55/AA, walking bit" in text


def test_further_patterns_follow_while_time_lasts() -> None:
    found = examined(chunks(1000, 100), laps=9)
    [text] = [f.text for f in found if isinstance(f, Coverage)]
    assert text.endswith("hashed addresses 3, 00/FF 2, 55/AA 2, walking bit 2")
    assert find_value(found, "passes") == 9


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
        return DeviceMemory(total, lambda: self.free, self.allocate)

    def allocate(self, size: int) -> Tensor:
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
    return examine(Memory(taken(device), AT_ONCE, seams), device.room(total))


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
    assert judge_items(CHECK, found).faults == ()
    covered = find_value(found, "covered")
    assert covered is not None
    assert 0.92 < covered < 0.94


def test_bad_memory_fails_also_where_the_allocation_fell_short() -> None:
    def write(words: Tensor, table: Tensor, mask: int) -> None:
        marching.write(words, table, mask)
        words[0].bitwise_or_(1)

    found = tried(Device(free=50_000), 100_000, MemorySeams(write=write))
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
    assert rates == {
        "memory.read": 0.002,
        "memory.write": 0.002,
        "memory.copy": 0.004,
        "stall": 8.5,
    }


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
    numbers = [m for m in found if isinstance(m, Measurement) and m.name != "stall"]
    assert all(m.value and m.unit == "GB/s" for m in numbers)
    assert len(numbers) == 3


@pytest.mark.parametrize(("slow", "verdict"), [(0.97, "pass"), (0.94, "warn"), (0.89, "fail")])
def test_memory_slower_than_the_siblings_warns_then_fails(slow: float, verdict: str) -> None:
    names = [f"GPU-{i}" for i in range(4)]
    parts = tuple(Part("gpu", n, n, {"name": "some GPU"}) for n in names)
    sound = [*clean_numbers()]
    rates = [
        Measurement("memory.read", 3000.0 * (slow if n == "GPU-2" else 1), "GB/s", n) for n in names
    ]
    judgement = judge_items(CHECK, [*sound, *rates], Inventory(parts=parts))
    assert judgement.verdict.value == verdict
    assert (judgement.remedy is Remedy.INSPECT) == (verdict != "pass")
    assert judgement.reason.startswith("GPU-2: memory.read") == (verdict != "pass")


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
            assert item.part_id == GPU


def test_the_memory_of_the_host_is_not_applicable(tmp_path: Path) -> None:
    with pytest.raises(Skip, match="host memory") as skip:
        list(gpu_memory.measure(make_context(tmp_path), GpuMemoryParams()))
    assert skip.value.cause is Cause.NOT_APPLICABLE


def held(processes: tuple[Process, ...]) -> Any:
    """Make an NVML that lists *processes* on the GPU."""
    setup = SimpleNamespace(processes=processes)
    return lambda _: SimpleNamespace(read_setup=lambda: GpuAnswers(answers={GPU: setup}))


DISPLAY = Process(pid=900, memory=10, computes=False)
JOB = Process(pid=901, memory=30)


@pytest.mark.parametrize(
    ("name", "processes", "withheld"),
    [
        ("NVIDIA L40S", (DISPLAY, JOB), 10),
        ("NVIDIA L40S", (Process(pid=900, memory=None, computes=False),), 0),
        ("NVIDIA L40S", (), 0),  # used by nobody: lost until a reset
        # Pages of the host are in the memory of a superchip, which is a NUMA node of its kernel.
        ("NVIDIA GH200 480GB", (), 50),
        ("NVIDIA GH200 480GB", (Process(pid=os.getpid(), memory=50),), 50),
        ("NVIDIA GH200 480GB", (JOB,), 20),
        ("AMD Instinct MI300X", (DISPLAY,), 0),
    ],
)
def test_memory_that_others_hold_by_right_is_counted(
    tmp_path: Path, name: str, processes: tuple[Process, ...], withheld: int
) -> None:
    facts = {"name": name, "vendor": "AMD"} if name.startswith("AMD") else {"name": name}
    node = Inventory(parts=(Part("gpu", GPU, "GPU 1", facts),))
    here = structs.replace(CPU_DEVICE, kind="cuda", part=GPU)
    ctx = make_context(tmp_path, device=here, inventory=node)
    find = (lambda _: None) if "vendor" in facts else held(processes)
    assert gpu_memory.count_withheld(ctx, 50, find) == withheld


def test_what_a_display_or_the_host_holds_is_not_missed() -> None:
    device = Device(free=80_000)
    room = DeviceMemory(100_000, lambda: device.free, device.allocate, lambda: 18_000)
    found = examine(Memory(taken(device), AT_ONCE), room)
    assert judge_items(CHECK, found).faults == ()
    device = Device(free=60_000)
    room = DeviceMemory(100_000, lambda: device.free, device.allocate, lambda: 18_000)
    assert judge_items(CHECK, examine(Memory(taken(device), AT_ONCE), room)).faults


@pytest.mark.parametrize("gib", [4, 6, 8, 12])
def test_a_small_gpu_with_a_context_and_a_display_is_covered(
    monkeypatch: pytest.MonkeyPatch, gib: int
) -> None:
    """The display server of a workstation holds some 0.3 GiB, and a context as much."""
    total, drawn, context = gib * GIB, 300 * MIB, 400 * MIB
    free = total - drawn - context
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (free, total))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    room = query_gpu_memory(CPU, lambda _: drawn)
    tested = (free - RESERVE_BYTES) // MIN_CHUNK_BYTES * MIN_CHUNK_BYTES
    assert tested >= gpu_memory.MIN_COVERED * (room.total - room.withheld())


def test_memory_that_a_gpu_shares_with_the_host_is_free_with_its_page_cache(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a GB10 CUDA's free memory is MemFree: 41.52 of 115.65 GiB available (unsloth PR 10704)."""
    free, available = int(41.52 * GIB), int(115.65 * GIB)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (free, int(121.69 * GIB)))
    for integrated, expected in ((1, available), (0, free)):
        properties = SimpleNamespace(is_integrated=integrated)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _, p=properties: p)
        assert read_gpu_free_bytes(CPU, lambda: available) == expected
