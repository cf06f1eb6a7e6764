"""Which ports a node has, and what belongs to each of them."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from hpcverify.telemetry import ethtool, nics
from hpcverify.telemetry.probe import probe
from tests.checks.nic_trees import (
    adapter,
    address,
    azure,
    cloud,
    device,
    h100,
    interface,
    laptop,
)
from tests.telemetry.trees import grow, link
from tests.waiting import PATIENCE_S


def test_a_port_is_what_a_cable_goes_into(tmp_path: Path) -> None:
    labels = [port.label for port in nics.read_ports(h100(tmp_path), 20).ports]
    assert labels == [*(f"mlx5_{i}" for i in range(8)), "ens8", "ens9"]


def test_pieces_of_an_adapter_carry_no_more_than_it(tmp_path: Path) -> None:
    """Count the planes of XDR once (Mellanox/rdmamap#17), and virtual and subfunctions."""
    for index in range(2):
        folder = device(tmp_path, index)
        adapter(tmp_path, f"mlx5_{index}", folder, index, rate="800 Gb/sec (4X XDR)")
        plane = adapter(tmp_path, f"smi{index}", folder, index, rate="200 Gb/sec (1X XDR)")
        for port in range(2, 5):
            shutil.copytree(tmp_path / plane, tmp_path / plane.replace("/1", f"/{port}"))
        virtual = device(tmp_path, index, function=1)
        link(tmp_path, f"{virtual}/physfn", folder)
        piece = f"{folder}/mlx5_core.sf.4"
        grow(tmp_path, {f"{piece}/sfnum": 4})
        for name, place in (("vf", virtual), ("sf", piece)):
            adapter(tmp_path, f"{name}{index}", place, index, rate="800 Gb/sec (4X XDR)")
    assert nics.sum_port_rates(tmp_path) == 2 * 800 / 8


def test_the_planes_of_an_adapter_keep_their_id_under_another_number(tmp_path: Path) -> None:
    ids: list[set[str]] = []
    for order in ((0, 1), (1, 0)):
        root = tmp_path / str(order)
        for index, number in enumerate(order):
            folder = device(root, index)
            adapter(root, f"mlx5_{index}", folder, index)
            adapter(root, f"smi{number}", folder, index)
        ids.append({part.id for part in probe(root).of_kind("nic")})
    assert ids[0] == ids[1]
    assert len(ids[0]) == 4


def test_a_laptop_has_no_port_but_its_socket(tmp_path: Path) -> None:
    assert [p.label for p in nics.read_ports(laptop(tmp_path), 20).ports] == ["enp3s0"]


def test_every_port_goes_by_the_id_of_its_part(tmp_path: Path) -> None:
    root = h100(tmp_path)
    inventory = probe(root)
    assert all(inventory.find_part(place.part.id) for place in nics.find_ports(root))


def test_every_adapter_of_a_cloud_goes_by_an_id_of_its_own(tmp_path: Path) -> None:
    parts = probe(cloud(tmp_path)).of_kind("nic")
    assert len({part.id for part in parts}) == len(parts) == 6
    assert [part.id for part in parts][-2:] == [f"rdma-{address(6)}", f"rdma-{address(7)}"]


def test_ipoib_is_no_part_since_its_address_changes_with_each_start(tmp_path: Path) -> None:
    labels = [part.label for part in nics.list_nics(azure(tmp_path))]
    assert labels == ["eth0", "mlx5_ib2", "mlx5_ib3"]


def test_what_stands_for_a_function_is_no_part(tmp_path: Path) -> None:
    folder = device(tmp_path, 0)
    grow(tmp_path, {f"{folder}/mlx5_core.sf.4/sfnum": 1})
    interface(tmp_path, "enp24s0f0s1", f"{folder}/mlx5_core.sf.4")
    for name in ("enp24s0f0r0", "enp24s0f0r1"):
        interface(tmp_path, name, folder, addr_assign_type=1)
    interface(tmp_path, "enp24s0f0", folder)
    assert [part.label for part in nics.list_nics(tmp_path)] == ["enp24s0f0"]


def test_ports_with_the_same_address_are_two(tmp_path: Path) -> None:
    for index in range(2):
        interface(tmp_path, f"ens{index}", device(tmp_path, index), 7)
    ids = [place.part.id for place in nics.find_ports(tmp_path)]
    assert ids == ["b8:3f:d2:00:00:07", "b8:3f:d2:00:00:07 ens1"]


def test_a_second_port_of_an_adapter_goes_by_its_number(tmp_path: Path) -> None:
    folder = device(tmp_path, 0, "mlx4_core")
    first = adapter(tmp_path, "mlx4_0", folder, 0)
    shutil.copytree(tmp_path / first, tmp_path / first.replace("ports/1", "ports/2"))
    assert [p.label for p in nics.read_ports(tmp_path, 20).ports] == ["mlx4_0", "mlx4_0 port 2"]


def test_two_ports_of_one_function_keep_their_own_counters(tmp_path: Path) -> None:
    folder = device(tmp_path, 0, "mlx4_core")
    first = adapter(tmp_path, "mlx4_0", folder, 0, link_layer="Ethernet")
    shutil.copytree(tmp_path / first, tmp_path / first.replace("ports/1", "ports/2"))
    for port in (0, 1):
        interface(tmp_path, f"ens{port}", folder, port, dev_port=port)
        grow(tmp_path, {f"{first[:-1]}{port + 1}/counters/symbol_error": port})
    ports = nics.read_ports(tmp_path, 20).ports
    assert [(p.label, p.counts["counters symbol_error"]) for p in ports] == [
        ("ens0", 0),
        ("ens1", 1),
    ]


def test_a_node_with_ten_ports_costs_milliseconds(tmp_path: Path) -> None:
    root, times = h100(tmp_path), list[float]()
    for _ in range(5):
        begun = time.process_time()
        nics.read_ports(root, 20)
        times.append(time.process_time() - begun)
    assert min(times) < 0.2  # it is 10 ms; a machine that runs tests is not quiet


COUNT_OPENED = """
import sys
from pathlib import Path
from hpcverify.telemetry import nics
opened = [0]
sys.addaudithook(lambda event, _: opened.__setitem__(0, opened[0] + (event == "open")))
ports = nics.read_ports(Path(sys.argv[1]), 20).ports
print(opened[0] / len(ports))
"""


def test_a_port_takes_some_forty_files(tmp_path: Path) -> None:
    command = [sys.executable, "-c", COUNT_OPENED, str(h100(tmp_path))]
    output = subprocess.check_output(command, text=True)

    assert 20 < float(output) < 60


@pytest.mark.parametrize("name", ["no-such-port", "a-name-that-is-too-long-for-one", "lo"])
def test_an_interface_without_statistics_has_none(name: str) -> None:
    assert ethtool.read_statistics(name, {"rx_symbol_err_phy"}) == {}


def test_a_subfunction_is_no_port(tmp_path: Path) -> None:
    folder = device(tmp_path, 0)
    grow(tmp_path, {f"{folder}/mlx5_core.sf.4/sfnum": 1})
    interface(tmp_path, "enp24s0f0s1", f"{folder}/mlx5_core.sf.4")
    interface(tmp_path, "enp24s0f0", folder)
    assert [p.label for p in nics.read_ports(tmp_path, 20).ports] == ["enp24s0f0"]


def test_the_ports_behind_one_that_hangs_are_read(tmp_path: Path) -> None:
    root, released = h100(tmp_path), threading.Event()

    def hang(name: str, _names: object) -> dict[str, int]:
        if name == "ens8":
            released.wait(PATIENCE_S)
        return {}

    readings = nics.read_ports(root, 2, hang)
    released.set()
    assert [label for _, label in readings.silent] == ["ens8"]
    assert len(readings.ports) == 9


def test_a_bug_while_ports_are_read_is_raised_and_accuses_no_port(tmp_path: Path) -> None:
    def fail(_name: str, _names: object) -> dict[str, int]:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        nics.read_ports(h100(tmp_path), 120, fail)


def test_a_bug_while_ports_are_looked_for_is_raised_at_once() -> None:
    nowhere: Any = None
    with pytest.raises(TypeError):
        nics.read_ports(nowhere, 120)


def test_a_port_keeps_its_id_when_somebody_sets_another_address(tmp_path: Path) -> None:
    folder = device(tmp_path, 0)
    interface(tmp_path, "ens1", folder)
    (before,) = nics.list_nics(tmp_path)
    shutil.rmtree(tmp_path / "sys/class/net/ens1")
    interface(tmp_path, "ens1", folder, addr_assign_type=3, address="02:00:00:00:00:01")
    burnt_in = {"ens1": before.id}
    assert list(nics.list_nics(tmp_path, burnt_in.get)) == [before]
    assert [place.part.id for place in nics.find_ports(tmp_path, burnt_in.get)] == [before.id]


@pytest.mark.parametrize("name", ["lo", "no-such-port"])
def test_an_interface_without_an_address_of_its_own_has_none(name: str) -> None:
    assert ethtool.read_permanent_mac(name) is None


def test_a_link_that_a_hypervisor_took_down_is_switched_off(tmp_path: Path) -> None:
    """There is no cable to reseat."""
    for index, driver in enumerate(("virtio_net", "mlx5_core")):
        interface(tmp_path, f"ens{index}", device(tmp_path, index, driver), index, carrier=0)
    virtual, real = nics.read_ports(tmp_path, 120).ports
    assert (virtual.is_disabled, real.is_disabled) == (True, False)


@pytest.mark.parametrize(
    ("shown", "rate", "lanes"),
    [
        ("400 Gb/sec (4X NDR)", 400, 4),
        ("2.5 Gb/sec (1X SDR)", 2.5, 1),
        ("100 Gb/sec", 100, None),
        ("", None, None),
        ("N/A", None, None),
    ],
)
def test_a_rate_is_read_as_the_kernel_prints_it(
    tmp_path: Path, shown: str, rate: float | None, lanes: int | None
) -> None:
    adapter(tmp_path, "mlx5_0", device(tmp_path, 0), 0, rate=shown)
    (port,) = nics.read_ports(tmp_path, 20).ports
    assert (port.rate, port.lanes) == (rate, lanes)
