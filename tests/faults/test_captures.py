"""
Boards as they were captured: healthy ones pass run after run, and each fault is found.

The scenarios have what `nvidia-smi -q -x` showed of A100, H100, B200, GB200 and L40S nodes.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.cli import Cli, make_cli
from tests.faults.test_passive import verified
from tests.nvml_lab.hurry import SCALE
from tests.nvml_lab.nvmllab import Lab

pytestmark = [pytest.mark.system, pytest.mark.needs("root")]

BOARDS = ("1xa100", "1xl40s", "4xgb200", "8xb200", "8xh100")
PASSIVE = ("inventory", "recovery", "ecc", "nvlink", "pcie", "gpu_setup")
ONLY_PASSIVE = [word for name in PASSIVE for word in ("--check", name)]
SUITES: Mapping[str, Sequence[str]] = {
    "prolog": ("--suite", "prolog"),
    "idle": ("--suite", "idle", *ONLY_PASSIVE),
    "run": ONLY_PASSIVE,
}
START_SECONDS, SLOW_SECONDS = 4 * SCALE, 5 * SCALE
NOT_PERSISTENT = (
    "gpu.*.persistence_mode = 0",
    f"fault = nvmlDeviceGetHandleByIndex gpu=* lock=1 hang={START_SECONDS} times=8",
)
SLOW_CALLS = [
    f"fault = nvmlDeviceGet{call} gpu=0 lock=1 hang={SLOW_SECONDS} after=1 times=1"
    for call in ("FieldValues", "TemperatureV", "PowerUsage", "Serial", "ComputeMode")
]


def take(lab: Lab, board: str, *lines: str) -> None:
    lab.load(f"captured-{board}", *lines)


@pytest.fixture
def board_lab(tmp_path: Path, nvml_library: Path) -> Lab:
    return Lab(tmp_path, nvml_library)


@pytest.mark.parametrize("suite", SUITES)
@pytest.mark.parametrize("board", BOARDS)
def test_a_healthy_board_passes_run_after_run(
    cli: Cli, board_lab: Lab, board: str, suite: str
) -> None:
    for lines in ((), NOT_PERSISTENT, SLOW_CALLS):
        take(board_lab, board, *lines)
        run = verified(cli, board_lab, *SUITES[suite])
        faults = [c for result in run["results"] for c in result.get("faults", ())]
        loud = {(c["code"], c["text"]) for c in faults if c["verdict"] not in ("pass", "skip")}
        is_persistent = "8xb200" not in board and lines != NOT_PERSISTENT
        names = {name for name, _ in loud}
        expected = set[str]() if is_persistent else {"persistence_off"}
        # It has 8 of 16 lanes, and is the only GPU of its node: reported once.
        expected |= {"width.unused"} if (board, lines) == ("1xl40s", ()) else set()
        assert names == expected, loud


FAULTS: Mapping[str, tuple[str, str, str]] = {
    "uncorrected ECC": ("gpu.{}.ecc.volatile.dram_uncorrectable = 1", "ecc", "ecc.uncorrected"),
    "row remap failure": ("gpu.{}.remapped_rows.failure = 1", "ecc", "remap.failed"),
    "lost": ("gpu.{}.lost = 1", "inventory", "gpu_lost"),
    "lost at one call": (
        "fault = nvmlDeviceGetRepairStatus gpu={} return=GPU_IS_LOST",
        "recovery",
        "gpu_lost",
    ),
    "hung": ("fault = nvmlDeviceGetRepairStatus gpu={} hang=forever", "recovery", "gpu_hung"),
    "never initialised": (
        "fault = nvmlDeviceGetHandleByIndex gpu={} hang=forever",
        "inventory",
        "gpu_hung",
    ),
    "link down": ("gpu.{}.nvlink.3.state = 0", "nvlink", "nvlink_down"),
    "link recovered": (
        "gpu.{}.nvlink.4.link_recovery_successful = 505",
        "nvlink",
        "nvlink_recovered",
    ),
    "thermal slowdown": (
        "gpu.{}.clocks.event_reasons = HwSlowdown|HwThermalSlowdown",
        "gpu_setup",
        "slowed_down",
    ),
    "power brake": (
        "gpu.{}.clocks.event_reasons = HwSlowdown|HwPowerBrakeSlowdown",
        "gpu_setup",
        "slowed_down",
    ),
    "PCIe replays": ("gpu.{}.pcie.replay = 100000", "pcie", "replays.rate"),
    "PCIe width": ("gpu.{}.pcie.width = 4", "pcie", "width.missing"),
    "InfoROM": ("gpu.{}.inforom.valid = 0", "recovery", "gpu_inforom_corrupted"),
    "reset required": (
        "fault = nvmlDeviceGetRowRemapperHistogram gpu={} return=RESET_REQUIRED",
        "ecc",
        "gpu_reset_required",
    ),
}
"""The line of a scenario, the check that finds it, and the fault."""
LACKING = {
    ("1xl40s", "link down"),
    ("1xl40s", "link recovered"),
    *((board, "link recovered") for board in ("1xa100", "8xh100")),
    ("4xgb200", "PCIe width"),
}
"""Boards without links, without those of NVLink 5, or without PCIe lanes that are judged."""


@pytest.fixture(scope="module")
def pasts(tmp_path_factory: pytest.TempPathFactory, nvml_library: Path) -> Mapping[str, Path]:
    """Keep a run of each healthy board; return the states."""
    states: dict[str, Path] = {}
    for board in BOARDS:
        folder = tmp_path_factory.mktemp(board)
        lab, cli = Lab(folder, nvml_library), make_cli(folder)
        take(lab, board)
        verified(cli, lab)
        states[board] = cli.state
    return states


@pytest.mark.parametrize(
    ("board", "fault"),
    [(b, f) for b in BOARDS for f in FAULTS if (b, f) not in LACKING],
)
def test_a_fault_of_a_captured_board_is_found_on_its_gpu(
    cli: Cli, board_lab: Lab, pasts: Mapping[str, Path], board: str, fault: str
) -> None:
    shutil.copytree(pasts[board], cli.state)
    line, check, name = FAULTS[fault]
    gpu = int(board[0]) - 1
    take(board_lab, board, line.format(gpu))
    run = verified(cli, board_lab)
    (result,) = (r for r in run["results"] if r["check"] == check)

    assert name in {fault["code"] for fault in result["faults"]}, result["reason"]
    reasons = " ".join(r["reason"] for r in run["results"])
    assert set(re.findall(r"\bGPU (\d) ", reasons)) <= {str(gpu)}
    assert f"GPU {gpu} (" in result["reason"] or f"index {gpu}" in result["reason"]
