"""PCIe links and their errors in sysfs."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcverify.telemetry import aer, pci
from tests.telemetry.trees import grow

GPU = "0000:18:00.0"
PORT = "0000:17:01.0"
ROOT_PORT = "0000:16:00.0"
FOLDER = f"sys/devices/pci0000:16/{ROOT_PORT}/{PORT}/{GPU}"
CORRECTABLE = "RxErr 2\nBadTLP 0\nReplay Timer Timeout 1\nTOTAL_ERR_COR 7"


def device(root: Path, **files: object) -> Path:
    grow(root, {f"{FOLDER}/{name}": content for name, content in files.items()})
    folder = root / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    bus = root / pci.PCI_DEVICES_FOLDER
    bus.mkdir(parents=True)
    for one in (folder, folder.parent, folder.parent.parent):
        (bus / one.name).symlink_to(one)
    return root


@pytest.mark.parametrize(
    ("speed", "generation", "rate"),
    [
        ("2.5 GT/s PCIe", 1, 4.0),
        ("5.0 GT/s PCIe", 2, 8.0),
        ("8.0 GT/s PCIe", 3, 15.754),
        ("16.0 GT/s PCIe", 4, 31.508),
        ("32.0 GT/s PCIe", 5, 63.015),
        ("64.0 GT/s PCIe", 6, 121.0),
        ("2.5 GT/s", 1, 4.0),  # by kernels before 5.7, as the next two
        ("8 GT/s", 3, 15.754),
        ("16 GT/s", 4, 31.508),
    ],
)
def test_a_link_carries_what_its_encoding_leaves(
    tmp_path: Path, speed: str, generation: int, rate: float
) -> None:
    device(tmp_path, current_link_speed=speed, current_link_width=16)
    found = aer.read_link(GPU, tmp_path)
    assert found == aer.Link(generation, 16)
    assert aer.Link(generation, 16).bandwidth == pytest.approx(rate, abs=0.001)


@pytest.mark.parametrize(
    ("speed", "width"),
    [
        ("Unknown", 16),
        ("Unknown speed", 16),
        ("inf GT/s", 16),
        ("32.0 GT/s PCIe", 0),
        ("", 63),
        ("7 GT/s", 8),
    ],
)
def test_what_a_virtual_machine_makes_up_is_not_known(
    tmp_path: Path, speed: str, width: int
) -> None:
    device(tmp_path, current_link_speed=speed, current_link_width=width)
    assert aer.read_link(GPU, tmp_path) is None


def test_a_link_can_do_what_both_ends_can(tmp_path: Path) -> None:
    device(tmp_path, max_link_speed="32.0 GT/s PCIe", max_link_width=16)
    assert aer.find_best_link(GPU, tmp_path) is None
    port = FOLDER.removesuffix(f"/{GPU}")
    grow(tmp_path, {f"{port}/max_link_speed": "16.0 GT/s PCIe", f"{port}/max_link_width": 32})
    assert aer.find_best_link(GPU, tmp_path) == aer.Link(4, 16)


def test_the_ports_above_are_listed_up_to_the_root(tmp_path: Path) -> None:
    device(tmp_path)
    assert aer.list_ports(GPU, tmp_path) == (PORT, ROOT_PORT)
    assert aer.list_ports(ROOT_PORT, tmp_path) == ()
    assert aer.list_ports("0000:99:00.0", tmp_path) == ()


def test_errors_are_those_that_happened_and_no_totals(tmp_path: Path) -> None:
    device(
        tmp_path,
        aer_dev_correctable=CORRECTABLE,
        aer_dev_nonfatal="UnsupReq 3\nTOTAL_ERR_NONFATAL 3",
        aer_dev_fatal="DLP 0\nTOTAL_ERR_FATAL 0",
    )
    assert aer.read_errors(GPU, tmp_path) == {
        "correctable": {"RxErr": 2, "Replay Timer Timeout": 1},
        "non_fatal": {"UnsupReq": 3},
        "fatal": {},
    }
    assert aer.read_errors(PORT, tmp_path) == {}


@pytest.mark.parametrize(
    ("listed", "cores"), [("0-2,8", {0, 1, 2, 8}), ("5", {5}), ("", set()), ("none", set())]
)
def test_the_cores_of_a_socket_are_listed(tmp_path: Path, listed: str, cores: set[int]) -> None:
    device(tmp_path, local_cpulist=listed)
    assert aer.list_local_cpus(GPU, tmp_path) == cores
