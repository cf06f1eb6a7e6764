"""The ports of the network: what is down, slow or noisy is told, and a healthy one is not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from hpcverify.check import Context, Inventory, Judgement, Remedy, Skip, Verdict
from hpcverify.model import CarryOver, Cause, CheckItem
from hpcverify.telemetry import nics
from hpcverify.telemetry.probe import probe
from hpcverify.testing import find_value, judge_items, list_codes, make_context
from hpcverify_checks import nic
from hpcverify_checks.nic import CHECK, NicParams
from tests.checks.links import clock, marks
from tests.checks.nic_trees import (
    adapter,
    address,
    cloud,
    container,
    device,
    gb200,
    h100,
    interface,
    laptop,
)
from tests.telemetry.trees import grow

IB3 = "sys/class/infiniband/mlx5_3/ports/1"
ROCE = "sys/class/infiniband/mlx5_bond_0/ports/1"
ENS8 = "sys/class/net/ens8"
PCI3 = f"sys/bus/pci/devices/{address(3)}"
MACHINES = {"h100": h100, "gb200": gb200, "cloud": cloud, "laptop": laptop}


class Node:
    """A machine whose ports are looked at again and again, an hour apart."""

    def __init__(self, folder: Path, build: Callable[[Path], Path]) -> None:
        """Let *build* write the files of the machine below *folder*."""
        self.folder = folder
        self.root = build(folder / "root")
        self.inventory: Inventory = probe(self.root)
        self.kept: dict[tuple[str, str], CarryOver] = {}
        self.hours = 10.0
        self.statistics: Mapping[str, int] = {}

    def look(
        self, hours: float = 1, *, accept: bool = False, patience: float = 20, boot: str = "b"
    ) -> list[CheckItem]:
        """Measure so many *hours* after the last time."""
        first = not self.kept
        self.hours += hours
        clock(self.root, self.hours * 3600, boot)
        ctx: Context = make_context(
            self.folder,
            inventory=self.inventory,
            previous=None if first or accept else self.inventory,
            carry_overs=tuple(self.kept.values()),
        )
        params = NicParams(patience=patience)
        readings = nics.read_ports(self.root, patience, lambda _name, _names: self.statistics)
        found = list(nic.report_ports(readings, ctx, params, self.root))
        self.kept |= {(mark.name, mark.where): mark for mark in marks(found)}
        return found

    def judge(self, found: list[CheckItem]) -> Judgement:
        """Judge what was *found* by the default limits."""
        return judge_items(CHECK, found, self.inventory)

    def turn(self, **files: object) -> None:
        """Write *files*, by their path."""
        grow(self.root, files)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    made = Node(tmp_path, h100)
    made.look()
    return made


def verdict_after(node: Node, files: Mapping[str, object], hours: float = 1) -> Judgement:
    node.turn(**files)
    return node.judge(node.look(hours))


@pytest.mark.parametrize("build", MACHINES.values(), ids=MACHINES)
def test_a_healthy_machine_of_any_kind_is_silent_run_after_run(
    tmp_path: Path, build: Callable[[Path], Path]
) -> None:
    node = Node(tmp_path, build)
    for _ in range(3):
        found = node.look()
        assert node.judge(found) == Judgement(verdict=Verdict.PASS)
        assert list_codes(found) == []


def test_a_node_without_a_port_on_a_device_is_not_judged(tmp_path: Path) -> None:
    with pytest.raises(Skip, match="no network port"):
        Node(tmp_path, container).look()


def test_a_port_is_what_a_cable_goes_into(node: Node) -> None:
    labels = [port.label for port in nics.read_ports(node.root, 20).ports]
    assert labels == [*(f"mlx5_{i}" for i in range(8)), "ens8", "ens9"]


def test_a_laptop_has_no_port_but_its_socket(tmp_path: Path) -> None:
    assert [p.label for p in nics.read_ports(laptop(tmp_path), 20).ports] == ["enp3s0"]


def test_every_port_goes_by_the_id_of_its_part(node: Node) -> None:
    places = list(nics.find_ports(node.root))
    assert all(node.inventory.find_part(place.part.id) for place in places)


DOWN: dict[str, object] = {
    f"{IB3}/state": "1: DOWN",
    f"{IB3}/phys_state": "2: Polling",
    f"{IB3}/rate": "10 Gb/sec",
}
FAILS = (Verdict.FAIL, Cause.NONE, Remedy.INSPECT)
WARNS = (Verdict.WARN, Cause.NONE, Remedy.FIX_CONFIGURATION)
NOT_SET_UP = (Verdict.ERROR, Cause.MISCONFIGURED, Remedy.FIX_CONFIGURATION)
UNSET_GID = "0000:0000:0000:0000:0000:0000:0000:0000"
States = tuple[dict[str, object], tuple[Verdict, Cause, Remedy], str]
STATES: dict[str, States] = {
    "down": (DOWN, FAILS, "mlx5_3: is down"),
    "Ethernet down": (
        {f"{ENS8}/carrier": 0},
        FAILS,
        "ens8: is down (no carrier), before 25 Gb/s",
    ),
    "half its lanes": (
        {f"{IB3}/rate": "200 Gb/sec (2X NDR)"},
        FAILS,
        "mlx5_3: runs at 200 Gb/sec (2X NDR)",
    ),
    "slow Ethernet": (
        {f"{ENS8}/speed": 10000},
        FAILS,
        "ens8: runs at 10 Gb/s, before at 25 Gb/s",
    ),
    "no subnet manager": ({f"{IB3}/state": "2: INIT"}, NOT_SET_UP, "mlx5_3: has a link"),
    "no GID": ({f"{ROCE}/gids/3": UNSET_GID}, NOT_SET_UP, "ens8: lost GID index 3"),
    "no partition key": (
        {f"{IB3}/pkeys/0": "0x0000", f"{IB3}/pkeys/1": "0x8001"},
        NOT_SET_UP,
        "lost partition key 0xffff",
    ),
    "switched off": (
        {f"{ENS8}/carrier": 0, f"{ENS8}/flags": "0x1002"},
        WARNS,
        "ens8: was up and is switched off",
    ),
    "InfiniBand switched off": (
        {f"{IB3}/state": "1: DOWN", f"{IB3}/phys_state": "3: Disabled"},
        WARNS,
        "mlx5_3: was up",
    ),
}


@pytest.mark.parametrize(("files", "told", "says"), STATES.values(), ids=STATES)
def test_a_port_is_held_to_what_it_was_until_a_change_is_accepted(
    node: Node, files: dict[str, object], told: tuple[Verdict, Cause, Remedy], says: str
) -> None:
    for _ in range(2):  # a rerun finds it again
        judgement = verdict_after(node, files)
        assert (judgement.verdict, judgement.cause, judgement.remedy) == told
        assert says in judgement.reason
    if "INIT" not in str(files):
        narrow = "2X" in says  # than its like, which a first look warns of
        accepted = node.judge(node.look(accept=True)).verdict
        assert accepted is (Verdict.WARN if narrow else Verdict.PASS)
    else:
        node.look(accept=True)
    assert node.judge(node.look()).reason == ""


def test_an_adapter_that_lost_lanes_of_its_slot_fails(node: Node) -> None:
    judgement = verdict_after(node, {f"{PCI3}/current_link_width": 8})
    assert (judgement.verdict, judgement.remedy) == (Verdict.FAIL, Remedy.INSPECT)
    assert "mlx5_3: has 8 PCIe lanes, before 16" in judgement.reason


def test_like_adapters_with_different_firmware_are_warned_of(node: Node) -> None:
    judgement = verdict_after(node, {"sys/class/infiniband/mlx5_3/fw_ver": "28.39.2048"})
    assert judgement.verdict is Verdict.WARN
    assert "mlx5_3 28.39.2048" in judgement.reason


def test_a_port_that_came_back_is_well(node: Node) -> None:
    assert verdict_after(node, DOWN).verdict is Verdict.FAIL
    up = {f"{IB3}/state": "4: ACTIVE", f"{IB3}/phys_state": "5: LinkUp"}
    assert verdict_after(node, {**up, f"{IB3}/rate": "400 Gb/sec (4X NDR)"}).reason == ""


def test_a_port_that_became_faster_is_held_to_that(node: Node) -> None:
    assert verdict_after(node, {f"{ENS8}/speed": 100000}).reason == ""
    assert verdict_after(node, {f"{ENS8}/speed": 25000}).verdict is Verdict.FAIL


def test_a_port_that_never_had_a_link_is_not_judged(tmp_path: Path) -> None:
    node = Node(tmp_path, h100)
    node.turn(**DOWN)
    assert [node.judge(node.look()).reason for _ in range(3)] == [""] * 3


def test_the_speed_of_a_virtual_adapter_is_not_judged(tmp_path: Path) -> None:
    node = Node(tmp_path, cloud)
    node.turn(**{"sys/class/net/ens5/speed": 25000})
    node.look()
    assert verdict_after(node, {"sys/class/net/ens5/speed": 10000}).reason == ""


def test_all_ports_down_at_once_are_one_finding(node: Node) -> None:
    for index in range(8):
        node.turn(**{k.replace("mlx5_3", f"mlx5_{index}"): v for k, v in DOWN.items()})
    found = node.look()
    assert list_codes(found) == ["all_ports_down"]
    judgement = node.judge(found)
    assert judgement.verdict is Verdict.FAIL
    assert judgement.reason.startswith("node: all 8 InfiniBand ports are down at once")


def test_all_ports_but_one_down_are_named_each(node: Node) -> None:
    for index in range(7):
        node.turn(**{k.replace("mlx5_3", f"mlx5_{index}"): v for k, v in DOWN.items()})
    assert list_codes(node.look()) == ["port_down"] * 7


@pytest.mark.parametrize("others", ["400 Gb/sec (4X NDR)", "200 Gb/sec (4X HDR)"])
def test_a_new_port_with_fewer_lanes_than_all_its_like_is_warned_of(
    tmp_path: Path, others: str
) -> None:
    half = {"400 Gb/sec (4X NDR)": "200 Gb/sec (2X NDR)"}.get(others, "100 Gb/sec (2X HDR)")
    node = Node(tmp_path, lambda root: h100(root, rate=others))
    node.turn(**{f"{IB3}/rate": half})
    judgement = node.judge(node.look())
    assert judgement.verdict is Verdict.WARN
    assert judgement.reason.startswith(f"mlx5_3: runs at {half}")


def test_ports_of_another_fabric_are_not_odd(tmp_path: Path) -> None:
    node = Node(tmp_path, h100)
    node.turn(**{f"{IB3}/rate": "200 Gb/sec (4X HDR)"})
    assert node.judge(node.look()).reason == ""


def test_an_adapter_in_a_slot_that_gives_fewer_lanes_is_warned_of(tmp_path: Path) -> None:
    node = Node(tmp_path, h100)
    node.turn(**{f"{PCI3}/current_link_width": 8})
    judgement = node.judge(node.look())
    assert (judgement.verdict, judgement.remedy) == (Verdict.WARN, Remedy.INSPECT)
    assert "although adapter and slot support 16" in judgement.reason


RATES: dict[str, tuple[str, int, int]] = {
    "symbol.rate": (f"{IB3}/counters/symbol_error", 120, 121),
    "recovery.rate": (f"{IB3}/counters/link_error_recovery", 250, 301),
    "receive.rate": (f"{IB3}/counters/port_rcv_errors", 36_014, 36_015),
    "integrity.delta": (f"{IB3}/counters/local_link_integrity_errors", 0, 1),
    "timeout.rate": (f"{ROCE}/hw_counters/local_ack_timeout_err", 3600, 3601),
    "slow_restart.rate": (f"{ROCE}/hw_counters/roce_slow_restart", 36_000, 36_001),
    "transmit.rate": (f"{ENS8}/statistics/tx_carrier_errors", 36_000, 36_001),
    "link_down.delta": (f"{IB3}/counters/link_downed", 0, 1),
    "pcie.non_fatal.delta": (f"{PCI3}/aer_dev_nonfatal", 0, 1),
    "pcie.correctable.rate": (f"{PCI3}/aer_dev_correctable", 480, 481),
}


@pytest.mark.parametrize(("name", "path", "fine", "much"), [(n, *r) for n, r in RATES.items()])
def test_errors_are_warned_of_from_their_limit_on(
    node: Node, name: str, path: str, fine: int, much: int
) -> None:
    word = "Bad " if "aer" in path else ""
    assert verdict_after(node, {path: f"{word}{fine}"}).reason == ""
    judgement = verdict_after(node, {path: f"{word}{fine + much}"})
    assert judgement.verdict is Verdict.WARN
    assert f": {name} " in judgement.reason
    assert verdict_after(node, {path: f"{word}{fine + much}"}, hours=2).reason == ""


@pytest.mark.parametrize("name", ["out_of_sequence", "packet_seq_err", "rnr_nak_retry_err"])
def test_what_adaptive_routing_and_slow_receivers_cause_is_not_judged(
    node: Node, name: str
) -> None:
    node.turn(**{f"{ROCE}/hw_counters/{name}": 10**6})
    found = node.look()
    assert node.judge(found).reason == ""
    assert list_codes(found) == ["port_errors"]


def test_a_fatal_error_of_pcie_is_conclusive(node: Node) -> None:
    judgement = verdict_after(node, {f"{PCI3}/aer_dev_fatal": "DLP 1"})
    assert judgement.verdict is Verdict.FAIL
    assert "mlx5_3: pcie.fatal.delta 1 > 0" in judgement.reason
    assert CHECK.rules["pcie.fatal.delta"].hard


@pytest.mark.parametrize(("falls", "verdict"), [(1, Verdict.WARN), (3, Verdict.FAIL)])
@pytest.mark.parametrize("path", [f"{IB3}/counters/link_downed", f"{ENS8}/carrier_down_count"])
def test_a_link_that_fell_is_warned_of_and_one_that_flaps_fails(
    node: Node, path: str, falls: int, verdict: Verdict
) -> None:
    before = 1 if "carrier" in path else 0
    assert verdict_after(node, {path: before + falls}).verdict is verdict


def test_three_falls_in_a_day_do_not_make_a_flapping_link(node: Node) -> None:
    judgement = verdict_after(node, {f"{IB3}/counters/link_downed": 3}, hours=24)
    assert judgement.verdict is Verdict.WARN


def test_ports_that_all_fell_at_once_accuse_none(node: Node) -> None:
    for index in range(8):
        node.turn(**{f"sys/class/infiniband/mlx5_{index}/ports/1/counters/link_downed": 4})
    found = node.look()
    judgement = node.judge(found)
    assert (judgement.verdict, "all_ports_flapped" in list_codes(found)) == (Verdict.WARN, True)
    assert judgement.reason.startswith("node: all 8 InfiniBand ports lost their link")


def test_a_lifetime_of_errors_is_not_new(tmp_path: Path) -> None:
    node = Node(tmp_path, h100)
    node.turn(**{f"{IB3}/counters/symbol_error": 60_000, f"{IB3}/counters/link_downed": 200})
    assert [node.judge(node.look()).reason for _ in range(2)] == [""] * 2


def test_a_counter_that_jumped_back_counts_from_zero(node: Node) -> None:
    path = f"{IB3}/hw_counters/local_ack_timeout_err"
    node.turn(**{path: 2**32 - 10})
    node.look(hours=1)
    assert verdict_after(node, {path: 5}).reason == ""


def test_after_a_reboot_nothing_is_new_and_the_link_is_remembered(node: Node) -> None:
    node.turn(**{f"{IB3}/counters/link_downed": 9, **DOWN})
    found = node.look(boot="another")
    assert list_codes(found) == ["port_down"]


def test_a_counter_at_its_end_is_told(node: Node) -> None:
    node.turn(**{f"{IB3}/counters/link_downed": 255})
    node.look()
    found = node.look()
    assert list_codes(found) == ["counter_saturated"]
    assert node.judge(found).verdict is Verdict.PASS


@pytest.mark.parametrize(
    ("name", "metric"),
    [
        ("rx_symbol_err_phy", "symbol.rate"),
        ("rx_crc_errors_phy", "receive.rate"),
        ("link_down_events_phy", "link_down.rate"),
        ("module_high_temp", "module.delta"),
    ],
)
def test_the_statistics_of_the_driver_count(tmp_path: Path, name: str, metric: str) -> None:
    node = Node(tmp_path, gb200)
    node.statistics = {name: 5}
    node.look()
    node.statistics = {name: 45}
    (port,) = node.inventory.of_kind("nic")[0:1]
    assert port.label == "enP5p3s0f0"
    assert find_value(node.look(), metric, port.id) == 40


@pytest.mark.parametrize(("heat", "verdict"), [(70_000, Verdict.PASS), (71_000, Verdict.WARN)])
def test_a_hot_module_is_warned_of(tmp_path: Path, heat: int, verdict: Verdict) -> None:
    node = Node(tmp_path, h100)
    folder = f"sys/bus/pci/devices/{address(8)}/hwmon/hwmon4"
    node.turn(**{f"{folder}/temp1_label": "asic", f"{folder}/temp1_input": 99_000})
    node.turn(**{f"{folder}/temp2_label": "Module0", f"{folder}/temp2_crit": 70_000})
    node.turn(**{f"{folder}/temp2_input": heat})
    assert node.judge(node.look()).verdict is verdict


def test_a_port_that_never_answers_is_named_and_the_others_are_judged(node: Node) -> None:
    hanging = node.root / IB3 / "state"
    hanging.unlink()
    os.mkfifo(hanging)
    node.turn(**{f"{ENS8}/speed": 10000})
    found = node.look(patience=1)
    with hanging.open("w") as let_go:
        let_go.write("1: DOWN")
    assert list_codes(found) == ["nic_hung", "port_slow"]
    (hung, *_) = [f for f in found if getattr(f, "code", "") == "nic_hung"]
    judgement = node.judge([hung])
    assert (judgement.verdict, judgement.cause) == (Verdict.ERROR, Cause.HUNG)
    assert judgement.reason.startswith("mlx5_3: does not answer within 1 s")


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


@pytest.mark.skipif(os.geteuid() != 0, reason="makes interfaces")
def test_real_interfaces_are_judged_by_what_the_kernel_shows(tmp_path: Path) -> None:
    script = (
        f"mount -t sysfs sysfs /sys && exec {sys.executable} -m tests.checks.live_nic {tmp_path}"
    )
    done = subprocess.run(
        ["unshare", "--net", "--mount", "--propagation", "private", "sh", "-c", script],
        capture_output=True, text=True, timeout=60, check=False, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert done.stdout.split() == [
        *("first=pass", "again=pass", "down=fail", "back=warn", "flaps=fail"),
        *("slow=fail", "off=warn", "up=pass"),
    ], done.stderr


def test_a_node_with_ten_ports_costs_milliseconds(node: Node) -> None:
    times: list[float] = []
    for _ in range(5):
        begun = time.process_time()
        nics.read_ports(node.root, 20)
        times.append(time.process_time() - begun)
    assert min(times) < 0.2  # 20 ms; a machine that runs tests is not quiet
