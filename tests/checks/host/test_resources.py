"""Cores, NUMA nodes, memory and settings: of trees of nodes, with the fault and without."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcverify.check import Finding, Verdict, find_rule
from hpcverify.model import Inventory, Part
from hpcverify.telemetry.cpu import describe_cpu
from hpcverify.telemetry.sysfs import parse_cpu_list
from hpcverify.testing import find_value, judge_items, list_codes, list_findings
from hpcverify_checks.host import CHECK, demand
from hpcverify_checks.host.needs import Bound, Expectation, HostParams
from tests.checks.host.nodes import CPU, a_node, list_unmet, look
from tests.telemetry.trees import grow


def cores(**facts: int) -> Inventory:
    given = {"sockets": 2, "cores": 64, "threads": 128, "numa_nodes": 2} | facts
    return Inventory(parts=(Part("cpu", "cpu", "CPU", {k: str(v) for k, v in given.items()}),))


@pytest.mark.parametrize(
    ("now", "code", "verdict"),
    [
        ({}, [], Verdict.PASS),
        ({"threads": 64}, [], Verdict.PASS),  # SMT is a setting
        ({"cores": 63}, ["cores_missing"], Verdict.FAIL),
        ({"sockets": 1, "cores": 32, "numa_nodes": 1}, ["cores_missing"], Verdict.FAIL),
        ({"numa_nodes": 1}, ["numa_missing"], Verdict.WARN),
        ({"sockets": 4, "cores": 128}, [], Verdict.PASS),
    ],
)
def test_cores_that_are_gone_since_the_last_run_are_named(
    tmp_path: Path, now: dict[str, int], code: list[str], verdict: Verdict
) -> None:
    found = look(tmp_path, a_node(tmp_path / "r"), inventory=cores(**now), previous=cores())

    assert list_codes(found) == code
    assert judge_items(CHECK, found).verdict is verdict


def test_cores_that_are_gone_are_reported_until_they_are_back_or_accepted(tmp_path: Path) -> None:
    """`inventory` only warns of them, so what is left is the reference of the next run."""
    node, less = a_node(tmp_path / "r"), cores(cores=63)
    found = look(tmp_path, node, inventory=cores())
    for _ in range(2):
        found = look(tmp_path, node, before=found, inventory=less, previous=less)
        assert list_codes(found) == ["cores_missing"]

    back = look(tmp_path, node, before=found, inventory=cores(), previous=less)
    accepted = look(tmp_path, node, before=found, inventory=less)
    after = look(tmp_path, node, before=accepted, inventory=less, previous=less)

    assert list_codes(back) == list_codes(accepted) == list_codes(after) == []


def test_cores_that_are_gone_while_others_are_offline_are_told_once_those_are_back(
    tmp_path: Path,
) -> None:
    node, less = a_node(tmp_path / "r"), cores(cores=63)
    first = look(tmp_path, node, inventory=cores())
    grow(node.root, {f"{CPU}/online": "0-1,3"})
    offline = look(tmp_path, node, before=first, inventory=less, previous=cores())
    grow(node.root, {f"{CPU}/online": "0-3"})

    found = look(tmp_path, node, before=offline, inventory=less, previous=less)

    assert list_codes(offline) == ["cores_offline"]
    assert list_codes(found) == ["cores_missing"]


def test_a_virtual_machine_may_be_resized(tmp_path: Path) -> None:
    node = a_node(tmp_path / "r")
    grow(node.root, {"proc/cpuinfo": "processor : 0\nflags : sse2 hypervisor"})

    found = look(tmp_path, node, inventory=cores(cores=32), previous=cores())

    assert list_codes(found) == []


def test_a_virtual_machine_of_arm64_is_known_by_its_firmware(tmp_path: Path) -> None:
    for names, codes in (
        (("Amazon EC2", "m7g.4xlarge"), []),
        (("Amazon EC2", "m7g.metal"), ["cores_missing"]),
        (("QEMU", "KVM Virtual Machine"), []),
        (("NVIDIA", "Grace CPU P3880"), ["cores_missing"]),
    ):
        node = a_node(tmp_path / "r")
        dmi = "sys/class/dmi/id"
        grow(node.root, {f"{dmi}/sys_vendor": names[0], f"{dmi}/product_name": names[1]})
        found = look(tmp_path, node, inventory=cores(cores=32), previous=cores())
        assert list_codes(found) == codes, names


def test_cores_that_the_kernel_was_told_to_leave_out_are_not_lost(tmp_path: Path) -> None:
    node = a_node(tmp_path / "r")
    grow(node.root, {"proc/cmdline": "ro nr_cpus=32"})

    assert list_codes(look(tmp_path, node, inventory=cores(cores=32), previous=cores())) == []


@pytest.mark.parametrize(
    ("second", "code"), [("2-3", "cores_fewer"), ("2", "cores_missing"), ("", "cores_missing")]
)
def test_as_many_cores_fewer_in_each_socket_are_a_setting(
    tmp_path: Path, second: str, code: str
) -> None:
    """The firmware turns off as many in each; a fault takes those of one."""
    node = a_node(tmp_path / "r")
    for number in (0, 1, *parse_cpu_list(second)):
        place = f"{CPU}/cpu{number}/topology"
        grow(node.root, {f"{place}/physical_package_id": number // 2, f"{place}/core_id": number})
    had, have = cores(cores=6), cores(cores=len(parse_cpu_list(second)) + 2)

    found = look(tmp_path, node, inventory=have, previous=had)

    assert list_codes(found) == [code]


def test_a_core_that_is_offline_is_named_with_its_fix(tmp_path: Path) -> None:
    node = a_node(tmp_path / "r")
    grow(node.root, {f"{CPU}/online": "0-1,3"})

    found = look(tmp_path, node, inventory=cores(cores=63), previous=cores())

    assert list_codes(found) == ["cores_offline"]
    assert "echo 1 > /sys/devices/system/cpu/cpu2/online" in list_findings(found)[0].text


def test_threads_that_are_turned_off_are_not_offline_cores(tmp_path: Path) -> None:
    node = a_node(tmp_path / "r")
    grow(node.root, {f"{CPU}/online": "0-1", f"{CPU}/smt/control": "off"})

    assert list_codes(look(tmp_path, node)) == []

    grow(node.root, {f"{CPU}/present": "0-7", f"{CPU}/online": "0-2"})  # and a core besides
    found = look(tmp_path, node, inventory=cores(cores=63), previous=cores())
    assert list_codes(found) == ["cores_offline"]


def test_a_module_that_is_built_in_is_there(tmp_path: Path) -> None:
    node = a_node(tmp_path / "r")
    need = Expectation(modules=("nfs-acl",))
    missing = look(tmp_path, node, need)
    grow(
        node.root,
        {
            "proc/sys/kernel/osrelease": "6.1",
            "lib/modules/6.1/modules.builtin": "kernel/fs/nfs_common/nfs_acl.ko",
        },
    )

    assert list_codes(missing) == ["module_missing"]
    assert list_codes(look(tmp_path, node, need)) == []


def test_a_dot_in_the_name_of_an_interface_is_written_as_a_slash(tmp_path: Path) -> None:
    node = a_node(tmp_path / "r")
    grow(node.root, {"proc/sys/net/ipv4/conf/eth0.100/rp_filter": 2})
    need = Expectation(sysctls={"net.ipv4.conf.eth0/100.rp_filter": "2"})

    assert list_codes(look(tmp_path, node, need)) == []


HUGE = "sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"


@pytest.mark.parametrize(
    ("need", "says"),
    [
        (Expectation(sysctls={"vm.swappines": "0"}), "is unknown to this kernel: correct its name"),
        (Expectation(sysctls={"vm.swappiness": "!60"}), "is 60, not !60: correct it, and"),
        (Expectation(sysctls={"vm.swappiness": "1"}), "is 60, not 1: sysctl -w vm.swappiness=1,"),
        (Expectation(hugepages={"4kB": 1}), "has no huge pages of 4kB (it has: 2048kB)"),
        (Expectation(hugepages={"2048kB": 5}), "0 huge pages of 2048kB, not 5: echo 5 >"),
    ],
)
def test_the_fix_is_one_that_can_be_done(tmp_path: Path, need: Expectation, says: str) -> None:
    node = a_node(tmp_path / "r")
    grow(node.root, {"proc/sys/vm/swappiness": 60, HUGE: 0})

    (found,) = [item for item in look(tmp_path, node, need) if isinstance(item, Finding)]
    assert says in found.text


def test_huge_pages_of_a_size_that_nobody_needs_need_not_be_there(tmp_path: Path) -> None:
    need = Expectation(hugepages={"4kB": 0})

    assert list_codes(look(tmp_path, a_node(tmp_path / "r"), need)) == []


def test_numa_nodes_with_cores_and_memory_are_counted(tmp_path: Path) -> None:
    has = "sys/devices/system/node/has"
    grow(tmp_path, {f"{has}_cpu": "0-1", f"{has}_memory": "0-1,4-11"})  # as on a GB200

    assert describe_cpu(tmp_path).facts["numa_nodes"] == "2"


def test_memory_is_measured_and_nearly_none_left_warns(tmp_path: Path) -> None:
    node = a_node(tmp_path / "r")
    healthy = look(tmp_path, node)
    grow(node.root, {"proc/meminfo": "MemTotal:  1000000 kB\nMemAvailable: 9000 kB"})
    short = look(tmp_path, node)

    assert find_value(healthy, "memory.total") == pytest.approx(1e6 / 2**20)
    assert judge_items(CHECK, healthy).verdict is Verdict.PASS
    assert judge_items(CHECK, short).verdict is Verdict.WARN


@pytest.mark.parametrize(
    ("bound", "unmet"),
    [
        (Bound(low=64, high=64), []),
        (Bound(low=65), [("cores", "cpu")]),
        (Bound(high=63), [("cores", "cpu")]),
    ],
)
def test_bounds_hold_for_the_node(
    tmp_path: Path, bound: Bound, unmet: list[tuple[str, str]]
) -> None:
    need = Expectation(bounds={"cores": bound})
    found = look(tmp_path, a_node(tmp_path / "r"), need, inventory=cores())

    assert list_unmet(found, need, cores()) == unmet


def test_the_strictest_of_several_expectations_counts() -> None:
    needs = [Expectation(bounds={"cores": Bound(low=low, high=90 - low)}) for low in (8, 16, 12)]
    rules = tuple(demand(HostParams(expect=(*needs, Expectation(nodes="gpu*"))), "n1"))

    hit = find_rule(CHECK.rules, rules, "cores", ("cpu",))
    assert hit is not None
    assert (hit[1].low, hit[1].high) == (16, 74)


def test_a_bound_on_what_cannot_be_measured_is_told(tmp_path: Path) -> None:
    need = Expectation(bounds={"sockets": Bound(low=1)})

    found = look(tmp_path, a_node(tmp_path / "r"), need)
    assert list_unmet(found, need) == [("sockets", "node")]


NVIDIA = "sys/module/nvidia_peermem/refcnt"
POLICY = f"{CPU}/cpufreq/policy0"
GOVERNOR = {f"{POLICY}/scaling_governor": "performance", f"{POLICY}/scaling_max_freq": 3800000}


@pytest.mark.parametrize(
    ("need", "files", "code"),
    [
        (Expectation(modules=("nvidia-peermem",)), {NVIDIA: 0}, "module_missing"),
        (Expectation(kernel_arguments=("iommu=pt",)), {}, "kernel_argument"),
        (Expectation(kernel_arguments=("!nosmt",)), {}, "kernel_argument"),
        (Expectation(sysctls={"vm.swappiness": "1"}), {"proc/sys/vm/swappiness": 1}, "sysctl"),
        (Expectation(hugepages={"2048kB": 512}), {HUGE: 512}, "hugepages"),
        (Expectation(governor="performance"), GOVERNOR, "governor"),
        (Expectation(frequency_mhz=3500), GOVERNOR, "frequency"),
        (Expectation(smt=True), {}, "smt"),
    ],
)
def test_settings_are_held_to_what_the_site_needs(
    tmp_path: Path, need: Expectation, files: dict[str, object], code: str
) -> None:
    node = a_node(tmp_path / "r")
    grow(node.root, files)
    wrong = {
        "proc/cmdline": "root=/dev/sda1 nosmt",
        "proc/sys/vm/swappiness": 60,
        HUGE: 511,
        f"{POLICY}/scaling_governor": "powersave",
        f"{POLICY}/scaling_max_freq": 2000000,
        f"{CPU}/smt/active": 0,
    }

    assert list_codes(look(tmp_path, node, need)) == []
    other = a_node(tmp_path / "other")
    grow(other.root, wrong)
    found = look(tmp_path, other, need)
    assert list_codes(found) == [code]
    assert judge_items(CHECK, found).verdict is Verdict.ERROR
