"""The ports of the network: what is down, slow or noisy is told, and a healthy one is not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from hpcverify.check import Context, Inventory, Remedy, Skip, Verdict
from hpcverify.model import CarryOver, Cause, CheckItem, Finding, Result
from hpcverify.telemetry import nics
from hpcverify.telemetry.probe import probe
from hpcverify.testing import find_value, judge_items, list_codes, make_context
from hpcverify_checks import nic
from hpcverify_checks.inventory import compare
from hpcverify_checks.nic import CHECK, NicParams
from tests.checks.links import clock, marks
from tests.checks.nic_faults import (
    ENS8,
    EVENTS,
    HUNG,
    IB3,
    PCI3,
    PORT_FAULTS,
    RDMA,
    ROCE,
    STATES,
    PortFault,
    lose_link,
)
from tests.checks.nic_trees import (
    UNSET_GID,
    adapter,
    address,
    azure,
    cloud,
    container,
    device,
    gb200,
    h100,
    interface,
    laptop,
    roce,
)
from tests.telemetry.trees import grow, link
from tests.waiting import PATIENCE_S

MACHINES = {
    "h100": h100,
    "gb200": gb200,
    "roce": roce,
    "azure": azure,
    "cloud": cloud,
    "laptop": laptop,
}


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
        self,
        hours: float = 1,
        *,
        accept: bool = False,
        patience: float = 20,
        boot: str = "b",
        before_load: tuple[CarryOver, ...] = (),
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
            before_load=before_load,
            accepts_parts=accept,
        )
        params = NicParams(patience=patience)
        readings = nics.read_ports(self.root, patience, lambda _name, _names: self.statistics)
        found = list(nic.report_ports(readings, ctx, params, self.root))
        self.kept |= {(mark.name, mark.part_id): mark for mark in marks(found)}
        return found

    def judge(self, found: list[CheckItem]) -> Result:
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


def verdict_after(node: Node, files: Mapping[str, object], hours: float = 1) -> Result:
    node.turn(**files)
    return node.judge(node.look(hours))


@pytest.mark.parametrize("build", MACHINES.values(), ids=MACHINES)
def test_a_healthy_machine_of_any_kind_is_silent_run_after_run(
    tmp_path: Path, build: Callable[[Path], Path]
) -> None:
    node = Node(tmp_path, build)
    for _ in range(3):
        found = node.look()
        assert node.judge(found).faults == ()
        assert list_codes(found) == []


def test_a_node_without_a_port_on_a_device_is_not_judged(tmp_path: Path) -> None:
    with pytest.raises(Skip, match="no network port"):
        Node(tmp_path, container).look()


DOWN = lose_link("mlx5_3")


def told(judgement: Result) -> tuple[Verdict, Cause, Remedy]:
    """Pick what the table has of a *judgement*."""
    return judgement.verdict, judgement.cause, judgement.remedy


@pytest.mark.parametrize("fault", PORT_FAULTS, ids=lambda fault: fault.name)
def test_a_fault_is_told_as_in_the_table(node: Node, fault: PortFault) -> None:
    judgement = verdict_after(node, fault.files)
    assert told(judgement) == (fault.verdict, fault.cause, fault.remedy)
    assert fault.says in judgement.reason


@pytest.mark.parametrize("fault", STATES, ids=lambda fault: fault.name)
def test_a_port_is_held_to_what_it_was_until_a_change_is_accepted(
    node: Node, fault: PortFault
) -> None:
    for _ in range(2):  # a rerun finds it again
        assert fault.says in verdict_after(node, fault.files).reason
    node.look(accept=True)
    assert list_codes(node.look()) == []


@pytest.mark.parametrize("fault", EVENTS, ids=lambda fault: fault.name)
def test_an_event_is_told_once(node: Node, fault: PortFault) -> None:
    verdict_after(node, fault.files)
    assert node.judge(node.look()).reason == ""


def test_a_port_that_came_back_is_well(node: Node) -> None:
    assert verdict_after(node, DOWN).verdict is Verdict.FAIL
    up = {f"{IB3}/state": "4: ACTIVE", f"{IB3}/phys_state": "5: LinkUp"}
    assert verdict_after(node, {**up, f"{IB3}/rate": "400 Gb/sec (4X NDR)"}).reason == ""


def test_a_port_that_became_faster_is_held_to_that(node: Node) -> None:
    assert verdict_after(node, {f"{ENS8}/speed": 100000}).reason == ""
    assert verdict_after(node, {f"{ENS8}/speed": 25000}).verdict is Verdict.FAIL


@pytest.mark.parametrize("unused", [4, 5, 8])
def test_new_ports_of_which_half_or_more_have_no_link_are_not_judged(
    tmp_path: Path, unused: int
) -> None:
    node = Node(tmp_path, h100)
    for index in range(unused):
        node.turn(**lose_link(f"mlx5_{index}"))
    assert [node.judge(node.look()).reason for _ in range(3)] == [""] * 3


@pytest.mark.parametrize(
    "unlinked", [["mlx5_3"], ["mlx5_3", "mlx5_5"], ["mlx5_0", "mlx5_6", "mlx5_7"]]
)
def test_new_ports_without_a_link_unlike_most_of_their_like_are_warned_of_once(
    tmp_path: Path, unlinked: list[str]
) -> None:
    node = Node(tmp_path, h100)
    for name in unlinked:
        node.turn(**lose_link(name))
    found = node.look()
    judgement = node.judge(found)
    assert list_codes(found) == ["port_unlinked"] * len(unlinked)
    assert judgement.verdict is Verdict.WARN
    text = f"has no link (DOWN, Polling), although {8 - len(unlinked)} of 8 adapters of its board"
    assert text in judgement.reason
    assert node.judge(node.look()).reason == ""


def dual(root: Path, linked: tuple[int, ...]) -> Path:
    """Build a node of adapters with two ports, of which so many each have a link."""
    for index, count in enumerate(linked):
        for number in range(2):
            folder = device(root, 2 * index, function=number)
            name = f"mlx5_{2 * index + number}"
            adapter(root, name, folder, 2 * index + number)
            if number >= count:
                grow(root, lose_link(name))
    return root


@pytest.mark.parametrize(
    ("linked", "missing"),
    [
        ((1, 1, 1, 1), 0),  # second ports that nobody uses, as on OCI
        ((2, 2, 2, 2), 0),
        ((1, 1, 0, 1), 1),
        ((2, 0, 2, 2), 2),
        ((2, 1), 1),
        ((1, 0), 0),
    ],
)
def test_adapters_with_two_ports_are_compared_by_how_many_have_a_link(
    tmp_path: Path, linked: tuple[int, ...], missing: int
) -> None:
    node = Node(tmp_path, lambda root: dual(root, linked))
    assert list_codes(node.look()) == ["port_unlinked"] * missing


# A port that is up goes through INIT and ARMED, and a subnet manager takes it on to ACTIVE
# (InfiniBand Architecture Specification 14.3; NVIDIA NVSentinel, link-state-detection.md, 3.2).
@pytest.mark.parametrize("state", ["2: INIT", "3: ARMED"])
@pytest.mark.parametrize("count", [1, 2, 8])
def test_new_ports_with_a_link_that_no_subnet_manager_activates_are_reported_until_accepted(
    tmp_path: Path, state: str, count: int
) -> None:
    node = Node(tmp_path, h100)
    for index in range(count):
        node.turn(**{f"{RDMA}/mlx5_{index}/ports/1/state": state})
    for _ in range(2):
        found = node.look()
        judgement = node.judge(found)
        assert told(judgement) == (Verdict.ERROR, Cause.MISCONFIGURED, Remedy.FIX_CONFIGURATION)
        assert list_codes(found) == ["port_not_active"] * (count if count < 8 else 1)
        assert "sminfo" in judgement.reason
    assert list_codes(node.look(accept=True)) == list_codes(node.look()) == []


def test_a_port_may_wait_for_the_subnet_manager_after_the_boot(tmp_path: Path) -> None:
    node = Node(tmp_path, h100)
    node.turn(**{f"{IB3}/state": "2: INIT"})
    node.hours = 0
    assert list_codes(node.look(hours=200 / 3600)) == ["port_starting"]
    assert list_codes(node.look(hours=100 / 3600)) == ["port_not_active"]


def test_new_ports_of_roce_without_a_carrier_are_compared_too(tmp_path: Path) -> None:
    node = Node(tmp_path, roce)
    for name in ("ens2", "ens5", "ens6"):
        node.turn(**{f"sys/class/net/{name}/carrier": 0})
    node.turn(**{"sys/class/net/ens6/flags": "0x1002"})  # ip link set ens6 down
    found = node.look()
    assert list_codes(found) == ["port_unlinked"] * 2
    assert node.judge(found).verdict is Verdict.WARN


def test_a_port_of_roce_waits_for_no_subnet_manager(tmp_path: Path) -> None:
    node = Node(tmp_path, roce)
    node.turn(**{f"{RDMA}/mlx5_2/ports/1/state": "2: INIT"})
    assert list_codes(node.look()) == []


def hgx_b200(root: Path) -> Path:
    """Build eight NDR ports, and four functions of one adapter that lead to the NVSwitches."""
    h100(root)
    for number in range(4):
        folder = device(root, 12, function=number)
        adapter(root, f"mlx5_{12 + number}", folder, 12 + number)
        if number < 2:  # the limited functions; the full ones have no such keyword
            grow(root, {f"{folder}/vpd": "\x82\x2eNVIDIA ConnectX-7\x90 SMDL=SW_MNG V2"})
    return root


# NVIDIA Fabric Manager User Guide, "NVIDIA HGX B200/B300 GPU Baseboard": four functions 05:00.0-3
# of a ConnectX-7; siderolabs/extensions issue 893 and prometheus/node_exporter issue 3434.
@pytest.mark.parametrize("state", ["1: DOWN", "2: INIT", "3: ARMED", "4: ACTIVE"])
def test_ports_that_manage_the_nvswitches_of_a_board_are_not_judged(
    tmp_path: Path, state: str
) -> None:
    node = Node(tmp_path, hgx_b200)
    shown = {"phys_state": "2: Polling" if state == "1: DOWN" else "5: LinkUp", "state": state}
    for number in range(4):
        port = f"{RDMA}/mlx5_{12 + number}/ports/1"
        node.turn(**{f"{port}/{name}": text for name, text in shown.items()})
    for _ in range(2):
        assert list_codes(node.look()) == []


def test_ports_of_four_functions_that_manage_no_switch_are_judged(tmp_path: Path) -> None:
    node = Node(tmp_path, hgx_b200)
    for number in range(2):
        (node.root / f"sys/bus/pci/devices/{address(12, number)}/vpd").unlink()
    node.turn(**{f"{RDMA}/mlx5_12/ports/1/state": "2: INIT"})
    assert list_codes(node.look()) == ["port_not_active"]


def test_the_speed_of_a_virtual_adapter_is_not_judged(tmp_path: Path) -> None:
    node = Node(tmp_path, cloud)
    node.turn(**{"sys/class/net/ens5/speed": 25000})
    node.look()
    assert verdict_after(node, {"sys/class/net/ens5/speed": 10000}).reason == ""


def test_all_ports_but_one_down_are_named_each(node: Node) -> None:
    for index in range(7):
        node.turn(**lose_link(f"mlx5_{index}"))
    assert list_codes(node.look()) == ["port_down"] * 7


@pytest.mark.parametrize("others", ["400 Gb/sec (4X NDR)", "200 Gb/sec (4X HDR)"])
def test_new_ports_with_fewer_lanes_than_most_of_their_like_are_warned_of(
    tmp_path: Path, others: str
) -> None:
    half = {"400 Gb/sec (4X NDR)": "200 Gb/sec (2X NDR)"}.get(others, "100 Gb/sec (2X HDR)")
    node = Node(tmp_path, lambda root: h100(root, rate=others))
    node.turn(**{f"{IB3}/rate": half, f"{RDMA}/mlx5_6/ports/1/rate": half})
    found = node.look()
    assert list_codes(found) == ["port_narrow"] * 2
    assert node.judge(found).verdict is Verdict.WARN
    assert f"mlx5_3: runs at {half}" in node.judge(found).reason


def test_ports_of_another_fabric_are_not_odd(tmp_path: Path) -> None:
    node = Node(tmp_path, h100)
    node.turn(**{f"{IB3}/rate": "200 Gb/sec (4X HDR)"})
    assert node.judge(node.look()).reason == ""


def test_an_adapter_in_a_slot_that_gives_fewer_lanes_is_warned_of(tmp_path: Path) -> None:
    node = Node(tmp_path, h100)
    node.turn(**{f"{PCI3}/current_link_width": 8})
    judgement = node.judge(node.look())
    assert (judgement.verdict, judgement.remedy) == (Verdict.WARN, Remedy.INSPECT)
    assert "pcie.width.unused 8" in judgement.reason
    assert node.judge(node.look()).reason == ""  # as it was


def test_the_lanes_of_a_slot_that_a_hypervisor_hides_are_not_judged(tmp_path: Path) -> None:
    node = Node(tmp_path, h100)
    above = node.root / "sys/devices/pci0000:03/0000:03:01.0"
    bare = node.root / f"sys/devices/pci0000:03/{address(3)}"
    shutil.move(above / address(3), bare)
    for entry in (node.root / PCI3, node.root / RDMA / "mlx5_3/device"):
        entry.unlink()
        entry.symlink_to(bare)
    node.turn(**{f"{PCI3}/current_link_width": 8})
    assert node.judge(node.look()).reason == ""


WITHIN = {
    f"{IB3}/counters/symbol_error": 120,
    f"{IB3}/counters/link_error_recovery": 250,
    f"{IB3}/counters/port_rcv_errors": 36_014,
    f"{ROCE}/hw_counters/local_ack_timeout_err": 3600,
    f"{ROCE}/hw_counters/roce_slow_restart": 36_000,
    f"{ENS8}/statistics/tx_carrier_errors": 36_000,
    f"{PCI3}/aer_dev_correctable": "RxErr 480",
    f"{PCI3}/aer_dev_nonfatal": "UnsupReq 9",
}


@pytest.mark.parametrize(("path", "count"), WITHIN.items(), ids=lambda v: str(v).rpartition("/")[2])
def test_errors_within_their_limit_are_not_told(node: Node, path: str, count: object) -> None:
    assert verdict_after(node, {path: count}).reason == ""


def test_all_ports_down_at_once_are_one_finding(node: Node) -> None:
    for index in range(8):
        node.turn(**lose_link(f"mlx5_{index}"))
    assert list_codes(node.look()) == ["all_ports_down"]


def fall(node: Node, **counts: int) -> list[CheckItem]:
    """Let links fall so often, and look ten minutes later."""
    for name, count in counts.items():
        node.turn(**{f"sys/class/infiniband/{name}/ports/1/counters/link_downed": count})
    return node.look(hours=1 / 6)


ALL_FELL = {f"mlx5_{i}": 2 + i % 4 for i in range(8)}


def test_a_switch_that_restarted_accuses_no_port_in_the_runs_after_it(node: Node) -> None:
    assert node.judge(fall(node, **ALL_FELL)).verdict is Verdict.WARN
    assert [node.judge(node.look(hours=1 / 6)).reason for _ in range(6)] == [""] * 6


def test_a_port_that_flaps_is_not_hidden_by_a_switch_that_restarted(node: Node) -> None:
    found = fall(node, **ALL_FELL | {"mlx5_3": 250})
    assert node.judge(found).reason.startswith("mlx5_3: link_down.rate 250 1/h > 2")
    assert "ports_fell_together" in list_codes(found)


def test_a_port_that_falls_alone_after_all_fell_is_told(node: Node) -> None:
    fall(node, **ALL_FELL)
    reason = node.judge(fall(node, mlx5_3=ALL_FELL["mlx5_3"] + 1)).reason
    assert reason.startswith("mlx5_3: link_down.delta 1 > 0")


def test_a_dead_fabric_is_one_finding_beside_a_management_port(tmp_path: Path) -> None:
    node = Node(tmp_path, roce)
    node.look()
    for index in range(8):
        node.turn(**{f"sys/class/net/ens{index}/carrier": 0})
    found = node.look()
    assert list_codes(found) == ["all_ports_down"]
    assert "all 8 Ethernet ports of 400 Gb/s are down at once" in node.judge(found).reason


def look_after_load(node: Node, **files: object) -> list[CheckItem]:
    """Look before a load and after it, in a run that accepts the parts; *files* change in it."""
    before = marks(node.look(accept=True, boot="new"))
    node.kept = {}
    node.turn(**files)
    found = node.look(hours=0.1, accept=True, boot="new", before_load=before)
    node.kept = {(mark.name, mark.part_id): mark for mark in (*before, *marks(found))}
    return found


def test_a_link_that_falls_under_the_load_of_the_first_run_is_told(node: Node) -> None:
    found = look_after_load(node, **{f"{IB3}/counters/link_downed": 1})
    assert node.judge(found).reason.startswith("mlx5_3: link_down.delta 1 > 0")


def test_a_port_that_goes_down_in_the_first_run_is_told_and_stays_expected(node: Node) -> None:
    found = look_after_load(node, **DOWN)
    assert list_codes(found) == ["port_down"]
    assert list_codes(node.look(boot="new")) == ["port_down"]


def test_the_load_of_the_first_run_changes_nothing_at_a_healthy_node(node: Node) -> None:
    assert node.judge(look_after_load(node)).reason == ""


def test_the_adapters_count_of_falls_goes_before_that_of_the_kernel(tmp_path: Path) -> None:
    node, port = Node(tmp_path, laptop), "sys/class/net/enp3s0"
    node.turn(**{f"{port}/carrier": 1})
    node.statistics = {"link_down_events_phy": 1}
    node.look()
    assert verdict_after(node, {f"{port}/carrier_down_count": 30}).reason == ""
    node.statistics = {"link_down_events_phy": 4}
    assert "enp3s0: link_down.rate 3 1/h > 2" in node.judge(node.look()).reason


def test_a_fast_path_that_the_host_takes_away_accuses_nothing(tmp_path: Path) -> None:
    node = Node(tmp_path, azure)
    node.look()
    for path in ("net/enP1s1", "infiniband/mlx5_an0"):
        shutil.rmtree(node.root / "sys/class" / path)
    assert node.judge(node.look()).reason == ""
    assert compare(probe(node.root), node.inventory, node.root) == []


def test_a_gid_of_a_container_is_not_expected_of_the_port(tmp_path: Path) -> None:
    node, port = Node(tmp_path, roce), "sys/class/infiniband/mlx5_2/ports/1"
    interface(node.root, "macvlan7", None)
    node.turn(**{f"{port}/gid_attrs/ndevs/3": "macvlan7"})
    node.look()
    assert verdict_after(node, {f"{port}/gids/3": UNSET_GID}).reason == ""


def test_a_gid_that_went_to_the_other_port_of_a_bond_is_not_lost(tmp_path: Path) -> None:
    node = Node(tmp_path, roce)
    bond = interface(node.root, "bond0", None, 0, **{"bonding/mode": "active-backup 1"})
    for name in ("ens2", "ens3"):
        link(node.root, f"sys/class/net/{name}/master", bond)
    node.look()
    gone = {f"{RDMA}/mlx5_2/ports/1/gids/{i}": UNSET_GID for i in range(4)}
    assert verdict_after(node, gone).reason == ""


def test_a_gid_of_a_virtual_function_is_not_the_ports(node: Node) -> None:
    node.turn(**{f"{IB3}/gids/1": "fe80:0000:0000:0000:a088:c203:00aa:9999"})
    node.look()
    assert verdict_after(node, {f"{IB3}/gids/1": UNSET_GID}).reason == ""


def test_a_partition_key_that_moved_down_the_table_is_not_lost(node: Node) -> None:
    keys = ("0x8001", "0x8002", "0x8003", "0x8004", "0xffff", "0x0000")
    moved = {f"{IB3}/pkeys/{index}": key for index, key in enumerate(keys)}
    assert verdict_after(node, moved).reason == ""


def test_one_adapter_of_another_board_with_fewer_lanes_is_not_odd(tmp_path: Path) -> None:
    node = Node(tmp_path, h100)
    board = {"sys/class/infiniband/mlx5_3/board_id": "MT_0000000833"}
    node.turn(**board, **{f"{IB3}/rate": "200 Gb/sec (2X NDR)"})
    assert node.judge(node.look()).reason == ""


def test_an_idle_link_of_pcie_may_run_one_generation_slower(node: Node) -> None:
    assert verdict_after(node, {f"{PCI3}/current_link_speed": "16.0 GT/s PCIe"}).reason == ""


def test_text_that_is_no_number_is_no_reading(node: Node) -> None:
    garbage = {f"{IB3}/counters/symbol_error": "²", f"{ENS8}/flags": "up"}
    assert verdict_after(node, {**garbage, f"{ENS8}/speed": "fast"}).reason == ""


def test_a_port_that_is_unplugged_while_it_is_read_is_left_out(node: Node) -> None:
    for path in ("state", "phys_state", "rate"):
        (node.root / IB3 / path).unlink()
    hanging = node.root / IB3 / "state"
    os.mkfifo(hanging)

    def unplug() -> None:
        with hanging.open("w"):
            shutil.rmtree(node.root / IB3)

    thread = threading.Thread(target=unplug)
    thread.start()
    found = node.look()
    thread.join()
    assert list_codes(found) == []


def test_a_port_that_answers_with_an_error_is_not_called_down(node: Node) -> None:
    state = node.root / IB3 / "state"
    state.unlink()
    state.mkdir()  # a read of it fails
    found = node.look()
    assert list_codes(found) == ["nic_hung"]
    assert "answers with an error" in node.judge(found).reason


def test_a_list_of_interfaces_that_cannot_be_read_is_told(node: Node) -> None:
    name = node.root / ENS8 / "phys_port_name"
    os.mkfifo(name)
    found = node.look(patience=0.5)
    with name.open("w") as let_go:
        let_go.write("p0")
    assert list_codes(found) == ["nic_hung"]
    assert "cannot be listed within 0.5 s" in node.judge(found).reason


def test_three_falls_in_a_day_do_not_make_a_flapping_link(node: Node) -> None:
    judgement = verdict_after(node, {f"{IB3}/counters/link_downed": 3}, hours=24)
    assert judgement.verdict is Verdict.WARN


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


@pytest.mark.parametrize(("seconds", "code"), [(239, "port_starting"), (240, "port_down")])
def test_a_port_may_be_in_training_after_the_boot(node: Node, seconds: int, code: str) -> None:
    node.turn(**DOWN)
    node.hours = 0
    found = node.look(hours=seconds / 3600, boot="another")
    assert list_codes(found) == [code]
    assert node.judge(found).verdict is (Verdict.FAIL if code == "port_down" else Verdict.ERROR)


@pytest.mark.parametrize(
    ("name", "end", "code", "verdict"),
    [
        ("symbol_error", 65535, "counter_saturated", Verdict.PASS),
        ("link_downed", 255, "falls_uncounted", Verdict.WARN),
    ],
)
def test_a_counter_at_its_end_is_reported_and_warned_of_if_falls_go_unseen(
    node: Node, name: str, end: int, code: str, verdict: Verdict
) -> None:
    node.turn(**{f"{IB3}/counters/{name}": end})
    node.look()
    found = node.look()
    assert node.judge(found).verdict is verdict
    saturated = next(f for f in found if isinstance(f, Finding) and f.code == code)
    assert saturated.text.startswith(f"{name} has saturated")
    assert "perfquery -C mlx5_3 -P 1 -R" in saturated.text


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


@pytest.mark.parametrize("adapter", [3, 8])
@pytest.mark.parametrize(("heat", "verdict"), [(70_000, Verdict.PASS), (71_000, Verdict.WARN)])
def test_a_hot_module_is_warned_of(
    tmp_path: Path, adapter: int, heat: int, verdict: Verdict
) -> None:
    node = Node(tmp_path, h100)
    folder = f"sys/bus/pci/devices/{address(adapter)}/hwmon/hwmon4"
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
    assert told(judgement) == (HUNG.verdict, HUNG.cause, HUNG.remedy)
    assert judgement.reason.startswith(f"mlx5_3: {HUNG.says} 1 s")


@pytest.mark.needs("root")
def test_real_interfaces_are_judged_by_what_the_kernel_shows(tmp_path: Path) -> None:
    script = (
        f"mount -t sysfs sysfs /sys && exec {sys.executable} -m tests.checks.live_nic {tmp_path}"
    )
    done = subprocess.run(
        ["unshare", "--net", "--mount", "--propagation", "private", "sh", "-c", script],
        capture_output=True, text=True, timeout=PATIENCE_S, check=False,
        cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert done.stdout.split() == [
        *("first=pass", "again=pass", "down=fail", "back=warn", "work=warn", "flaps=fail"),
        *("slow=fail", "off=warn", "up=pass"),
    ], done.stderr
