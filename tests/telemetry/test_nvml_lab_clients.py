"""Real programs that ask NVML take the double for it, and show what it is told."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import pytest

from hpcverify.limits.specs import load_specs
from tests.nvml_lab.nvmllab import Lab
from tests.nvml_lab.parts import profile, strangers

GIB = 2**30


def gpustat(lab: Lab) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(lab.run(sys.executable, "-m", "gpustat", "--json"))[
        "gpus"
    ]
    return found


def nvitop(lab: Lab) -> str:
    return lab.run(sys.executable, "-m", "nvitop", "--once", "--no-unicode")


def row(screen: str, address: str) -> tuple[str, str]:
    """Find the two lines of the GPU at *address* on the screen of nvitop."""
    lines = screen.splitlines()
    [first] = [number for number, line in enumerate(lines) if address in line]
    return lines[first], lines[first + 1]


WARM = (
    "gpu.2.name = NVIDIA H200",
    "gpu.2.temperature.gpu = 71",
    "gpu.2.power.usage_mw = 612000",
    "gpu.2.utilization.gpu = 93",
    f"gpu.2.memory.used = {33 * GIB}",
    f"gpu.2.process = {os.getpid()} {32 * GIB} python3",
)


def test_gpustat_shows_each_gpu_and_who_uses_it(lab: Lab) -> None:
    lab.write(*WARM)
    gpus = gpustat(lab)
    assert len(gpus) == 8
    assert (
        gpus[2].items()
        >= {
            "name": "NVIDIA H200",
            "temperature.gpu": 71,
            "power.draw": 612,
            "utilization.gpu": 93,
            "memory.used": 33 * 1024,
            "enforced.power.limit": 700,
        }.items()
    )
    [process] = gpus[2]["processes"]
    assert (process["pid"], process["gpu_memory_usage"]) == (os.getpid(), 32 * 1024)
    assert gpus[3]["processes"] == []


def test_nvitop_shows_each_gpu_and_who_uses_it(lab: Lab) -> None:
    lab.write(*WARM, "gpu.2.ecc.volatile.dram_uncorrectable = 5")
    screen = nvitop(lab)
    names, numbers = row(screen, "00000000:3A:00.0")
    assert "H200" in names
    assert names.split("|")[-2].split() == ["Disabled", "5"]  # MIG, uncorrected ECC
    for shown in ("71C", "612W / 700W", "33.00GiB / 79.65GiB", "93%"):
        assert shown in numbers
    assert f"{os.getpid()} C" in screen


def test_both_follow_a_scenario_that_goes_on(lab: Lab) -> None:
    for second, celsius in ((0, 40), (30, 60)):
        lab.write("gpu.*.temperature.gpu = ramp 0:40 60:80", f"freeze_t = {second}")
        assert {gpu["temperature.gpu"] for gpu in gpustat(lab)} == {celsius}
        assert f"{celsius}C" in row(nvitop(lab), "00000000:18:00.0")[1]


def test_both_name_the_gpu_that_is_lost_and_show_the_others(lab: Lab) -> None:
    lab.write("gpu.2.lost = 1")
    gpus = gpustat(lab)
    assert [gpu["index"] for gpu in gpus if "ost" in gpu["name"]] == [2]
    assert [gpu["name"] for gpu in gpus].count("NVIDIA H100 80GB HBM3") == 7
    assert nvitop(lab).count("H100 80GB HBM3") == 7


PLAIN = ("v100-sxm2-16gb", "l4", "gh200-96gb", "b300-sxm")


@pytest.mark.parametrize("key", PLAIN)
def test_both_show_parts_that_lack_what_others_have(lab: Lab, key: str) -> None:
    [spec] = [spec for spec in load_specs() if spec.key == key]
    lab.write(*profile(spec, busy=True), "freeze_t = 600")
    gpus = gpustat(lab)
    assert {gpu["name"] for gpu in gpus} == {spec.name}
    assert {gpu["enforced.power.limit"] for gpu in gpus} == {int(spec.tdp_w)}
    assert f"/ {spec.tdp_w:.0f}W" in nvitop(lab)


@pytest.mark.parametrize("name", ["card for games", "virtual GPU"])
def test_both_show_nothing_for_what_a_part_does_not_answer(lab: Lab, name: str) -> None:
    lab.write(*strangers(busy=False)[name])
    blind = name == "virtual GPU"
    assert all((gpu["temperature.gpu"] is None) == blind for gpu in gpustat(lab))
    _, numbers = row(nvitop(lab), "00000000:18:00.0")
    fan, celsius, *_ = numbers.split("|")[1].split()
    assert (fan, celsius) == (("N/A", "N/A") if blind else ("30%", "27C"))
