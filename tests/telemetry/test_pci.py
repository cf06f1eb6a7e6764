"""GPUs on the PCI bus."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcverify.telemetry import pci
from tests.telemetry.trees import grow, link

ADDRESS = "0000:18:00.0"


def device(root: Path, address: str, vendor: str, kind: str) -> None:
    folder = f"{pci.PCI_DEVICES_FOLDER}/{address}"
    grow(root, {f"{folder}/vendor": vendor, f"{folder}/class": kind})


@pytest.mark.parametrize("kind", ["0x030000", "0x030200"])
def test_gpus_are_found_without_a_driver(tmp_path: Path, kind: str) -> None:
    device(tmp_path, ADDRESS, "0x10de", kind)
    assert pci.list_nvidia_gpus(tmp_path) == (ADDRESS,)


@pytest.mark.parametrize(
    ("vendor", "kind"), [("0x10de", "0x068000"), ("0x10de", "0x040300"), ("0x102b", "0x030000")]
)
def test_switches_sound_and_other_makers_are_no_gpus(
    tmp_path: Path, vendor: str, kind: str
) -> None:
    device(tmp_path, ADDRESS, vendor, kind)
    assert pci.list_nvidia_gpus(tmp_path) == ()


def test_a_gpu_that_was_handed_to_a_virtual_machine_is_not_ours(tmp_path: Path) -> None:
    device(tmp_path, ADDRESS, "0x10de", "0x030200")
    link(tmp_path, f"{pci.PCI_DEVICES_FOLDER}/{ADDRESS}/driver", "sys/bus/pci/drivers/vfio-pci")
    assert pci.list_nvidia_gpus(tmp_path) == ()
    assert pci.count_handed_on_gpus(tmp_path) == 1


def test_nvml_and_the_kernel_write_one_address_alike() -> None:
    assert pci.normalize_address("00000000:5D:00.0") == "0000:5d:00.0"
    assert pci.normalize_address("00010000:5D:00.0") == "10000:5d:00.0"


def test_the_address_of_a_device_behind_vmd_has_a_domain_of_five_digits(tmp_path: Path) -> None:
    """Intel's VMD (drivers/pci/controller/vmd.c) numbers its domains from 0x10000."""
    bus = "sys/devices/pci0000:7e/0000:7e:00.5/pci10000:00/10000:00:02.0/10000:01:00.0"
    grow(tmp_path, {f"{bus}/nvme/nvme0/model": "a drive"})
    assert pci.find_address(tmp_path / bus / "nvme/nvme0") == "10000:01:00.0"
