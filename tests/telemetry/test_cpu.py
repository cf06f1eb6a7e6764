"""The processor: what it is and how it runs, from files of several machines."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcverify.telemetry import cpu
from tests.telemetry.trees import CPU, grow

XEON = """processor\t: 0
model name\t: Intel(R) Xeon(R) Platinum 8480+
microcode\t: 0x2b000461
flags\t\t: fpu sse2 avx avx2 avx512f avx512_bf16 avx512_vnni amx_int8

processor\t: 1
model name\t: something else"""

GRACE = """processor\t: 0
Features\t: fp asimd fphp asimdhp asimddp sve i8mm bf16
CPU implementer\t: 0x41
CPU part\t: 0xd4f"""


def two_sockets(root: Path) -> Path:
    files = {"proc/cpuinfo": XEON, f"{CPU}/online": "0-1,4,6"}
    for number, (socket, core) in enumerate([(0, 0), (0, 0), (1, 0), (1, 1)]):
        topology = f"{CPU}/cpu{number}/topology"
        files |= {f"{topology}/physical_package_id": str(socket), f"{topology}/core_id": str(core)}
    return grow(root, files)


def values(reader: cpu.CpuReader) -> dict[str, float]:
    return {reading.name: reading.value for reading in reader.read()}


def test_a_part_is_described_by_what_does_not_change(tmp_path: Path) -> None:
    root = grow(two_sockets(tmp_path), {f"{CPU}/cpufreq/policy0/cpuinfo_max_freq": 3800000})
    assert cpu.describe_cpu(root).facts == {
        "model": "Intel(R) Xeon(R) Platinum 8480+",
        "sockets": "2",
        "cores": "3",
        "threads": "4",
        "microcode": "0x2b000461",
        "max_mhz": "3800",
        "vector_bits": "512",
        "dtypes": "bf16 fp32 fp64 int8",
    }


def test_an_arm_processor_is_known_by_its_part_number(tmp_path: Path) -> None:
    part = cpu.describe_cpu(grow(tmp_path, {"proc/cpuinfo": GRACE}))
    assert part.facts["model"] == "implementer 0x41 part 0xd4f"
    assert part.facts["dtypes"] == "bf16 fp16 fp32 fp64 int8"
    assert part.facts["vector_bits"] == "128"


def test_half_precision_needs_both_the_scalar_and_the_vector_flag() -> None:
    assert "fp16" not in cpu.list_native_dtypes(frozenset({"fphp"}))
    assert "fp16" in cpu.list_native_dtypes(frozenset({"fphp", "asimdhp"}))


def test_the_list_of_online_cpus_may_have_holes(tmp_path: Path) -> None:
    assert cpu.read_cores(two_sockets(tmp_path)).online == (0, 1, 4, 6)


def test_clocks_are_told_by_the_median_and_the_slowest_core(tmp_path: Path) -> None:
    for policy, khz in enumerate([3000000, 3000000, 800000]):
        grow(tmp_path, {f"{CPU}/cpufreq/policy{policy}/scaling_cur_freq": khz})
    read = values(cpu.CpuReader(tmp_path))
    assert read["clock"] == 3000
    assert read["clock.slowest"] == 800


def test_throttled_time_is_counted_once_for_each_package(tmp_path: Path) -> None:
    two_sockets(tmp_path)
    for number, ms in enumerate([1500, 1500, 0, 0]):
        name = f"{CPU}/cpu{number}/thermal_throttle/package_throttle_total_time_ms"
        grow(tmp_path, {name: ms})
    assert values(cpu.CpuReader(tmp_path))["throttled.hw_thermal"] == 1.5


def test_shares_are_taken_between_two_readings(tmp_path: Path) -> None:
    grow(tmp_path, {"proc/stat": "cpu  100 0 0 100 0 0 0 0 0 0"})
    reader = cpu.CpuReader(tmp_path)
    assert values(reader) == {}  # whenever it comes: nothing to compare with
    grow(tmp_path, {"proc/stat": "cpu  150 0 0 130 0 0 0 20 0 0"})
    read = values(reader)
    assert read["utilization"] == pytest.approx(0.7)
    assert read["steal"] == pytest.approx(0.2)


def test_a_machine_that_tells_nothing_gives_no_reading(tmp_path: Path) -> None:
    assert values(cpu.CpuReader(tmp_path)) == {}
    assert cpu.describe_cpu(tmp_path).id == "cpu"
