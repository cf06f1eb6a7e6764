"""What a run tells of versions: by kind of part, and never what is one node's own."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from hpcverify.model import Fact, Fault, FaultKind, Finding, Inventory, Limit, Part, Verdict
from hpcverify.summary.facts import (
    FACT_NAMES,
    KIND_FACTS,
    MAX_FACTS,
    MAX_NAME_CHARACTERS,
    MAX_SOURCES,
    MAX_VALUE_CHARACTERS,
    collect_facts,
    describe_gpus,
    list_part_facts,
)
from tests.doubles import a_result, a_run


def a_gpu(number: int, **facts: str) -> Part:
    known = {
        "name": "NVIDIA H100 80GB HBM3",
        "serial": f"165{number}",
        "driver": "570.86.15",
        "vbios": "96.00.74.00.01",
        "pci_address": f"0000:{number:02x}:00.0",
    }
    return Part("gpu", f"GPU-{number}", f"GPU {number}", known | facts)


def a_node(*parts: Part) -> Inventory:
    return Inventory(
        parts=(
            Part(
                "system",
                "node",
                "node",
                {"vendor": "Supermicro", "product": "SYS-821GE", "serial": "S1", "bios": "2.1"},
            ),
            Part("cpu", "cpu", "CPU", {"model": "Xeon 8480", "sockets": "2", "cores": "112"}),
            *parts,
        )
    )


def test_like_parts_that_agree_tell_one_value_and_others_how_many_have_which() -> None:
    alike = list_part_facts(a_node(*map(a_gpu, range(8))))
    assert alike["GPU driver"] == "570.86.15"
    assert (alike["GPUs"], alike["GPU VBIOS"]) == ("8", "96.00.74.00.01")

    mixed = list_part_facts(a_node(*map(a_gpu, range(7)), a_gpu(7, vbios="96.00.89.00.01")))
    assert mixed["GPU VBIOS"] == "96.00.74.00.01 (7), 96.00.89.00.01 (1)"


def test_nodes_are_alike_by_machine_cpus_and_gpus() -> None:
    facts = list_part_facts(a_node(a_gpu(0)))

    assert [facts[name] for name in KIND_FACTS] == [
        "Supermicro SYS-821GE",
        "2 x Xeon 8480",
        "NVIDIA H100 80GB HBM3",
    ]


def test_firmware_is_compared_by_the_model_of_the_part() -> None:
    nic = Part("nic", "1", "mlx5_0", {"model": "MT4129", "firmware": "28.39.1002"})
    disk = Part("disk", "2", "nvme0n1", {"model": "PM9A3", "firmware": "GDC5302Q", "serial": "X"})
    facts = list_part_facts(a_node(nic, disk))

    assert facts["firmware of MT4129"] == "28.39.1002"
    assert facts["firmware of PM9A3"] == "GDC5302Q"


def test_a_gpu_without_a_driver_and_a_port_without_hardware_are_not_counted() -> None:
    bare = Part("gpu", "0000:19:00.0", "GPU at 19", {"pci_address": "0000:19:00.0"})
    virtual = Part("nic", "nic-docker0", "docker0")
    facts = list_part_facts(a_node(a_gpu(0), bare, virtual))

    assert facts["GPUs"] == "1"
    assert "network ports" not in facts


def test_nothing_that_is_one_nodes_own_is_compared() -> None:
    own = {"serial", "pci_address", "uuid"}
    assert not own & {name for _, name in FACT_NAMES}
    told = list_part_facts(a_node(*map(a_gpu, range(8)))).values()
    assert not any("S1" in value or "165" in value or "0000:" in value for value in told)


def test_checks_and_software_are_sources_of_their_own() -> None:
    facts = (Fact("GPU InfoROM", "G520", "GPU-0"), Fact("GPU InfoROM", "G520", "GPU-1"))
    run = a_run(
        results=(a_result("gpu_setup", facts=facts), a_result("gemm")),
        versions={"hpcverify": "0.1.0", "torch": "2.7", "kernel": "6.8.0"},
    )

    assert collect_facts(run) == {
        "parts": {"CPU": "test"},
        "software": {"hpcverify": "0.1.0", "hpcverify's torch": "2.7"},
        "gpu_setup": {"GPU InfoROM": "G520"},
    }


def test_what_a_bmc_told_is_kept_apart_from_what_the_node_told() -> None:
    told = a_result("chassis", facts=(Fact("BMC firmware", "1.04"),))
    run = a_run(
        suite="bmc",
        inventory=Inventory(),
        results=(told,),
        versions={"hpcverify": "of the controller"},
    )

    assert collect_facts(run) == {"bmc chassis": {"BMC firmware (bmc)": "1.04"}}


def test_gpus_that_something_may_hide_are_not_counted() -> None:
    hidden = replace(a_node(a_gpu(0)), problems=(Finding("partial_view", "node", "a cgroup"),))

    facts = list_part_facts(hidden)

    assert "GPUs" not in facts
    assert facts["GPU driver"] == "570.86.15"


def test_a_node_that_lies_fills_no_index() -> None:
    many = tuple(Fact(f"{i}" + 999 * "x", 99_999 * "y") for i in range(MAX_FACTS + 9))
    run = a_run(results=tuple(a_result(f"check {i}", facts=many[-2:]) for i in range(99)))
    assert len(collect_facts(run)) == MAX_SOURCES

    (told,) = collect_facts(
        a_run(suite="bmc", inventory=Inventory(), results=(a_result("one", facts=many),))
    ).values()
    assert len(told) == MAX_FACTS
    assert max(map(len, told)) == MAX_NAME_CHARACTERS
    assert max(map(len, told.values())) == MAX_VALUE_CHARACTERS


EIGHT = Limit("gpus", low=8, high=8)


def a_fault(code: str, part_id: str, **fields: object) -> Fault:
    made = Fault(
        kind=FaultKind.FINDING,
        part_id=part_id,
        check="inventory",
        code=code,
        text=code,
        verdict=Verdict.FAIL,
    )
    return replace(made, **fields)


@pytest.mark.parametrize(
    ("faults", "text"),
    [
        ([], "6 x NVIDIA H100 80GB HBM3"),
        ([a_fault("remap.failed", "GPU-3")], "6 x NVIDIA H100 80GB HBM3"),
        (
            [a_fault("gpu_lost", "GPU-2"), a_fault("remap.failed", "GPU-3")],
            "6 x NVIDIA H100 80GB HBM3 expected: 4 healthy, 1 faulty, GPU 2 lost",
        ),
        (
            [
                a_fault("gpu_lost", "node", evidence={"nvml_index": "6"}),
                a_fault("gpus.missing_from_board", "node", value=2.0),
            ],
            "8 x NVIDIA H100 80GB HBM3 expected: 6 healthy, GPU 6 lost, 1 missing",
        ),
        (
            [a_fault("gpu_missing", "GPU-7"), a_fault("gpus", "node", value=6.0, limit=EIGHT)],
            "8 x NVIDIA H100 80GB HBM3 expected: 6 healthy, GPU-7 missing, 1 missing",
        ),
        (
            [a_fault("gpus", "node", value=6.0, limit=EIGHT)],
            "8 x NVIDIA H100 80GB HBM3 expected: 6 healthy, 2 missing",
        ),
    ],
)
def test_gpus_that_are_lost_or_missing_are_counted_among_the_expected(
    faults: list[Fault], text: str
) -> None:
    assert describe_gpus(a_node(*map(a_gpu, range(6))), faults) == text
