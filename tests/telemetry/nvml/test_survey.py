"""GPUs, through the real bindings on an NVML with faults."""

from __future__ import annotations

import json
from collections import Counter

import msgspec
import pytest

from hpcverify.model import Finding, Inventory, Part
from hpcverify.telemetry import problems
from hpcverify.telemetry.reading import Reading
from tests.nvml_lab.nvmllab import ADDRESSES, Lab
from tests.telemetry.trees import grow

PROBE = """
import sys, pathlib, msgspec
from hpcverify.telemetry.probe import probe
root = pathlib.Path(sys.argv[1])
print(msgspec.json.encode([probe(root) for _ in range(int(sys.argv[2]))]).decode())
"""

READ = """
import contextlib, msgspec
from hpcverify.telemetry.nvml.gauges import NvmlReader
with contextlib.closing(NvmlReader()) as reader:
    print(msgspec.json.encode([list(reader.read()) for _ in range(2)]).decode())
"""


def probe(lab: Lab, **environ: str) -> Inventory:
    first, second = msgspec.json.decode(lab.python(PROBE, 2, **environ), type=list[Inventory])
    assert first == second  # or the node would seem to change from run to run
    return first


def read(lab: Lab) -> list[Reading]:
    _, second = msgspec.json.decode(lab.python(READ), type=list[list[Reading]])
    return second


def named(readings: list[Reading], name: str) -> list[float]:
    return [r.value for r in readings if r.name == name]


def codes(found: tuple[Finding, ...]) -> Counter[str]:
    return Counter(finding.code for finding in found)


def gpus(inventory: Inventory) -> tuple[Part, ...]:
    return inventory.of_kind("gpu")


def test_a_healthy_board_has_eight_gpus_and_no_problem(lab: Lab) -> None:
    lab.load("healthy-8xh100")
    found = probe(lab)
    assert found.problems == ()
    assert [d.kind for d in found.devices] == ["cpu"] + ["cuda"] * 8
    assert {g.id for g in gpus(found)} == {d.part for d in found.devices[1:]}


def test_a_gpu_goes_by_its_uuid_and_shows_what_is_on_its_sticker(lab: Lab) -> None:
    lab.write("gpu.3.uuid = GPU-0000-4f21", "gpu.3.serial = 1650")
    gpu = gpus(probe(lab))[3]
    assert (gpu.id, gpu.label) == ("GPU-0000-4f21", "GPU 3 (…4f21)")
    assert gpu.facts == {
        "name": "NVIDIA H100 80GB HBM3",
        "serial": "1650",
        "board": "692-2G520-0200-000",
        "pci_address": "0000:5d:00.0",
        "pci_device_id": "2330",
        "pcie_generation": "5",
        "pcie_width": "16",
        "vbios": "96.00.74.00.01",
        "driver": "580.105.08",
        "memory": "80 GiB",
        "compute_capability": "9.0",
        "power_limit": "700 of 700 W",
        "ecc": "on",
    }


def test_what_somebody_set_on_a_gpu_is_a_fact_of_it(lab: Lab) -> None:
    lab.write(
        "gpu.3.power.limit_mw = 500000",
        "gpu.3.clocks.applications.sm = 900",
        "gpu.4.power.limit_mw = na",
        "gpu.5.power.enforced_limit_mw = 400000",  # by the BMC (llnl/variorum issue 445)
        "gpu.6.power.enforced_limit_mw = na",
    )
    found = gpus(probe(lab))
    assert found[3].facts["power_limit"] == "500 of 700 W"
    assert found[3].facts["clock_limit"] == "900 of 1980 MHz"
    assert "power_limit" not in found[4].facts
    assert [gpu.facts["power_limit"] for gpu in found[5:7]] == ["400 of 700 W", "700 of 700 W"]
    assert "clock_limit" not in found[5].facts


@pytest.mark.parametrize(
    ("call", "answer"),
    [
        ("UtilizationRates", "NOT_SUPPORTED"),
        ("MemoryInfo", "NO_PERMISSION"),
        ("ComputeRunningProcesses", "NO_PERMISSION"),
    ],
)
def test_a_gpu_in_mig_mode_is_not_compared_with_others(lab: Lab, call: str, answer: str) -> None:
    """Refuse what nvml.h does: utilization in MIG mode; memory and processes without root."""
    lab.write("gpu.2-3.mig.mode = 1", f"fault = nvmlDeviceGet{call} gpu=2-3 return={answer}")
    assert [p.code for p in probe(lab).problems] == ["gpu_mig"] * 2
    lab.write(f"fault = nvmlDeviceGet{call} gpu=2-3 return={answer}")
    assert {p.code for p in probe(lab).problems} <= {"gpu_unlike", "gpu_silent"}
    assert len(probe(lab).problems) == 2


def test_a_clock_that_is_low_by_default_is_no_setting(lab: Lab) -> None:
    lab.write("gpu.3.clocks.applications.sm = 765", "gpu.3.clocks.default_applications.sm = 765")
    assert "clock_limit" not in gpus(probe(lab))[3].facts


def test_no_problem_of_nvml_where_there_is_no_gpu(lab: Lab) -> None:
    lab.write("gpus = 0")
    code = PROBE.replace("sys.argv[1]", "'/nowhere'")
    for fault in ("", "fault = nvmlInit return=DRIVER_NOT_LOADED"):
        lab.write("gpus = 0", fault)
        (found,) = json.loads(lab.python(code, 1))
        assert (found["problems"], len(found["devices"])) == ([], 1)


def test_a_lost_gpu_is_told_from_one_that_never_started(lab: Lab) -> None:
    lab.load("lost-gpu", "freeze_t = 5")
    found = probe(lab)
    assert {(p.code, p.part_id) for p in found.problems} == {
        ("gpu_lost", ADDRESSES[2]),
        ("gpu_missing", ADDRESSES[6]),
    }
    assert len(found.devices) == 1 + 6
    assert {g.id for g in gpus(found)} >= {ADDRESSES[2], ADDRESSES[6]}


def test_a_lost_gpu_is_found_without_a_pci_bus_to_compare_with(lab: Lab) -> None:
    lab.write("gpu.2.lost = 1")
    code = PROBE.replace("sys.argv[1]", "'/nowhere'")
    (found,) = msgspec.json.decode(lab.python(code, 1), type=list[Inventory])
    assert codes(found.problems) == {"gpu_lost": 1}
    assert len(found.devices) == 1 + 7


@pytest.mark.parametrize(
    ("answer", "code", "fix"),
    [
        ("LIB_RM_VERSION_MISMATCH", "driver_mismatch", "rmmod nvidia"),
        ("DRIVER_NOT_LOADED", "driver_not_loaded", "modprobe nvidia"),
        ("UNKNOWN", "nvml_failed", "restart the container"),
        ("MEMORY", "nvml_failed", "nvidia-smi"),
        ("NO_PERMISSION", "nvml_failed", "/dev/nvidiactl"),
        ("LIBRARY_NOT_FOUND", "driver_not_loaded", "NVIDIA_DRIVER_CAPABILITIES=compute,utility"),
    ],
)
def test_nvml_that_does_not_start_is_no_fault_of_the_gpus(
    lab: Lab, answer: str, code: str, fix: str
) -> None:
    lab.write(f"fault = nvmlInit return={answer}")
    found = probe(lab)
    assert codes(found.problems) == {code: 1}
    assert fix in found.problems[0].text
    assert code in problems.VIEW_CAUSES
    assert [d.kind for d in found.devices] == ["cpu"]
    assert [g.id for g in gpus(found)] == list(ADDRESSES)


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        ("GPU_IS_LOST", "gpu_lost"),
        ("RESET_REQUIRED", "gpu_reset_required"),
        ("CORRUPTED_INFOROM", "gpu_inforom_corrupted"),
    ],
)
def test_a_gpu_whose_facts_cannot_be_read_is_unwell(lab: Lab, answer: str, code: str) -> None:
    lab.write(f"fault = nvmlDeviceGetSerial gpu=4 return={answer}")
    found = probe(lab)
    (problem,) = found.problems
    assert problem.code == code
    assert problem.part_id == gpus(found)[4].id
    assert len(found.devices) == 1 + 7


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        ("NO_PERMISSION", "partial_view"),
        ("UNKNOWN", "gpu_missing"),
        ("INSUFFICIENT_POWER", "gpu_unpowered"),
        ("TIMEOUT", "gpu_unreadable"),
    ],
)
def test_why_a_gpu_has_no_handle_decides_what_it_means(lab: Lab, answer: str, code: str) -> None:
    lab.write(f"fault = nvmlDeviceGetHandleBy* gpu=5 return={answer}")
    (problem,) = probe(lab).problems
    assert (problem.code, problem.part_id) == (code, ADDRESSES[5])


@pytest.mark.parametrize(("minor", "code"), [(6, "partial_view"), (None, "gpu_missing")])
def test_a_gpu_without_its_device_file_is_hidden_not_missing(
    lab: Lab, minor: int | None, code: str
) -> None:
    lab.write("gpu.6.absent = 1")
    if minor is not None:
        card = f"proc/driver/nvidia/gpus/{ADDRESSES[6]}/information"
        grow(lab.root, {card: f"Model: \t H100\nDevice Minor: \t {minor}"})
    assert codes(probe(lab).problems) == {code: 1}


def test_a_gpu_that_no_driver_is_bound_to_is_hidden_not_missing(lab: Lab) -> None:
    lab.write("gpu.6.absent = 1")
    assert codes(probe(lab).problems) == {"gpu_missing": 1}  # the driver has it, and lost it
    (lab.root / "sys/bus/pci/devices" / ADDRESSES[6] / "driver").unlink()
    (problem,) = probe(lab).problems
    assert (problem.code, problem.part_id) == ("partial_view", ADDRESSES[6])


def test_a_gpu_that_never_initialises_is_named_by_its_address(lab: Lab) -> None:
    lab.write("fault = nvmlDeviceGetHandleBy* gpu=5 hang=forever")
    code = "from tests.nvml_lab import hurry; hurry.install()" + PROBE
    (found,) = msgspec.json.decode(lab.python(code, 1), type=list[Inventory])
    (problem,) = found.problems
    assert (problem.code, problem.part_id) == ("gpu_hung", ADDRESSES[5])
    assert "did not initialise" in problem.text
    assert len(found.devices) == 1 + 7


def test_a_gpu_that_was_handed_to_a_virtual_machine_is_not_looked_for(lab: Lab) -> None:
    lab.write("gpu.6.absent = 1")
    device = lab.root / "sys/bus/pci/devices" / ADDRESSES[6]
    (device / "driver").unlink()
    grow(device, {"driver_override": "vfio-pci"})
    assert probe(lab).problems == ()


def test_a_container_that_was_given_some_gpus_misses_none(lab: Lab) -> None:
    lab.write("gpu.6.absent = 1")
    found = probe(lab, NVIDIA_VISIBLE_DEVICES="0,1")
    assert codes(found.problems) == {"partial_view": 1}


@pytest.mark.parametrize(
    ("visible", "hidden"),
    [
        ("0,1,2,3,4,5,6,7", False),
        ("0,1,2,3", True),
        ("", True),
        ("0,1,-1,3,4,5,6,7", True),
        ("NoDevFiles", True),
    ],
)
def test_cuda_is_narrowed_by_its_variable(lab: Lab, visible: str, *, hidden: bool) -> None:
    found = probe(lab, CUDA_VISIBLE_DEVICES=visible)
    assert codes(found.problems) == ({"partial_view": 1} if hidden else {})


def test_a_gpu_that_is_cut_up_by_mig_is_no_device(lab: Lab) -> None:
    lab.write("gpu.1.mig.mode = 1")
    found = probe(lab)
    assert codes(found.problems) == {"gpu_mig": 1}
    assert len(found.devices) == 1 + 7


def test_the_sensors_are_those_that_answer(lab: Lab) -> None:
    """Leave out a memory that is hotter than DCGM 4.6 believes, as one without a sensor."""
    lab.write("gpu.*.temperature.memory = na", "gpu.1.temperature.memory = 255")
    found = probe(lab)
    uuid, other = (gpu.id for gpu in gpus(found)[:2])
    assert f"{other}/temperature.memory" not in found.sensors
    assert f"{uuid}/temperature" in found.sensors
    assert f"{uuid}/throttled.hw_thermal" in found.sensors
    assert f"{uuid}/temperature.memory" not in found.sensors


def test_readings_are_in_their_units(lab: Lab) -> None:
    lab.write(
        "gpu.0.temperature.gpu = 61",
        "gpu.0.power.usage_mw = 640500",
        "gpu.0.utilization.gpu = 97",
        "gpu.0.violation_ns.hw_thermal_slowdown = 2500000000",
        "gpu.0.clocks.event_reasons = HwSlowdown|HwThermalSlowdown",
    )
    readings = read(lab)
    expected = {
        "temperature": 61,
        "temperature.headroom": 26,
        "temperature.memory": 38,
        "power": 640.5,
        "utilization": 0.97,
        "clock": 345,
        "throttled.hw_thermal": 2.5,
        "throttled.sw_thermal": 0,
        "event.hw_slowdown": 1,
        "event.hw_power_brake": 0,
        "ecc.mode": 1,
        "remap.failed": 0,
        "ecc.sram_threshold": 0,
    }
    assert {name: named(readings, name)[0] for name in expected} == pytest.approx(expected)


def test_slow_calls_cost_samples_and_name_no_gpu(lab: Lab) -> None:
    lab.write("fault = nvmlDevice* gpu=0 hang=0.06")
    readings = read(lab)
    assert len(named(readings, "temperature")) == 8
    assert [r.name for r in readings if r.name.startswith("gpu_")] == []


def test_one_field_that_is_refused_costs_none_of_the_others(lab: Lab) -> None:
    lab.write("fault = nvmlDeviceGetFieldValues gpu=0-7 field=82 return=NOT_SUPPORTED")
    readings = read(lab)
    assert named(readings, "temperature.memory") == []
    assert len(named(readings, "throttled.hw_thermal")) == 8


def test_older_drivers_are_asked_by_the_older_names(lab: Lab) -> None:
    lab.write(
        "gpu.*.temperature.gpu = 50",
        "fault = nvmlDeviceGetTemperatureV return=FUNCTION_NOT_FOUND",
        "fault = nvmlDeviceGetMarginTemperature return=FUNCTION_NOT_FOUND",
    )
    readings = read(lab)
    assert named(readings, "temperature") == [50] * 8
    assert named(readings, "temperature.headroom") == [89 - 50] * 8


@pytest.mark.parametrize("threshold", [-2, 0])
def test_an_offset_of_t_limit_is_no_threshold(lab: Lab, threshold: int) -> None:
    # nvidia-smi -q of H100: "GPU Slowdown T.Limit Temp : -2 C".
    lab.write(
        f"gpu.*.temperature.slowdown = {threshold}",
        "fault = nvmlDeviceGetMarginTemperature return=FUNCTION_NOT_FOUND",
    )
    assert named(read(lab), "temperature.headroom") == []


@pytest.mark.parametrize(
    ("driver", "counted"),
    [("570.148.08", []), ("575.51.03", [2.5]), ("580.65.06", [2.5]), ("580.82.07", [2.5])],
)
def test_slowdowns_are_counted_by_the_fields_of_the_driver(
    lab: Lab, driver: str, counted: list[float]
) -> None:
    lab.write(f"driver.version = {driver}", "gpu.*.violation_ns.hw_thermal_slowdown = 2500000000")
    assert named(read(lab), "throttled.hw_thermal") == counted * 8


def test_links_are_read_every_ten_seconds_and_the_rest_every_second(lab: Lab) -> None:
    watch = lab.sampled(["gpus = 1"], range(21))
    times = [s.t for s in watch.samples if s.name == "nvlink.errors"]
    assert times == [0, 10, 20]
    assert len([s for s in watch.samples if s.name == "temperature"]) == 21


@pytest.mark.parametrize(
    "fault",
    [
        "gpu.2.lost = 1",
        "fault = nvmlDeviceGetPowerUsage gpu=2 return=GPU_IS_LOST",
        "fault = nvmlDeviceGetFieldValues gpu=2 field=145 return=GPU_IS_LOST",
    ],
)
def test_a_gpu_that_gets_lost_says_so_and_the_others_go_on(lab: Lab, fault: str) -> None:
    code = READ.replace("range(2)", "spoilt()").replace(
        "with context",
        "import os, sys\n"
        "def spoilt():\n"
        "    yield 0\n"
        "    os.replace(sys.argv[2], os.environ['NVML_LAB_SCENARIO'])\n"
        "    yield 1\n"
        "with context",
    )
    later = lab.folder / "later.txt"
    later.write_text(fault + "\n")
    before, after = msgspec.json.decode(lab.python(code, later), type=list[list[Reading]])
    assert named(before, "gpu_lost") == []
    assert named(after, "gpu_lost") == [1]
    assert len(named(after, "temperature")) >= 7


def test_who_holds_a_gpu_is_known_by_part_and_process(lab: Lab) -> None:
    lab.write("gpu.5.uuid = GPU-5", "gpu.5.process = 4242 1073741824 python3")
    code = (
        "from hpcverify.telemetry.probe import probe_with_holders; print(probe_with_holders()[1])"
    )
    assert lab.python(code).strip() == "(('GPU-5', 4242),)"
    lab.write("fault = nvmlInit return=DRIVER_NOT_LOADED")
    assert lab.python(code).strip() == "()"


@pytest.mark.parametrize(
    ("lines", "holders"),
    [
        (["graphics_process = 900 8388608 /usr/lib/xorg/Xorg"], "()"),
        (["process = 77 31457280 nvidia-cuda-mps-server"], "()"),
        (["process = 77 31457280 trainer"], "(('GPU-5', 77),)"),
        # A client of MPS, beside the server; nvidia-smi shows it as M+C.
        (
            ["process = 77 31457280 nvidia-cuda-mps-server", "mps_process = 78 1073741824 rank"],
            "(('GPU-5', 78),)",
        ),
        # One that draws and computes: C+G.
        (
            ["graphics_process = 80 8388608 viewer", "process = 80 8388608 viewer"],
            "(('GPU-5', 80),)",
        ),
    ],
)
def test_only_a_process_that_computes_holds_a_gpu(lab: Lab, lines: list[str], holders: str) -> None:
    """nvml.h: nvmlDeviceGet{Compute,Graphics,MPSCompute}RunningProcesses."""
    lab.write("gpu.5.uuid = GPU-5", *(f"gpu.5.{line}" for line in lines))
    code = (
        "from hpcverify.telemetry.probe import probe_with_holders; print(probe_with_holders()[1])"
    )
    assert lab.python(code).strip() == holders


def test_the_server_of_mps_holds_a_gpu_where_its_clients_are_not_listed(lab: Lab) -> None:
    lab.write(
        "gpu.5.uuid = GPU-5",
        "gpu.5.process = 77 31457280 nvidia-cuda-mps-server",
        "fault = nvmlDeviceGetMPSComputeRunningProcesses return=FUNCTION_NOT_FOUND",
    )
    code = (
        "from hpcverify.telemetry.probe import probe_with_holders; print(probe_with_holders()[1])"
    )
    assert lab.python(code).strip() == "(('GPU-5', 77),)"
