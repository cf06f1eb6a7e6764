"""
GPUs of another vendor than NVIDIA: those that something answers for, and those without.

The seam is `GpuSource`. Whoever answers through it is judged as NVML is, and nothing that
only NVIDIA has accuses a part of others.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from msgspec.structs import replace

from hpcverify.check import Check, Context, Params, Sample, Skip, Unable, Watch
from hpcverify.model import (
    CarryOver,
    Cause,
    CheckItem,
    Coverage,
    Finding,
    Inventory,
    Remedy,
    Verdict,
)
from hpcverify.plan.catalog import list_check_names, load_check
from hpcverify.telemetry import make_readers, vendors
from hpcverify.telemetry.probe import probe
from hpcverify.testing import judge_by, judge_items, list_codes, make_context
from hpcverify_checks import (
    allreduce,
    cpu_units,
    ecc,
    gemm,
    host_memory,
    p2p,
    pcie_bandwidth,
    sdc,
    second_opinion,
    training,
)
from hpcverify_checks.inventory import NO_REFERENCE_CODE
from hpcverify_checks.node.gpu_source import open_gpu_source
from hpcverify_checks.storage.params import StorageParams
from hpcverify_checks.training.shape import ModelShape
from tests.checks import invented
from tests.checks.invented import HEALTHY_RECOVERY, HEALTHY_SETUP, InventedSource, make_node
from tests.telemetry.trees import amd_gpu, edac

NAMES = tuple(sorted(list_check_names()))
ASKING = ("ecc", "gpu_setup", "nvlink", "pcie", "recovery")
"""The checks that ask a `GpuSource`."""
NVIDIA_WORDS = re.compile(r"nvidia|nvml|\bR5\d\d\b|\bcuda", re.IGNORECASE)
TINY = ModelShape(hidden=8, layers=1, heads=2, sequence=4, batch=2, vocabulary=16)
QUICK: Mapping[str, Params] = {
    "allreduce": allreduce.AllreduceParams(sizes=(1024,), seconds=0.1),
    "cpu_units": cpu_units.CpuUnitsParams(seconds=0.5),
    "gemm": gemm.GemmParams(size=64, burst_seconds=0.01, seconds=0.01, core_seconds=0.0),
    "host_memory": host_memory.HostMemoryParams(seconds=0.3, pause=0.0),
    "sdc": sdc.SdcParams(seconds=0.1, size=128, depth=128),
    "second_opinion": second_opinion.SecondOpinionParams(seconds=second_opinion.LEAST_SECONDS),
    "storage": StorageParams(
        size_mib=1, checkpoint_mib=1, repeats=2, seconds=0.1, streams=1, files=1
    ),
    "training": training.TrainingParams(seconds=0.1, steps=2, shape=TINY),
}
"""Parameters with which an active check is soon over."""
HOST = torch.device("cpu")


def measure_pairs(ctx: Context, _params: Params) -> Iterator[CheckItem]:
    """Copy between the GPUs, which the CPU's memory stands in for."""
    gpus = ctx.inventory.devices[1:]
    rig = p2p.Rig((HOST,) * len(gpus), gpus, lambda _device, _peer: True, ctx.seed)
    params = p2p.P2pParams(size=4096, verified=4096, seconds=0.001)
    yield from p2p.measure_pairs(rig, ctx, params)


def measure_route(ctx: Context, _params: Params) -> Iterator[CheckItem]:
    """Copy to a GPU and back, which the CPU's memory stands in for."""
    gpu = ctx.inventory.devices[1]
    params = pcie_bandwidth.PcieBandwidthParams(
        size=4096, seconds=0.01, warm_up_seconds=0.0, rounds=1
    )
    route = pcie_bandwidth.Route(HOST, lambda: None, frozenset())
    yield from pcie_bandwidth.measure_route(route, replace(ctx, device=gpu), params)


ON_HOST: Mapping[str, Callable[[Context, Any], Iterator[CheckItem]]] = {
    "p2p": measure_pairs,
    "pcie_bandwidth": measure_route,
}
"""Checks that need a GPU, with the CPU instead."""


class Outcome(NamedTuple):
    """How a check ended: what it found, or why it could not."""

    found: tuple[CheckItem, ...] = ()
    stopped: Skip | Unable | None = None

    def list_texts(self) -> list[str]:
        """List all that it says to a person."""
        said = [item.text for item in self.found if isinstance(item, Finding | Coverage)]
        return [*said, *([str(self.stopped)] if self.stopped else ())]


def run(name: str, ctx: Context, source: InventedSource) -> Outcome:
    check, found = load_check(name), list[CheckItem]()
    asked = ({invented.VENDOR: source}.get,) if name in ASKING else ()
    try:
        measure = ON_HOST.get(name, check.measure)
        for item in measure(ctx, QUICK.get(name, check.params()), *asked):
            found.append(item)
    except (Skip, Unable) as exc:
        return Outcome(tuple(found), exc)
    return Outcome((*found, *observe(check, ctx, source)))


def observe(check: Check[Any], ctx: Context, source: InventedSource) -> Iterator[CheckItem]:
    """Observe a minute of what the reader of *source* samples."""
    if check.observe is None or ctx.device.kind != "cpu":
        return
    samples = [
        Sample(r.name, r.value, r.unit, r.part_id, float(t))
        for t in range(60)
        for r in source.make_reader().read()
    ]
    watch = Watch(start=0.0, end=60.0, samples=samples)
    yield from check.observe(watch, ctx, check.params())


def marks_of(outcome: Outcome) -> tuple[CarryOver, ...]:
    return tuple(item for item in outcome.found if isinstance(item, CarryOver))


@pytest.mark.system
@pytest.mark.parametrize("name", NAMES)
def test_no_check_accuses_healthy_gpus_of_another_vendor_or_speaks_of_nvidia(
    tmp_path: Path, name: str
) -> None:
    outcome = run(name, make_node(tmp_path), InventedSource())
    assert [text for text in outcome.list_texts() if NVIDIA_WORDS.search(text)] == []
    if isinstance(outcome.stopped, Skip):
        assert outcome.stopped.cause in (Cause.NOT_OBSERVABLE, Cause.NOT_APPLICABLE)
        return
    assert outcome.stopped is None
    check = load_check(name)
    if name in ASKING:
        judgement = judge_items(check, outcome.found, invented.INVENTORY)
    else:  # how fast this machine is, which is not on trial, is judged by other tests
        facts = [f for f in outcome.found if isinstance(f, Finding) and f.code != NO_REFERENCE_CODE]
        judgement = judge_by(facts, (), check.finding_rules)
    assert (judgement.reason, judgement.verdict) == ("", Verdict.PASS)


@pytest.mark.parametrize("name", ASKING)
def test_the_second_source_is_what_the_checks_ask(tmp_path: Path, name: str) -> None:
    outcome = run(name, make_node(tmp_path), InventedSource())
    assert outcome.stopped is None
    assert "all GPUs: not told: age of the dreams" in outcome.list_texts()


@pytest.mark.parametrize("name", ASKING)
@pytest.mark.parametrize(
    ("code", "verdict", "remedy"),
    [
        ("gpu_lost", Verdict.FAIL, Remedy.REBOOT),
        ("gpu_reset_required", Verdict.FAIL, Remedy.RESET_GPU),
    ],
)
def test_a_gpu_of_another_vendor_in_trouble_fails_each_check_that_asks_it(
    tmp_path: Path, name: str, code: str, verdict: Verdict, remedy: Remedy
) -> None:
    outcome = run(name, make_node(tmp_path), InventedSource(trouble=code))
    judgement = judge_items(load_check(name), outcome.found, invented.INVENTORY)
    assert (judgement.verdict, judgement.remedy) == (verdict, remedy)
    assert judgement.reason.startswith("GPU 2: the driver says")
    assert not NVIDIA_WORDS.search(judgement.reason)


def test_an_uncorrected_error_of_another_vendor_since_the_last_run_fails_its_gpu(
    tmp_path: Path,
) -> None:
    before = marks_of(run("ecc", make_node(tmp_path), InventedSource()))
    erred = InventedSource(errors={"ecc.uncorrected.lifetime": 1.0})
    outcome = run("ecc", make_node(tmp_path, carry_overs=before), erred)
    judgement = judge_items(load_check("ecc"), outcome.found, invented.INVENTORY)
    assert (judgement.verdict, judgement.remedy) == (Verdict.FAIL, Remedy.RESET_GPU)
    assert judgement.reason.startswith("GPU 2: ecc.uncorrected.since 1 > 0")
    assert not NVIDIA_WORDS.search(judgement.reason)


FAULTS: Sequence[tuple[str, InventedSource, Verdict, Remedy]] = (
    (
        "recovery",
        InventedSource(recovery=replace(HEALTHY_RECOVERY, action="gpu_reset")),
        Verdict.FAIL,
        Remedy.RESET_GPU,
    ),
    (
        "recovery",
        InventedSource(recovery=replace(HEALTHY_RECOVERY, unrepairable_memory=True)),
        Verdict.FAIL,
        Remedy.REPLACE,
    ),
    ("nvlink", InventedSource(links=invented.make_links(down=1)), Verdict.FAIL, Remedy.INSPECT),
    ("ecc", InventedSource(errors={"ecc.mode": 0.0}), Verdict.WARN, Remedy.FIX_CONFIGURATION),
    (
        "gpu_setup",
        InventedSource(setup=replace(HEALTHY_SETUP, persistence=False)),
        Verdict.WARN,
        Remedy.FIX_CONFIGURATION,
    ),
    (
        "gpu_setup",
        InventedSource(setup=replace(HEALTHY_SETUP, power_limit_w=400.0, power_default_w=600.0)),
        Verdict.WARN,
        Remedy.FIX_CONFIGURATION,
    ),
)


@pytest.mark.parametrize(("name", "source", "verdict", "remedy"), FAULTS)
def test_a_fault_that_another_vendor_answers_is_laid_at_its_gpu(
    tmp_path: Path, name: str, source: InventedSource, verdict: Verdict, remedy: Remedy
) -> None:
    outcome = run(name, make_node(tmp_path), source)
    judgement = judge_items(load_check(name), outcome.found, invented.INVENTORY)
    assert (judgement.verdict, judgement.remedy) == (verdict, remedy), judgement.reason
    assert judgement.reason.startswith("GPU 2: ")
    assert not NVIDIA_WORDS.search(judgement.reason)


@pytest.mark.parametrize("name", ASKING)
def test_a_source_that_does_not_start_is_an_error_in_its_own_words(
    tmp_path: Path, name: str
) -> None:
    outcome = run(name, make_node(tmp_path), InventedSource(absent="driver_mismatch"))
    assert isinstance(outcome.stopped, Unable)
    assert (outcome.stopped.cause, outcome.stopped.remedy) == (
        Cause.MISCONFIGURED,
        Remedy.FIX_CONFIGURATION,
    )
    assert str(outcome.stopped) == "the dream daemon is asleep: wake it (hypnosd)"


@pytest.fixture
def amd_node(tmp_path: Path) -> Inventory:
    for number in range(4):
        amd_gpu(tmp_path, number)
    return probe(tmp_path)


@pytest.mark.parametrize("name", [*ASKING, "xid"])
def test_what_cannot_be_observed_of_gpus_of_amd_is_skipped_and_said(
    tmp_path: Path, amd_node: Inventory, name: str
) -> None:
    with pytest.raises(Skip, match="this node's GPUs are AMD: hpcverify ") as caught:
        list(load_check(name).measure(make_context(tmp_path, inventory=amd_node), Params()))
    assert caught.value.cause is Cause.NOT_OBSERVABLE
    assert not NVIDIA_WORDS.search(str(caught.value))


def test_the_memory_of_the_host_is_judged_where_that_of_the_gpus_cannot_be(
    tmp_path: Path, amd_node: Inventory
) -> None:
    ctx = make_context(tmp_path, inventory=amd_node)
    host = edac(tmp_path / "host", uncorrected=1)
    found = list(ecc.read_counters(ctx, host, lambda: open_gpu_source(ctx).read_memory_errors()))
    judgement = judge_items(ecc.CHECK, found, amd_node)
    assert judgement.verdict is Verdict.WARN
    assert "ecc.host.uncorrected" in judgement.reason
    said = [item.text for item in found if isinstance(item, Coverage)]
    assert "this node's GPUs are AMD: hpcverify reads no telemetry of them" in said


def test_the_temperature_of_gpus_of_amd_is_not_observable(
    tmp_path: Path, amd_node: Inventory
) -> None:
    gpu = amd_node.devices[1]
    ctx = make_context(tmp_path, inventory=amd_node, device=gpu, peers=amd_node.devices[1:])
    thermal = load_check("thermal")
    with pytest.raises(Skip) as caught:
        list(thermal.measure(ctx, thermal.params()))
    assert caught.value.cause is Cause.NOT_OBSERVABLE


def test_the_inventory_of_a_node_of_amd_passes_and_says_that_no_sheet_is_known(
    tmp_path: Path, amd_node: Inventory
) -> None:
    inventory = load_check("inventory")
    ctx = make_context(tmp_path, inventory=amd_node, previous=amd_node)
    found = list(inventory.measure(ctx, Params()))
    assert judge_items(inventory, found, amd_node).verdict is Verdict.PASS
    said = [item.text for item in found if isinstance(item, (Coverage, Finding))]
    assert any("MI300X" in text and "is not in the table of parts" in text for text in said)
    assert not any(map(NVIDIA_WORDS.search, said))


def test_a_gpu_of_amd_that_has_left_the_bus_is_missing(tmp_path: Path, amd_node: Inventory) -> None:
    left = replace(amd_node, parts=tuple(p for p in amd_node.parts if p.label[:5] != "GPU 3"))
    inventory = load_check("inventory")
    ctx = make_context(tmp_path, inventory=left, previous=amd_node)
    found = list(inventory.measure(ctx, Params()))
    assert list_codes(found) == ["gpu_missing", "no_reference"]
    assert judge_items(inventory, found, left).verdict is Verdict.FAIL


def test_gpus_that_no_driver_of_amd_runs_are_an_error_with_the_command(tmp_path: Path) -> None:
    amd_gpu(tmp_path, 0, driver="")
    ctx = make_context(tmp_path, inventory=probe(tmp_path))
    with pytest.raises(Unable, match="modprobe amdgpu") as caught:
        open_gpu_source(ctx)
    assert (caught.value.cause, caught.value.code) == (Cause.MISCONFIGURED, "driver_not_loaded")


def test_one_place_says_who_answers_for_the_gpus_of_a_vendor(amd_node: Inventory) -> None:
    assert vendors.name_vendor(amd_node) == vendors.AMD
    assert vendors.name_vendor(Inventory(), invented.INVENTORY) == invented.VENDOR
    assert vendors.name_vendor(None, Inventory()) == vendors.NVIDIA
    assert vendors.find_source(vendors.AMD) is None
    assert vendors.find_source(invented.VENDOR) is None
    assert len(make_readers(invented.INVENTORY)) == len(make_readers(Inventory()))
