"""What is missing, hidden or changed; and nothing on a node that nobody touched."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest

from hpcverify.check import Params
from hpcverify.model import (
    Cause,
    CheckItem,
    Device,
    Fact,
    Finding,
    Inventory,
    Measurement,
    Part,
    Verdict,
)
from hpcverify.summary.facts import FACT_NAMES
from hpcverify.telemetry.probe import probe as probe_machine
from hpcverify.telemetry.settings import read_settings
from hpcverify.testing import judge_by, judge_items, list_findings, make_context
from hpcverify_checks.inventory import CHECK, measure
from hpcverify_checks.inventory import compare as list_differences
from tests.checks.nic_trees import address, gb200, roce
from tests.checks.nic_trees import device as plug_in
from tests.nvml_lab.nvmllab import ADDRESSES, Lab
from tests.telemetry.nvml.test_survey import probe
from tests.telemetry.trees import grow, link

GPUS = tuple(
    Part(
        "gpu",
        f"GPU-{i}",
        f"GPU {i} (…{i})",
        {"pci_address": address, "driver": "565", "serial": f"165{i}"},
    )
    for i, address in enumerate(ADDRESSES)
)
NODE = Inventory(
    parts=(
        Part("system", "node", "node", {"kernel": "6.8.0", "vendor": "S"}),
        Part("cpu", "cpu", "CPU", {"threads": "64"}),
        Part("memory", "memory", "memory", {"total": "1024 GiB"}),
        *GPUS,
        Part("disk", "eui.1", "nvme0n1", {"firmware": "A"}),
        Part("disk", "eui.2", "nvme1n1", {"firmware": "A"}),
        Part("nic", "aa:bb", "ens1"),
        Part("edac", "mc0/dimm0", "A1"),
    ),
    devices=(Device("cpu", "cpu", "CPU"),),
)


def without(node: Inventory, *ids: str) -> Inventory:
    parts = tuple(p for p in node.parts if p.id not in ids)
    return msgspec.structs.replace(node, parts=parts)


def plus(node: Inventory, *parts: Part) -> Inventory:
    return msgspec.structs.replace(node, parts=(*node.parts, *parts))


def changed(node: Inventory, part_id: str, **facts: str) -> Inventory:
    parts = tuple(
        msgspec.structs.replace(p, facts=p.facts | facts) if p.id == part_id else p
        for p in node.parts
    )
    return msgspec.structs.replace(node, parts=parts)


def with_problem(node: Inventory, code: str, part_id: str = "node") -> Inventory:
    return msgspec.structs.replace(node, problems=(Finding(code, part_id, code),))


def compare(
    tmp_path: Path, now: Inventory, before: Inventory | None
) -> tuple[list[CheckItem], Cause]:
    ctx = make_context(tmp_path, inventory=now, previous=before)
    found = list(measure(ctx, Params(), tmp_path))  # as on hardware, whatever this is
    return found, judge_by(findings(found), (), CHECK.finding_rules).cause


def findings(found: list[CheckItem]) -> list[Finding]:
    return [item for item in found if isinstance(item, Finding)]


def verdict(found: list[CheckItem]) -> Verdict:
    return judge_items(CHECK, found).verdict


def test_a_node_that_nobody_touched_is_unchanged(tmp_path: Path) -> None:
    found, cause = compare(tmp_path, NODE, NODE)
    assert (list_findings(found), cause, verdict(found)) == ([], Cause.NONE, Verdict.PASS)


def test_a_first_run_says_that_it_compared_with_nothing(tmp_path: Path) -> None:
    found, _ = compare(tmp_path, NODE, None)
    assert "no earlier run" in str(found[-1])
    assert list_findings(found) == []


def test_the_parts_are_counted(tmp_path: Path) -> None:
    bare = Part("gpu", ADDRESSES[0], "GPU", {"pci_address": ADDRESSES[0]})
    found, _ = compare(tmp_path, plus(without(NODE, "GPU-0"), bare), None)
    counts = {m.name: m.value for m in found if isinstance(m, Measurement)}
    assert counts == {"gpus": 7, "disks": 2, "nics": 1, "dimms": 0, "cpus": 64, "memory": 1024}


@pytest.mark.parametrize(
    ("gone", "code", "expected"),
    [
        ("GPU-3", "gpu_missing", Verdict.FAIL),
        ("eui.2", "disk_missing", Verdict.FAIL),
        ("aa:bb", "nic_missing", Verdict.FAIL),
        ("mc0/dimm0", "part_missing", Verdict.WARN),
    ],
)
def test_a_part_that_is_gone_is_named(
    tmp_path: Path, gone: str, code: str, expected: Verdict
) -> None:
    found, cause = compare(tmp_path, without(NODE, gone), NODE)
    (finding,) = list_findings(found)
    assert (finding.code, finding.part_id, cause) == (code, gone, Cause.NONE)
    assert verdict(found) is expected


def test_a_gpu_that_is_gone_is_told_by_label_and_serial(tmp_path: Path) -> None:
    known = {"driver": "565", "name": "NVIDIA H100", "serial": "165"}
    gpu = Part("gpu", "GPU-8c6e", "GPU 6 (…cf03)", known)
    found, _ = compare(tmp_path, NODE, plus(NODE, gpu))
    (finding,) = list_findings(found)

    expected = "gpu NVIDIA H100 (serial 165) is missing since the last run"
    assert (finding.text, finding.part_id) == (expected, gpu.id)
    assert finding.evidence == {"was": gpu.label} | known


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        ("partial_view", Cause.PARTIAL_VIEW),
        ("driver_mismatch", Cause.MISCONFIGURED),
        ("driver_not_loaded", Cause.MISCONFIGURED),
        ("probe_failed", Cause.CRASHED),
        ("gpu_hung", Cause.HUNG),
        ("gpu_unreadable", Cause.MISCONFIGURED),
    ],
)
def test_nothing_is_missing_while_we_cannot_see(tmp_path: Path, code: str, cause: Cause) -> None:
    gpus = [gpu.id for gpu in GPUS]
    now = with_problem(without(NODE, *gpus), code)
    found, why = compare(tmp_path, now, NODE)
    assert [f.code for f in list_findings(found)] == [code]
    assert (why, verdict(found)) == (cause, Verdict.ERROR)


def test_gpus_of_which_even_the_bus_knows_nothing_are_not_judged_without_nvml(
    tmp_path: Path,
) -> None:
    found, cause = compare(tmp_path, without(NODE, *(g.id for g in GPUS)), NODE)
    assert {f.code for f in list_findings(found)} == {"driver_not_loaded"}
    assert cause is Cause.MISCONFIGURED


def test_a_lost_gpu_is_a_fault_even_if_we_do_not_see_all(tmp_path: Path) -> None:
    lost = Finding("gpu_lost", ADDRESSES[2], "lost")
    hidden = Finding("partial_view", "node", "hidden")
    now = msgspec.structs.replace(NODE, problems=(hidden, lost))
    found, cause = compare(tmp_path, now, NODE)
    assert (cause, verdict(found)) == (Cause.NONE, Verdict.FAIL)


def test_a_gpu_known_by_its_address_only_is_told_once_and_by_its_serial(tmp_path: Path) -> None:
    address = ADDRESSES[2]
    bare = Part("gpu", address, f"GPU at {address}", {"pci_address": address})
    now = with_problem(plus(without(NODE, "GPU-2"), bare), "gpu_lost", address)
    (finding,) = list_findings(compare(tmp_path, now, NODE)[0])
    assert finding.code == "gpu_lost"
    assert finding.evidence == {"was": "GPU 2 (…2)", "uuid": "GPU-2", "serial": "1652"}


def test_a_part_in_place_of_another_was_replaced(tmp_path: Path) -> None:
    now = plus(without(NODE, "eui.2"), Part("disk", "eui.9", "nvme1n1"))
    found, _ = compare(tmp_path, now, NODE)
    (finding,) = list_findings(found)
    assert (finding.code, finding.part_id) == ("part_replaced", "eui.9")
    assert verdict(found) is Verdict.WARN


def test_a_part_that_is_new_passes(tmp_path: Path) -> None:
    found, _ = compare(tmp_path, plus(NODE, Part("nic", "cc:dd", "ens2")), NODE)
    assert [f.code for f in list_findings(found)] == ["part_added"]
    assert verdict(found) is Verdict.PASS


def test_an_upgrade_passes_and_is_told_once_for_all_parts(tmp_path: Path) -> None:
    now = NODE
    for gpu in GPUS:
        now = changed(now, gpu.id, driver="570")
    now = changed(now, "eui.1", firmware="B")
    found, _ = compare(tmp_path, now, NODE)
    first, second = list_findings(found)
    assert (first.code, first.part_id) == ("software_changed", "eui.1")
    assert (second.part_id, second.evidence) == ("node", {"from": "565", "to": "570"})
    assert verdict(found) is Verdict.PASS


def test_another_power_limit_passes_and_is_told_once_for_all_parts(tmp_path: Path) -> None:
    before, now = NODE, NODE
    for gpu in GPUS:
        before = changed(before, gpu.id, power_limit="700 of 700 W")
        now = changed(now, gpu.id, power_limit="500 of 700 W")
    found, _ = compare(tmp_path, now, before)
    (finding,) = list_findings(found)
    assert (finding.code, finding.part_id) == ("setting_changed", "node")
    assert finding.evidence == {"from": "700 of 700 W", "to": "500 of 700 W"}
    assert verdict(found) is Verdict.PASS


@pytest.mark.parametrize(
    ("ecc", "verdict_"), [(("off", "on"), Verdict.PASS), (("on", "on"), Verdict.WARN)]
)
def test_the_memory_that_ecc_takes_is_a_setting(
    tmp_path: Path, ecc: tuple[str, str], verdict_: Verdict
) -> None:
    """Compare the total with and without ECC, which nvidia-smi's help says it depends on."""
    gpu = GPUS[0].id
    before = changed(NODE, gpu, memory="48 GiB", ecc=ecc[0])
    found, _ = compare(tmp_path, changed(NODE, gpu, memory="45 GiB", ecc=ecc[1]), before)
    assert verdict(found) is verdict_


def test_a_part_that_is_not_what_it_was_warns(tmp_path: Path) -> None:
    found, _ = compare(tmp_path, changed(NODE, "cpu", threads="63"), NODE)
    (finding,) = list_findings(found)
    assert finding.text == "cpu threads changed from 64 to 63 (CPU)"
    assert verdict(found) is Verdict.WARN


@pytest.mark.parametrize(
    "facts",
    [
        {"threads": "128"},
        {"numa_nodes": "8"},
        {"max_mhz": "3700"},
        {"dtypes": "bf16 fp32"},
        {"threads": "128", "numa_nodes": "8", "microcode": "0x2b000620"},
    ],
)
def test_what_a_bios_or_a_kernel_decides_of_the_cpu_passes_and_is_told(
    tmp_path: Path, facts: dict[str, str]
) -> None:
    known = {"cores": "64", "numa_nodes": "2", "max_mhz": "3800", "dtypes": "fp32"}
    before = changed(NODE, "cpu", microcode="0x2b000590", **known)
    found, _ = compare(tmp_path, changed(before, "cpu", **facts), before)

    assert len(list_findings(found)) == len(facts)
    assert {f.code for f in list_findings(found)} <= {"setting_changed", "software_changed"}
    assert verdict(found) is Verdict.PASS


@pytest.mark.parametrize("facts", [{"threads": "96"}, {"threads": "128", "cores": "128"}])
def test_a_cpu_with_other_cores_or_some_threads_less_warns(
    tmp_path: Path, facts: dict[str, str]
) -> None:
    before = changed(NODE, "cpu", cores="64")
    found, _ = compare(tmp_path, changed(before, "cpu", **facts), before)

    assert verdict(found) is Verdict.WARN


@pytest.mark.parametrize(
    ("driver", "memory", "expected"),
    [
        ("570", "79 GiB", Verdict.PASS),
        ("565", "79 GiB", Verdict.WARN),
        ("570", "40 GiB", Verdict.WARN),
    ],
)
def test_a_driver_that_counts_memory_differently_takes_none_away(
    tmp_path: Path, driver: str, memory: str, expected: Verdict
) -> None:
    before = changed(NODE, "GPU-1", memory="80 GiB")
    found, _ = compare(tmp_path, changed(before, "GPU-1", driver=driver, memory=memory), before)

    assert verdict(found) is expected


@pytest.mark.parametrize("kind_and_fact", sorted(FACT_NAMES))
def test_no_version_or_setting_that_changes_fails_a_node(
    tmp_path: Path, kind_and_fact: tuple[str, str]
) -> None:
    kind, fact = kind_and_fact

    def tell(value: str) -> Inventory:
        return Inventory(
            parts=tuple(
                msgspec.structs.replace(p, facts=p.facts | {fact: value}) if p.kind == kind else p
                for p in NODE.parts
            )
        )

    # Less memory is no setting; more of it is.
    before, after = ("512 GiB", "1024 GiB") if fact in ("total", "memory") else ("64", "128")
    found, _ = compare(tmp_path, tell(after), tell(before))

    assert verdict(found) in (Verdict.PASS, Verdict.WARN)


def test_the_settings_of_the_node_are_told_as_facts(tmp_path: Path) -> None:
    found = CHECK.measure(make_context(tmp_path, inventory=NODE), Params())
    told = {item.name: item.value for item in found if isinstance(item, Fact)}

    assert told == read_settings()


@pytest.mark.parametrize(
    ("total", "codes"), [("992 GiB", ["memory_shrunk"]), ("1023 GiB", []), ("2048 GiB", [])]
)
def test_memory_that_a_module_was_lost_of_is_a_fault(
    tmp_path: Path, total: str, codes: list[str]
) -> None:
    found, _ = compare(tmp_path, changed(NODE, "memory", total=total), NODE)
    assert [f.code for f in list_findings(found)] == codes


def on(facts: dict[str, str], folder: str = "/scratch") -> Inventory:
    return plus(NODE, Part("mount", f"mount-{folder}", folder, facts))


MOUNTED = {"mount": "/scratch", "type": "ext4", "disk": "eui.2"}
BELOW = {"mount": "/", "type": "ext4", "disk": "eui.1"}
BESIDE = {"mount": "/", "type": "ext4", "disk": "eui.2", "volume": "2"}


@pytest.mark.parametrize(
    "below", [BELOW, BESIDE, {"mount": "/", "type": "overlay", "source": "overlay"}]
)
def test_a_scratch_that_is_not_mounted_any_more_does_not_pass(
    tmp_path: Path, below: dict[str, str]
) -> None:
    found, _ = compare(tmp_path, on(below), on(MOUNTED))
    (finding,) = list_findings(found)
    judgement = judge_items(CHECK, found)

    assert finding.code == "mount_missing"
    assert (judgement.verdict, judgement.cause) == (Verdict.ERROR, Cause.MISCONFIGURED)
    assert "/scratch is now on / (" in judgement.reason
    assert "before /scratch (ext4 of eui.2): mount it again" in judgement.reason


@pytest.mark.parametrize(
    "now",
    [
        {**MOUNTED, "type": "xfs"},
        {**MOUNTED, "disk": "eui.3"},
        {"mount": "/scratch", "type": "nfs4", "source": "server:/export"},
    ],
)
def test_another_file_system_at_the_same_place_is_told(tmp_path: Path, now: dict[str, str]) -> None:
    found, _ = compare(tmp_path, on(now), on(MOUNTED))

    assert [f.code for f in list_findings(found)] == ["mount_changed"]
    assert verdict(found) is Verdict.WARN


@pytest.mark.parametrize(
    ("now", "before"),
    [
        (on(MOUNTED), on(MOUNTED)),
        (on({**MOUNTED, "mount": "/mnt/scratch"}), on(MOUNTED)),
        (on({**MOUNTED, "mount": "/"}), on(MOUNTED)),
        (on(BELOW, "/local"), on(MOUNTED)),
        (on(MOUNTED), NODE),
        (NODE, on(MOUNTED)),
    ],
    ids=["same", "moved", "bound", "another directory", "first", "not looked for"],
)
def test_the_same_file_system_or_none_to_compare_with_is_no_change(
    tmp_path: Path, now: Inventory, before: Inventory
) -> None:
    found, _ = compare(tmp_path, now, before)

    assert list_findings(found) == []


def test_a_file_system_that_is_mounted_where_none_was_is_told(tmp_path: Path) -> None:
    found, _ = compare(tmp_path, on(MOUNTED), on(BELOW))

    assert [f.code for f in list_findings(found)] == ["mount_changed"]


def test_every_kind_of_part_that_is_missing_has_a_ruling() -> None:
    kinds = ("gpu", "disk", "nic", "dimm")
    assert {f"{kind}_missing" for kind in kinds} <= CHECK.finding_rules.keys()


def test_a_healthy_board_is_unchanged_however_often_it_is_probed(tmp_path: Path, lab: Lab) -> None:
    lab.load("healthy-8xh100")
    before = probe(lab)
    for _ in range(5):
        found, cause = compare(tmp_path, probe(lab), before)
        assert (list_findings(found), cause) == ([], Cause.NONE)


def test_the_board_that_lost_two_gpus_fails_by_name(tmp_path: Path, lab: Lab) -> None:
    lab.write("node_id = lost-01")
    before = probe(lab)
    lab.load("lost-gpu", "freeze_t = 5")
    found, cause = compare(tmp_path, probe(lab), before)
    expected = {(f.code, f.evidence.get("uuid")) for f in list_findings(found)}
    gpus = before.of_kind("gpu")
    assert expected == {("gpu_lost", gpus[2].id), ("gpu_missing", gpus[6].id)}
    assert (cause, verdict(found)) == (Cause.NONE, Verdict.FAIL)


def test_a_driver_at_odds_with_its_library_is_no_fault_of_the_hardware(
    tmp_path: Path, lab: Lab
) -> None:
    before = probe(lab)
    lab.load("driver-mismatch")
    found, cause = compare(tmp_path, probe(lab), before)
    assert [f.code for f in list_findings(found)] == ["driver_mismatch"]
    assert (cause, verdict(found)) == (Cause.MISCONFIGURED, Verdict.ERROR)


@pytest.mark.parametrize(("name", "expected"), [("NVIDIA H100 80GB HBM3", 0), ("NVIDIA X", 1)])
def test_gpus_that_no_data_sheet_describes_are_named_once_in_the_reason_of_the_pass(
    tmp_path: Path, name: str, expected: int
) -> None:
    facts = {"name": name, "compute_capability": "9.0", "memory": "80 GiB"}
    node = Inventory(parts=tuple(Part("gpu", f"GPU-{i}", f"GPU {i}", facts) for i in range(8)))
    found, _ = compare(tmp_path, node, None)

    judged = judge_items(CHECK, found, node)
    assert judged.verdict is Verdict.PASS
    assert judged.reason.count("no reference for this GPU") == expected
    assert judged.reason.count("NVIDIA X (PCI device id unknown) is not in the table") == expected


def test_an_adapter_that_left_the_bus_is_missed(tmp_path: Path) -> None:
    """The files of the kernel go with the device: nothing else of it is left to read."""
    root = gb200(tmp_path / "root")
    before = probe_machine(root)
    assert list_findings(compare(tmp_path, probe_machine(root), before)[0]) == []
    for folder in ("sys/bus/pci/devices", "sys/class/infiniband"):
        for entry in (root / folder).iterdir():
            if entry.name in (address(3), "ibp3s0"):
                shutil.rmtree(entry) if not entry.is_symlink() else entry.unlink()
    gone = next(part for part in before.of_kind("nic") if part.label == "ibp3s0")

    found, _ = compare(tmp_path, probe_machine(root), before)

    (finding,) = list_findings(found)
    assert (finding.code, finding.part_id) == ("nic_missing", gone.id)
    assert verdict(found) is Verdict.FAIL  # and so it is not a reference for the next run


def take_away(root: Path, folder: str, *names: str) -> list[Finding]:
    before = probe_machine(root)
    for name in names:
        shutil.rmtree(root / folder / name)
    return list_differences(probe_machine(root), before, root)


def test_adapters_on_the_bus_whose_driver_is_not_loaded_are_not_accused(tmp_path: Path) -> None:
    names = [f"ibp{index}s0" for index in range(4)]
    found = take_away(gb200(tmp_path), "sys/class/infiniband", *names, "mlx5_4")
    assert [f.code for f in found] == ["nic_without_driver"] * 4 + ["nic_hidden"]
    judgement = judge_by(found, (), CHECK.finding_rules)
    assert (judgement.verdict, judgement.cause) == (Verdict.ERROR, Cause.MISCONFIGURED)


def test_one_adapter_on_the_bus_that_its_driver_does_not_start_is_missing(tmp_path: Path) -> None:
    (finding,) = take_away(gb200(tmp_path), "sys/class/infiniband", "ibp2s0")
    assert finding.code == "nic_missing"


def test_an_interface_that_went_into_a_container_is_no_lost_adapter(tmp_path: Path) -> None:
    (finding,) = take_away(roce(tmp_path), "sys/class/net", "ens3")
    assert finding.code == "nic_hidden"
    assert "is here as mlx5_3" in finding.text
    assert judge_by([finding], (), CHECK.finding_rules).verdict is Verdict.WARN


@pytest.mark.parametrize(
    ("gone", "added", "codes"),
    [
        (
            Part("nic", "aa", "ens1", {"pci_address": address(0)}),
            Part("nic", "nic-docker0", "docker0"),
            ["nic_missing", "part_added"],
        ),
        (
            Part("disk", "eui.1", "nvme0n1", {"pci_address": address(0)}),
            Part("disk", "wwn", "sdb", {"network": "iSCSI"}),
            ["disk_missing", "part_added"],
        ),
        (
            Part("disk", "wwn", "sdb", {"network": "iSCSI"}),
            Part("disk", "eui.1", "nvme0n1"),
            ["part_detached", "part_added"],
        ),
        (
            Part("nic", "aa", "ens1", {"pci_address": address(0)}),
            Part("nic", "bb", "ens2", {"pci_address": address(1)}),
            ["part_replaced"],
        ),
    ],
)
def test_a_lost_part_is_replaced_by_one_of_its_family_only(
    tmp_path: Path, gone: Part, added: Part, codes: list[str]
) -> None:
    before, now = Inventory(parts=(gone,)), Inventory(parts=(added,))
    assert [f.code for f in list_differences(now, before, tmp_path)] == codes


def make_virtual(root: Path) -> Path:
    return grow(root, {"proc/cpuinfo": "processor : 0\nflags : sse2 hypervisor"})


def bind(root: Path, device: str, driver: str | None) -> None:
    (root / device / "driver").unlink()
    if driver:
        link(root, f"{device}/driver", f"sys/bus/pci/drivers/{driver}")


def judge_codes(found: list[Finding]) -> tuple[list[str], Verdict]:
    return [f.code for f in found], judge_by(found, (), CHECK.finding_rules).verdict


@pytest.mark.parametrize("folder", ["net", "virtio2/net", "infiniband"])
def test_a_port_in_another_network_namespace_is_not_lost(tmp_path: Path, folder: str) -> None:
    """Its folder stays below its device, and shows nothing of other namespaces."""
    port = plug_in(tmp_path, 0)
    before = Inventory(parts=(Part("nic", "aa", "ens1", {"pci_address": address(0)}),))
    assert judge_codes(list_differences(Inventory(), before, tmp_path)) == (
        ["nic_missing"],
        Verdict.FAIL,  # its driver runs, and gave it no interface
    )
    (tmp_path / port / folder).mkdir(parents=True)
    found = list_differences(Inventory(), before, tmp_path)
    assert judge_codes(found) == (["nic_hidden"], Verdict.WARN)
    assert "namespace" in found[0].text
    (tmp_path / port / folder / "ens1").mkdir()  # its name is here: it is not elsewhere
    assert judge_codes(list_differences(Inventory(), before, tmp_path))[1] is Verdict.FAIL


@pytest.mark.parametrize("kind", ["gpu", "nic", "disk"])
@pytest.mark.parametrize(
    ("driver", "override", "is_lent"),
    [
        ("vfio-pci", None, True),
        ("nvgrace_gpu_vfio_pci", None, True),
        ("uio_pci_generic", None, True),
        (None, "vfio-pci", True),
        (None, "(null)", False),
        ("mlx5_core", "vfio-pci", False),
    ],
)
def test_a_device_that_was_handed_on_is_not_lost(
    tmp_path: Path, kind: str, driver: str | None, override: str | None, *, is_lent: bool
) -> None:
    device = plug_in(tmp_path, 0)
    bind(tmp_path, device, driver)
    if override:
        grow(tmp_path, {f"{device}/driver_override": override})
    known = {"pci_address": address(0), "driver": "565"}
    stays = Part(kind, "stays", "the other", {"driver": "565"})
    before = Inventory(parts=(stays, Part(kind, "one", "nvme0n1", known)))
    codes, verdict = judge_codes(list_differences(Inventory(parts=(stays,)), before, tmp_path))
    assert (codes == [f"{kind}_hidden"]) is is_lent
    assert (verdict is Verdict.WARN) is is_lent


def test_a_port_that_no_driver_is_bound_to_is_not_judged(tmp_path: Path) -> None:
    """It was unbound by hand, or its driver could not start it: only the kernel log tells."""
    bind(tmp_path, plug_in(tmp_path, 0), None)
    before = Inventory(parts=(Part("nic", "aa", "ens1", {"pci_address": address(0)}),))
    found = list_differences(Inventory(), before, tmp_path)
    assert judge_codes(found) == (["nic_without_driver"], Verdict.ERROR)


def test_a_disk_of_another_machine_that_was_logged_out_is_not_lost(tmp_path: Path) -> None:
    for facts, expected in (
        ({"network": "iSCSI"}, (["part_detached"], Verdict.WARN)),
        ({}, (["disk_missing"], Verdict.FAIL)),
    ):
        before = Inventory(parts=(Part("disk", "wwn", "sdb", facts),))
        assert judge_codes(list_differences(Inventory(), before, tmp_path)) == expected


@pytest.mark.parametrize(
    ("kind", "label"), [("disk", "vda"), ("disk", "nvme1n1"), ("nic", "eth1"), ("nic", "ens1")]
)
def test_what_a_hypervisor_detached_is_not_lost(tmp_path: Path, kind: str, label: str) -> None:
    before = Inventory(parts=(Part(kind, "one", label, {"pci_address": address(0)}),))
    assert judge_codes(list_differences(Inventory(), before, tmp_path))[1] is Verdict.FAIL
    found = list_differences(Inventory(), before, make_virtual(tmp_path))
    assert judge_codes(found) == (["part_detached"], Verdict.WARN)


@pytest.mark.parametrize(("driver", "is_made_up"), [("ena", True), ("mlx5_core", False)])
def test_an_adapter_that_a_hypervisor_made_up_is_not_lost(
    tmp_path: Path, driver: str, *, is_made_up: bool
) -> None:
    """Also on a machine of a cloud that is no virtual one."""
    facts = {"pci_address": address(0), "driver": driver}
    before = Inventory(parts=(Part("nic", "aa", "ens6", facts),))
    code = "part_detached" if is_made_up else "nic_missing"
    assert [f.code for f in list_differences(Inventory(), before, tmp_path)] == [code]


def test_new_numbers_of_the_firmware_for_a_dimm_are_no_change(tmp_path: Path) -> None:
    """SMBIOS 3.6, section 6.1.2: a handle may change with the configuration of the machine."""
    dimm = Part("dimm", "80CE01", "DIMM_A1", {"handle": "0x1100", "bank": "BANK 0"})
    before = plus(NODE, dimm)
    found, _ = compare(tmp_path, changed(before, "80CE01", handle="0x0041", bank="0"), before)
    assert list_findings(found) == []


def test_a_drive_whose_function_is_on_the_bus_of_a_virtual_machine_is_lost(tmp_path: Path) -> None:
    plug_in(make_virtual(tmp_path), 0, driver="nvme")
    before = Inventory(parts=(Part("disk", "one", "nvme1n1", {"pci_address": address(0)}),))
    found = list_differences(Inventory(), before, tmp_path)
    assert judge_codes(found) == (["disk_missing"], Verdict.FAIL)


def with_memory(total: str, beside_cores: str | None = None) -> Inventory:
    facts = {"total": total} | ({"beside_cores": beside_cores} if beside_cores else {})
    return Inventory(parts=(Part("memory", "memory", "memory", facts),))


@pytest.mark.parametrize(
    ("now", "before", "files", "code"),
    [
        (with_memory("48 GiB"), with_memory("64 GiB"), {}, "memory_shrunk"),
        (with_memory("14 GiB"), with_memory("16 GiB"), {}, "memory_shrunk"),
        (
            with_memory("48 GiB"),
            with_memory("64 GiB"),
            {"proc/cpuinfo": "processor : 0\nflags : hypervisor"},
            "memory_resized",
        ),
        (
            with_memory("48 GiB"),
            with_memory("64 GiB"),
            {"proc/ppc64/lparcfg": "shared_processor_mode=1"},
            "memory_resized",
        ),
        (
            with_memory("48 GiB"),
            with_memory("64 GiB"),
            {"proc/cmdline": "ro mem=48G"},
            "memory_resized",
        ),
        (
            with_memory("48 GiB"),
            with_memory("64 GiB"),
            {"proc/cmdline": "ro memmap=16G!4G"},
            "memory_resized",
        ),
        (
            with_memory("48 GiB"),
            with_memory("64 GiB"),
            {"proc/cmdline": "ro maxcpus=8"},
            "memory_shrunk",
        ),
        # A driver that keeps the memory of Grace Hopper's GPU to itself.
        (with_memory("480 GiB"), with_memory("576 GiB", "480 GiB"), {}, "memory_resized"),
        (with_memory("448 GiB"), with_memory("576 GiB", "480 GiB"), {}, "memory_shrunk"),
        (with_memory("544 GiB", "448 GiB"), with_memory("576 GiB", "480 GiB"), {}, "memory_shrunk"),
    ],
)
def test_memory_that_software_took_away_is_not_lost(
    tmp_path: Path, now: Inventory, before: Inventory, files: dict[str, object], code: str
) -> None:
    found = list_differences(now, before, grow(tmp_path, files))
    assert [f.code for f in found] == [code]
    fails = judge_by(found, (), CHECK.finding_rules).verdict is Verdict.FAIL
    assert fails is (code == "memory_shrunk")


def test_a_total_that_was_rounded_otherwise_is_not_less(tmp_path: Path) -> None:
    """As where a kernel with crashkernel= counts, or a container that sees no blocks."""
    assert list_differences(with_memory("15 GiB"), with_memory("16 GiB"), tmp_path) == []


def test_a_port_whose_id_was_its_place_on_the_bus_is_the_same_port(tmp_path: Path) -> None:
    """As when somebody sets another MAC, and the driver does not tell the burnt-in one."""
    place = {"pci_address": address(0)}
    by_mac = Inventory(parts=(Part("nic", "b8:3f", "ens1", place),))
    by_place = Inventory(parts=(Part("nic", address(0), "ens1", place),))
    other = Inventory(parts=(Part("nic", "b8:40", "ens1", place),))
    assert list_differences(by_place, by_mac, tmp_path) == []
    assert list_differences(by_mac, by_place, tmp_path) == []
    assert [f.code for f in list_differences(other, by_mac, tmp_path)] == ["part_replaced"]
