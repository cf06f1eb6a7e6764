"""GPUs of AMD, from files of several machines; no such machine has been seen."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcverify.model import Inventory
from hpcverify.telemetry import make_readers, pci
from hpcverify.telemetry.probe import probe, probe_with_holders
from tests.telemetry import trees
from tests.telemetry.trees import amd_gpu, amd_process, grow

NAMES = ("GPU-1ff168be1f0fb7d0", "GPU-1ff168be1f0fb7d1")


def list_ids(found: Inventory) -> list[str]:
    return [part.id for part in found.of_kind("gpu")]


def test_a_gpu_goes_by_its_unique_id_and_can_be_computed_on(tmp_path: Path) -> None:
    addresses = [amd_gpu(tmp_path, number) for number in (0, 1)]
    grow(tmp_path, {"sys/module/amdgpu/version": "6.12.12"})
    found = probe(tmp_path)
    assert list_ids(found) == [*NAMES]
    assert [(d.kind, d.part, d.label) for d in found.devices[1:]] == [
        ("cuda", NAMES[0], "GPU 0 (…b7d0)"),
        ("cuda", NAMES[1], "GPU 1 (…b7d1)"),
    ]
    assert found.of_kind("gpu")[0].facts == {
        "vendor": "AMD",
        "pci_address": addresses[0],
        "driver": "6.12.12",
        "name": "AMD Instinct MI300X OAM",
        "serial": "692434000",
        "board": "102-G30211-00",
        "pci_device_id": "1002:74a1",
        "vbios": "113-M3000100-102",
        "memory": "192 GiB",
    }
    assert (found.problems, found.sensors) == ((), ())


def test_a_gpu_without_a_unique_id_goes_by_its_place(tmp_path: Path) -> None:
    amd_gpu(tmp_path, 0, unique_id=None, product_name=None)
    found = probe(tmp_path)
    assert list_ids(found) == ["gpu-0000:0c:00.0"]
    assert found.of_kind("gpu")[0].facts["name"] == "AMD GPU 74a1"
    assert len(found.devices) == 2


@pytest.mark.parametrize("kind", ["0x030200", "0x038000", "0x120000", "0x030000"])
def test_a_gpu_of_every_class_that_amd_uses_is_found(tmp_path: Path, kind: str) -> None:
    amd_gpu(tmp_path, 0, **{"class": kind})
    assert list_ids(probe(tmp_path)) == [NAMES[0]]


def test_the_small_gpu_inside_of_a_cpu_is_none(tmp_path: Path) -> None:
    amd_gpu(tmp_path, 0, unique_id=None, **{"class": "0x030000"})
    found = probe(tmp_path)
    assert (list_ids(found), found.problems, len(found.devices)) == ([], (), 1)


def test_a_gpu_that_was_handed_to_a_virtual_machine_is_not_ours(tmp_path: Path) -> None:
    amd_gpu(tmp_path, 0, driver="vfio-pci")
    assert list_ids(probe(tmp_path)) == []


def test_on_a_node_with_gpus_of_nvidia_the_others_are_left_out(tmp_path: Path) -> None:
    amd_gpu(tmp_path, 0)
    folder = f"{pci.PCI_DEVICES_FOLDER}/0000:9b:00.0"
    grow(tmp_path, {f"{folder}/vendor": "0x10de", f"{folder}/class": "0x030200"})
    assert list_ids(probe(tmp_path)) == ["0000:9b:00.0"]


def test_gpus_that_no_driver_runs_are_told_with_the_command(tmp_path: Path) -> None:
    addresses = [amd_gpu(tmp_path, number, driver="") for number in (0, 1)]
    found = probe(tmp_path)
    assert list_ids(found) == addresses
    (problem,) = found.problems
    assert (problem.code, problem.part_id) == ("driver_not_loaded", "node")
    assert "2 AMD GPUs" in problem.text
    assert "modprobe amdgpu" in problem.text
    assert len(found.devices) == 1


def test_one_gpu_that_its_driver_does_not_run_is_named_by_its_place(tmp_path: Path) -> None:
    amd_gpu(tmp_path, 0)
    address = amd_gpu(tmp_path, 1, driver="")
    found = probe(tmp_path)
    assert [(p.code, p.part_id) for p in found.problems] == [("gpu_unreadable", address)]
    assert [d.part for d in found.devices[1:]] == [NAMES[0]]


def test_a_gpu_in_partitions_is_listed_and_not_worked_on(tmp_path: Path) -> None:
    amd_gpu(tmp_path, 0)
    amd_gpu(tmp_path, 1, current_compute_partition="CPX")
    found = probe(tmp_path)
    assert [(p.code, p.part_id) for p in found.problems] == [("gpu_partitioned", NAMES[1])]
    assert "amd-smi set --gpu all --compute-partition SPX" in found.problems[0].text
    assert [d.part for d in found.devices[1:]] == [NAMES[0]]


def test_who_holds_memory_of_a_gpu_is_told_and_who_only_looked_is_not(tmp_path: Path) -> None:
    for number in (0, 1):
        amd_gpu(tmp_path, number)
    grow(tmp_path, {f"{trees.KFD}/topology/nodes/0/properties": "cpu_cores_count 96"})
    amd_process(tmp_path, 1557458, {0: 0, 1: 1610571776})
    amd_process(tmp_path, 3722222, {0: 0, 1: 0})
    _, holders = probe_with_holders(tmp_path)
    assert holders == ((NAMES[1], 1557458),)


def test_nothing_samples_them(tmp_path: Path) -> None:
    amd_gpu(tmp_path, 0)
    assert len(make_readers(probe(tmp_path), tmp_path)) == len(make_readers(Inventory(), tmp_path))
