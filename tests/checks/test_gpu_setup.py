"""How GPUs are set up: what is wrong is reported, what others do there is not."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from hpcverify.check import Context, Sample, Watch
from hpcverify.limits.specs import Spec, load_specs
from hpcverify.model import (
    Cause,
    CheckItem,
    Coverage,
    Fact,
    Finding,
    Inventory,
    Part,
    Remedy,
    Verdict,
)
from hpcverify.processes import process_exists
from hpcverify.telemetry.gpus import GpuAnswers, Process, Setup
from hpcverify.testing import judge_items, list_codes, make_context
from hpcverify_checks import gpu_setup
from hpcverify_checks.gpu_setup import CHECK, GpuSetupParams, ProcessTable
from tests.doubles import UNTOLD, read_items
from tests.nvml_lab.nvmllab import Lab
from tests.telemetry.nvml.test_survey import probe
from tests.telemetry.trees import grow

GIB = 2**30

WELL = Setup(
    persistence=True,
    mig=False,
    mig_pending=False,
    compute_mode="default",
    ecc=True,
    ecc_pending=True,
    power_limit_w=700.0,
    power_enforced_w=700.0,
    power_default_w=700.0,
    clock_max_mhz=1980.0,
    clock_applications_mhz=1980.0,
    slowed_by=(),
    memory_used=2**20,
    processes=(),
    firmware={"vbios": "96.00", "inforom": "G520", "gsp": "on"},
)


def a_node(tmp_path: Path, gpus: int = 1, **facts: str) -> Context:
    facts = {"driver": "580", "name": "NVIDIA H100 80GB HBM3", **facts}
    parts = (Part("gpu", f"GPU-{i}", f"GPU {i}", facts) for i in range(gpus))
    return make_context(tmp_path, inventory=Inventory(parts=tuple(parts)))


def a_host(tmp_path: Path, *living: int, namespace: str = "4026531836") -> ProcessTable:
    """Make a host on which process 10 is the engine, 11 its worker, 42 a job."""
    proc = grow(
        tmp_path / "proc",
        {
            "10/stat": "10 (hpcverify) S 1 10 10",
            "11/stat": "11 (python3 (x)) S 10 11 11",
            "42/stat": "42 (python3) S 1 42 42",
            "42/comm": "python3",
        },
    )
    (proc / "self/ns").mkdir(parents=True, exist_ok=True)
    (proc / "self/ns/pid").symlink_to(f"pid:[{namespace}]")
    return ProcessTable(proc=proc, engine=10, alive=living.__contains__)


def looked(
    ctx: Context, host: ProcessTable, *answers: dict[str, Setup], exclusive: bool = False
) -> list[CheckItem]:
    """Ask once for each of *answers*, and never once more."""
    replies = iter(answers)
    pauses: list[float] = []
    found = list(
        gpu_setup.report_setup(
            ctx,
            GpuSetupParams(exclusive=exclusive),
            lambda: GpuAnswers(answers=next(replies)),
            host,
            pauses.append,
        )
    )
    assert len(pauses) == len(answers) - 1
    assert next(replies, None) is None
    return found


def seen(tmp_path: Path, **changes: Any) -> list[CheckItem]:
    """Look at one GPU that differs from a healthy one by *changes*."""
    setup = replace(WELL, **changes)
    return looked(a_node(tmp_path), a_host(tmp_path, 42), {"GPU-0": setup})


@pytest.mark.parametrize(
    ("slowed_to", "expected"),
    [
        ((690.0, 90.0), "hw_thermal (690 of 1980 MHz, 90 °C)"),
        ((None, 90.0), "hw_thermal (90 °C)"),
        ((None, None), "hw_thermal"),
    ],
)
def test_a_clock_that_is_held_down_is_told_with_its_heat(
    tmp_path: Path, slowed_to: tuple[float | None, float | None], expected: str
) -> None:
    found = seen(tmp_path, slowed_by=("hw_thermal",), slowed_to=slowed_to)
    (slow,) = (f for f in found if isinstance(f, Finding))

    assert slow.text == f"clock throttled now: {expected}"


def test_a_gpu_as_it_ought_to_be_passes_without_a_word(tmp_path: Path) -> None:
    found = seen(tmp_path)
    assert (list_codes(found), judge_items(CHECK, found).verdict) == ([], Verdict.PASS)
    (covered,) = (f for f in found if isinstance(f, Coverage))
    assert covered.text.startswith("persistence on, MIG off, compute mode default")
    assert "power limit 700 of 700 W" in covered.text


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ((600.0, 600.0), ["power_capped", "power_capped"]),
        ((600.0, 700.0), ["power_limited"]),
        ((600.0, 500.0), ["power_limited", "power_limited"]),
    ],
)
def test_a_limit_that_all_like_gpus_have_is_meant(
    tmp_path: Path, limits: tuple[float, float], expected: list[str]
) -> None:
    setups = {
        f"GPU-{i}": replace(WELL, power_limit_w=watts, power_enforced_w=watts)
        for i, watts in enumerate(limits)
    }
    found = looked(a_node(tmp_path, gpus=2), a_host(tmp_path, 42), setups)
    assert list_codes(found) == expected


def test_what_a_gpu_cannot_tell_is_held_against_nobody(tmp_path: Path) -> None:
    found = looked(a_node(tmp_path), a_host(tmp_path), {"GPU-0": UNTOLD})
    assert (list_codes(found), judge_items(CHECK, found).verdict) == ([], Verdict.PASS)


WARNINGS: tuple[tuple[dict[str, Any], str, Remedy, str], ...] = (
    ({"persistence": False}, "persistence_off", Remedy.FIX_CONFIGURATION, "nvidia-persistenced"),
    ({"mig_pending": True}, "mig_pending", Remedy.RESET_GPU, "MIG will be on"),
    (
        {"power_limit_w": 500.0, "power_enforced_w": 500.0},
        "power_limited",
        Remedy.FIX_CONFIGURATION,
        "power limit set to 500 W, default 700 W: nvidia-smi -pl 700",
    ),
    (
        {"power_enforced_w": 350.0},
        "power_held",
        Remedy.INSPECT,
        "held to 350 W although the limit is 700 W",
    ),
)


@pytest.mark.parametrize(("changes", "code", "remedy", "reason"), WARNINGS)
def test_a_setting_that_costs_something_warns_and_says_how_to_undo_it(
    tmp_path: Path, changes: dict[str, Any], code: str, remedy: Remedy, reason: str
) -> None:
    found = seen(tmp_path, **changes)
    judgement = judge_items(CHECK, found)
    assert list_codes(found) == [code]
    assert (judgement.verdict, judgement.remedy) == (Verdict.WARN, remedy)
    assert reason in judgement.reason


@pytest.mark.parametrize(
    ("name", "watts", "code"),
    [
        ("NVIDIA GH200 480GB", 700.0, "power_shared"),
        ("NVIDIA GH200 480GB", 300.0, "power_held"),
        ("NVIDIA H100 80GB HBM3", 700.0, "power_held"),
    ],
)
def test_a_module_may_leave_its_gpu_less_than_the_limit(
    tmp_path: Path, name: str, watts: float, code: str
) -> None:
    """Take the limits of a healthy GH200 480GB (public `nvidia-smi -a`, driver 550.127.05)."""
    setup = replace(WELL, power_limit_w=900.0, power_default_w=900.0, power_enforced_w=watts)
    ctx = a_node(tmp_path, name=name, compute_capability="9.0")
    found = looked(ctx, a_host(tmp_path), {"GPU-0": setup})
    assert list_codes(found) == [code]
    assert judge_items(CHECK, found).verdict is (
        Verdict.PASS if code == "power_shared" else Verdict.WARN
    )


def test_the_fix_of_a_setting_is_a_command_for_that_gpu_alone(tmp_path: Path) -> None:
    (limited,) = judge_items(
        CHECK, seen(tmp_path, power_limit_w=500.0, power_enforced_w=500.0)
    ).faults

    assert limited.fix == f"nvidia-smi -i {limited.part_id} -pl 700"


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"mig": True, "mig_pending": True}, "mig_on"),
        ({"compute_mode": "exclusive_process"}, "compute_exclusive"),
        ({"power_default_w": 650.0}, "power_raised"),
    ],
)
def test_a_setting_that_a_site_may_choose_is_only_listed(
    tmp_path: Path, changes: dict[str, Any], code: str
) -> None:
    found = seen(tmp_path, **changes)
    assert (list_codes(found), judge_items(CHECK, found).verdict) == ([code], Verdict.PASS)


def test_gpus_on_which_nothing_may_run_are_misconfigured(tmp_path: Path) -> None:
    judgement = judge_items(CHECK, seen(tmp_path, compute_mode="prohibited"))
    assert (judgement.verdict, judgement.cause) == (Verdict.ERROR, Cause.MISCONFIGURED)
    assert "nvidia-smi -c 0" in judgement.reason


def test_applications_clocks_that_do_not_bind_are_only_listed(tmp_path: Path) -> None:
    # An A100 SXM is delivered with 1095 MHz of 1410, and runs at 1410 all the same.
    found = seen(tmp_path, clock_applications_mhz=1095.0, clock_max_mhz=1410.0)
    assert list_codes(found) == []
    assert "applications clock 1095 of 1410 MHz" in str(found)


def firmware(tmp_path: Path, *versions: str, **facts: str) -> list[CheckItem]:
    answers = {
        f"GPU-{i}": replace(WELL, firmware={"vbios": version} if version else {})
        for i, version in enumerate(versions)
    }
    ctx = a_node(tmp_path, len(versions), **facts)
    return looked(ctx, a_host(tmp_path), answers)


def test_the_gpu_with_another_firmware_than_its_like_is_named(tmp_path: Path) -> None:
    found = firmware(tmp_path, "A", "A", "B", "A")
    (finding,) = (f for f in found if isinstance(f, Finding))
    assert (finding.code, finding.part_id) == ("firmware_differs", "GPU-2")
    assert finding.text == "vbios is B, but A on 3 GPUs of the same model"
    assert judge_items(CHECK, found).remedy is Remedy.FIX_CONFIGURATION


def test_where_no_firmware_is_the_more_common_all_are_named(tmp_path: Path) -> None:
    found = firmware(tmp_path, "A", "B")
    assert judge_items(CHECK, found).verdict is Verdict.WARN
    assert (
        "node: vbios differs among GPUs of the same model: GPU 0 A, GPU 1 B"
        in judge_items(CHECK, found).reason
    )


def test_how_a_gpu_is_set_up_is_told_as_facts_for_its_fleet(tmp_path: Path) -> None:
    found = looked(a_node(tmp_path), a_host(tmp_path), {"GPU-0": WELL})

    assert {item.name: item.value for item in found if isinstance(item, Fact)} == {
        "GPU persistence mode": "on",
        "GPU compute mode": "default",
        "GPU MIG mode": "off",
        "GPU ECC": "on",
        "GPU InfoROM": "G520",
        "GPU GSP firmware": "on",
    }


def test_a_gpu_that_tells_nothing_has_no_facts(tmp_path: Path) -> None:
    found = looked(a_node(tmp_path), a_host(tmp_path), {"GPU-0": UNTOLD})

    assert not [item for item in found if isinstance(item, Fact)]


def test_a_gpu_that_does_not_tell_its_firmware_is_not_odd(tmp_path: Path) -> None:
    assert list_codes(firmware(tmp_path, "A", "", "A")) == []


def test_parts_that_differ_may_have_firmware_that_differs(tmp_path: Path) -> None:
    ctx = a_node(tmp_path, 2)
    other = msgspec.structs.replace(
        ctx.inventory.parts[1], facts={"name": "NVIDIA L4", "driver": "580"}
    )
    inventory = Inventory(parts=(ctx.inventory.parts[0], other))
    mixed = make_context(tmp_path, inventory=inventory)
    answers = {"GPU-0": WELL, "GPU-1": replace(WELL, firmware={"vbios": "95.04"})}
    assert list_codes(looked(mixed, a_host(tmp_path), answers)) == []


def test_the_jobs_of_others_are_listed_and_never_leftovers(tmp_path: Path) -> None:
    job = (Process(pid=42, memory=60 * GIB), Process(pid=42, memory=None))
    found = seen(tmp_path, processes=job, memory_used=61 * GIB)
    assert (list_codes(found), judge_items(CHECK, found).verdict) == (["in_use"], Verdict.PASS)
    assert "used by process 42 (python3)" in str(found)


def test_where_nobody_may_be_left_a_process_is_a_leftover(tmp_path: Path) -> None:
    setup = replace(WELL, processes=(Process(pid=42, memory=3 * GIB),))
    found = looked(a_node(tmp_path), a_host(tmp_path, 42), {"GPU-0": setup}, exclusive=True)
    judgement = judge_items(CHECK, found)
    assert (judgement.verdict, judgement.remedy) == (Verdict.WARN, Remedy.INSPECT)
    assert judgement.reason == "GPU-0: used by process 42 (python3): 3.0 GiB"


def test_a_display_server_or_an_idle_mps_server_is_listed_and_no_leftover(tmp_path: Path) -> None:
    setup = replace(WELL, processes=(Process(pid=42, memory=GIB // 2, computes=False),))
    found = looked(a_node(tmp_path), a_host(tmp_path, 42), {"GPU-0": setup}, exclusive=True)
    assert (list_codes(found), judge_items(CHECK, found).verdict) == (["in_use"], Verdict.PASS)
    assert "drawn on or held by process 42 (python3): 0.5 GiB" in str(found)


def test_the_workers_of_this_run_are_no_users(tmp_path: Path) -> None:
    ours = (Process(pid=10, memory=GIB), Process(pid=11, memory=GIB))
    setup = replace(WELL, processes=ours)
    found = looked(a_node(tmp_path), a_host(tmp_path, 10, 11), {"GPU-0": setup}, exclusive=True)
    assert list_codes(found) == []


def test_a_process_that_is_gone_and_holds_a_gpu_is_told(tmp_path: Path) -> None:
    ghost = {"GPU-0": replace(WELL, processes=(Process(pid=77, memory=GIB),))}
    found = looked(a_node(tmp_path), a_host(tmp_path), ghost, ghost)
    judgement = judge_items(CHECK, found)
    assert list_codes(found) == ["process_dead"]
    assert (judgement.verdict, judgement.remedy) == (Verdict.WARN, Remedy.INSPECT)
    assert "process 77 is gone" in judgement.reason


def test_gpus_are_named_in_the_order_of_the_node(tmp_path: Path) -> None:
    held = replace(WELL, processes=(Process(pid=77, memory=GIB),))
    ids = ["GPU-2", "GPU-0", "GPU-1"]  # as their UUIDs have it
    ghosts = dict.fromkeys(ids, held)
    found = looked(a_node(tmp_path, 3), a_host(tmp_path), ghosts, ghosts)

    assert [f.part_id for f in found if isinstance(f, Finding)] == ids


def test_a_process_that_was_just_ending_is_not_told(tmp_path: Path) -> None:
    ending = {"GPU-0": replace(WELL, processes=(Process(pid=77, memory=GIB),))}
    found = looked(a_node(tmp_path), a_host(tmp_path), ending, {"GPU-0": WELL})
    assert (list_codes(found), judge_items(CHECK, found).verdict) == ([], Verdict.PASS)


def test_memory_that_nobody_holds_is_lost_until_a_reset(tmp_path: Path) -> None:
    lost = {"GPU-0": replace(WELL, memory_used=40 * GIB)}
    judgement = judge_items(CHECK, looked(a_node(tmp_path), a_host(tmp_path), lost, lost))
    assert (judgement.verdict, judgement.remedy) == (Verdict.WARN, Remedy.RESET_GPU)
    assert "memory.leftover 40 GiB > 1" in judgement.reason


def test_memory_that_was_just_being_freed_is_not_lost(tmp_path: Path) -> None:
    lost = {"GPU-0": replace(WELL, memory_used=40 * GIB)}
    found = looked(a_node(tmp_path), a_host(tmp_path), lost, {"GPU-0": WELL})
    assert judge_items(CHECK, found).verdict is Verdict.PASS


def test_what_the_driver_itself_may_take_is_no_leftover(tmp_path: Path) -> None:
    assert judge_items(CHECK, seen(tmp_path, memory_used=700 * 2**20)).verdict is Verdict.PASS


@pytest.mark.parametrize("name", ["NVIDIA GH200 480GB", "NVIDIA GB200", "NVIDIA GB300"])
def test_memory_that_the_kernel_shares_may_hold_its_page_cache(tmp_path: Path, name: str) -> None:
    cached = {"GPU-0": replace(WELL, memory_used=40 * GIB)}
    found = looked(a_node(tmp_path, name=name), a_host(tmp_path), cached)
    assert judge_items(CHECK, found).verdict is Verdict.PASS


def test_from_a_container_nothing_is_said_of_processes(tmp_path: Path) -> None:
    ghost = replace(WELL, processes=(Process(pid=77, memory=GIB),), memory_used=40 * GIB)
    host = a_host(tmp_path, namespace="4026532200")
    found = looked(a_node(tmp_path), host, {"GPU-0": ghost}, exclusive=True)
    assert list_codes(found) == []
    assert Coverage("node", gpu_setup.CONTAINER_NOTICE) in found


def test_a_process_lives_while_the_kernel_knows_it() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=-1) as child:
        assert process_exists(child.pid)
        assert ProcessTable(engine=os.getpid()).is_ours(child.pid)
    assert not process_exists(child.pid)
    assert not ProcessTable(engine=os.getpid()).is_ours(child.pid)


def samples(name: str, values: Iterable[float]) -> Iterator[Sample]:
    yield from (Sample(name, v, "", "GPU-0", float(t)) for t, v in enumerate(values))


def watched(ctx: Context, **series: Iterable[float]) -> list[CheckItem]:
    """Sample a GPU at 1 Hz; two underscores stand for a dot."""
    taken = [
        sample
        for name, values in series.items()
        for sample in samples(name.replace("__", "."), values)
    ]
    watch = Watch(start=0, end=1000, samples=taken)
    return list(gpu_setup.observe(watch, ctx, GpuSetupParams()))


BUSY = [0.0] * 5 + [1.0] * 55


def test_a_locked_clock_shows_under_load(tmp_path: Path) -> None:
    clock = [345.0] * 5 + [1500.0] * 55
    judgement = judge_items(CHECK, watched(a_node(tmp_path), utilization=BUSY, clock=clock))
    assert judgement.verdict is Verdict.WARN
    assert judgement.remedy is Remedy.FIX_CONFIGURATION
    assert "clock.locked 81.97 %" in judgement.reason


@pytest.mark.parametrize(
    "cause", ["event__sw_power_cap", "event__hw_thermal", "event__sync_boost", "event__idle"]
)
def test_a_clock_that_something_holds_back_is_not_locked(tmp_path: Path, cause: str) -> None:
    clock = [1500.0] * 60
    held = {cause: [1.0] * 60}
    found = watched(a_node(tmp_path), utilization=BUSY, clock=clock, **held)
    assert judge_items(CHECK, found).faults == ()


def test_holding_back_that_no_sample_caught_shows_in_its_counter(tmp_path: Path) -> None:
    found = watched(
        a_node(tmp_path),
        utilization=BUSY,
        clock=[1500.0] * 60,
        event__sw_power_cap=[0.0] * 60,
        throttled__sw_power_cap=[t / 10 for t in range(60)],
    )
    assert judge_items(CHECK, found).faults == ()


@pytest.mark.parametrize(
    "clock",
    [
        [345.0] * 5 + [1980.0] * 55,
        [345.0] * 5 + [1830.0, 1815.0, 1755.0, 1740.0, 1725.0] * 11,
        [345.0] * 5 + [1500.0, 1485.0, 1470.0, 1455.0, 1500.0] * 11,
        [345.0] * 5 + [1500.0] * 54 + [1980.0],
        [345.0] * 60,
    ],
)
def test_a_clock_that_moves_or_is_high_or_has_nothing_to_do_is_not_locked(
    tmp_path: Path, clock: list[float]
) -> None:
    busy = BUSY if max(clock) > 345 else [0.0] * 60
    found = watched(a_node(tmp_path), utilization=busy, clock=clock)
    assert judge_items(CHECK, found).faults == ()


def test_a_few_seconds_of_load_say_nothing_of_the_clock(tmp_path: Path) -> None:
    busy = [0.0] * 51 + [1.0] * 9
    assert watched(a_node(tmp_path), utilization=busy, clock=[1500.0] * 60) == []


def test_a_few_moments_without_a_cause_say_nothing_of_the_clock(tmp_path: Path) -> None:
    capped = [1.0] * 51 + [0.0] * 9
    found = watched(
        a_node(tmp_path), utilization=BUSY, clock=[1500.0] * 60, event__sw_power_cap=capped
    )
    assert judge_items(CHECK, found).faults == ()


@pytest.mark.parametrize(
    ("clock", "lasts"), [(1980.0, 60), (1200.0, 40), (1980.0, 0), (1830.0, 60)]
)
def test_applications_clocks_that_cost_nothing_are_not_told(
    tmp_path: Path, clock: float, lasts: int
) -> None:
    found = watched(
        a_node(tmp_path),
        utilization=BUSY,
        clock=[clock] * lasts + [1980.0] * (60 - lasts),
        event__applications_clocks=[1.0] * lasts + [0.0] * (60 - lasts),
    )
    assert judge_items(CHECK, found).faults == ()


def test_applications_clocks_that_bind_are_told(tmp_path: Path) -> None:
    found = watched(
        a_node(tmp_path),
        utilization=BUSY,
        clock=[1200.0] * 60,
        event__applications_clocks=[1.0] * 60,
    )
    assert "clock.applications 65.57 %" in judge_items(CHECK, found).reason
    assert "nvidia-smi -rac" in judge_items(CHECK, found).reason
    assert judge_items(CHECK, found).verdict is Verdict.WARN


def test_the_clock_of_a_part_that_nobody_knows_is_not_judged(tmp_path: Path) -> None:
    ctx = a_node(tmp_path, name="NVIDIA X1")
    assert watched(ctx, utilization=BUSY, clock=[900.0] * 60) == []


@pytest.mark.parametrize("spec", load_specs(), ids=lambda spec: spec.key)
def test_no_part_is_accused_at_the_clock_of_its_data_sheet(tmp_path: Path, spec: Spec) -> None:
    ctx = a_node(tmp_path, name=spec.name)
    clock = spec.peak_clock_mhz or 1500.0
    found = watched(ctx, utilization=BUSY, clock=[clock] * 60)
    assert judge_items(CHECK, found).faults == ()


def test_a_run_without_samples_says_nothing(tmp_path: Path) -> None:
    assert watched(a_node(tmp_path)) == []


MEASURE = """
import sys, pathlib
from hpcverify.telemetry.probe import probe
from hpcverify.run.wire import encode_response
from hpcverify_checks.node import gpu_source
from hpcverify_checks import gpu_setup
from hpcverify.testing import make_context
root = pathlib.Path(sys.argv[1])
ctx = make_context(root, inventory=probe(root))
host = gpu_setup.ProcessTable(proc=root / "proc", engine=10, alive=[42].__contains__)
params = gpu_setup.GpuSetupParams(exclusive=sys.argv[2] == "True")
ask = gpu_source.open_gpu_source(ctx).read_setup
for found in gpu_setup.report_setup(ctx, params, ask, host, pause=lambda _: None):
    sys.stdout.buffer.write(encode_response(1, found))
"""


def measured(lab: Lab, *, exclusive: bool = False, **environ: str) -> list[CheckItem]:
    """Probe the lab and look at its GPUs, on a host where only process 42 lives."""
    if not (lab.root / "proc/self").exists():
        a_host(lab.root)
    lines = lab.python(MEASURE, exclusive, **environ).splitlines()
    return read_items(lines)


def test_a_healthy_board_passes_idle_and_under_load(tmp_path: Path, lab: Lab) -> None:
    assert judge_items(CHECK, measured(lab)).faults == ()
    lab.load("healthy-8xh100")
    lab.write(lab.scenario.read_text().replace("process = 4242", "process = 42"))
    found = measured(lab)
    assert set(list_codes(found)) == {"in_use"}
    assert judge_items(CHECK, found).verdict is Verdict.PASS
    ctx = make_context(tmp_path, inventory=probe(lab))
    watch = lab.watch("healthy-8xh100", 40)
    observed = list(gpu_setup.observe(watch, ctx, GpuSetupParams()))
    assert judge_items(CHECK, observed).faults == ()


@pytest.mark.parametrize(
    ("fault", "code", "reason"),
    [
        ("mig.mode_pending = 1", "mig_pending", "MIG will be on"),
        ("inforom.image = G520.0200.00.03", "firmware_differs", "inforom is"),
        ("process = 77 1073741824 gone", "process_dead", "process 77"),
    ],
)
def test_each_setting_of_one_gpu_is_found_on_it(
    lab: Lab, fault: str, code: str, reason: str
) -> None:
    lab.write(f"gpu.2.{fault}")
    found = measured(lab)
    assert code in list_codes(found)
    assert len({f.part_id for f in found if isinstance(f, Finding)}) == 1
    assert judge_items(CHECK, found).verdict in (Verdict.WARN, Verdict.ERROR)
    assert reason in judge_items(CHECK, found).reason


def test_memory_without_a_process_is_found_on_its_gpu(lab: Lab) -> None:
    lab.write("gpu.2.memory.used = 42949672960")
    judgement = judge_items(CHECK, measured(lab))
    assert (judgement.verdict, judgement.remedy) == (Verdict.WARN, Remedy.RESET_GPU)
    assert judgement.reason.count("memory.leftover 40 GiB") == 1


def test_a_process_after_a_job_is_found_with_its_name(lab: Lab) -> None:
    lab.write("gpu.2.process = 42 1073741824 python3")
    assert judge_items(CHECK, measured(lab)).verdict is Verdict.PASS
    judgement = judge_items(CHECK, measured(lab, exclusive=True))
    assert judgement.verdict is Verdict.WARN
    assert "process 42 (python3): 1.0 GiB" in judgement.reason


def test_a_clock_that_is_locked_in_the_lab_is_found(tmp_path: Path, lab: Lab) -> None:
    name = "locked.txt"
    story = "gpu.*.utilization.gpu = 100\ngpu.*.clocks.event_reasons = 0\n"
    ctx = make_context(tmp_path, inventory=probe(lab))
    scenario = tmp_path / name
    scenario.write_text(f"{story}gpu.*.clocks.sm = 1980\ngpu.4.clocks.sm = 1200\n")
    watch = lab.watch(str(scenario.with_suffix("")), 15)
    observed = list(gpu_setup.observe(watch, ctx, GpuSetupParams()))
    (fault,) = judge_items(CHECK, observed).faults
    assert fault.code == "clock.locked"
    assert fault.part_id == ctx.inventory.of_kind("gpu")[4].id


def test_nothing_is_called_that_could_change_a_setting(tmp_path: Path, lab: Lab) -> None:
    journal = tmp_path / "calls"
    lab.write("gpu.*.persistence_mode = 0", "gpu.*.power.limit_mw = 500000")
    measured(lab, NVML_LAB_JOURNAL=str(journal))
    calls = {line.split()[3] for line in journal.read_text().splitlines()}
    reading = ("nvmlInit", "nvmlDeviceGet", "nvmlSystemGet", "nvmlShutdown")
    assert len(calls) > 10
    assert {call for call in calls if not call.startswith(reading)} == set()
