"""A GPU's worker stays on its share of the cores near its GPU."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hpcverify.check import Context, Unable
from hpcverify.model import Cause, Device, Inventory, Measurement, Part, Remedy, Verdict
from hpcverify.telemetry import cpu
from hpcverify.testing import judge_items, make_context
from hpcverify_checks import cpu_units
from hpcverify_checks.node.cores import (
    bind_near_gpu,
    format_ranges,
    list_near_cores,
    report_left_out_cores,
    run_on_each,
    use_all_cores,
)

ALLOWED = sorted(os.sched_getaffinity(0))


def near(tmp_path: Path, *listed: str) -> Context:
    """Make a node whose GPUs are near the listed cores each; its root is *tmp_path*."""
    parts = [
        Part("gpu", f"GPU-{i}", f"GPU {i}", {"pci_address": f"0000:{i:02x}:00.0"})
        for i in range(len(listed))
    ]
    for part, cores in zip(parts, listed, strict=True):
        folder = tmp_path / "sys/bus/pci/devices" / part.facts["pci_address"]
        folder.mkdir(parents=True)
        (folder / "local_cpulist").write_text(f"{cores}\n")
    devices = tuple(Device(kind="cuda", part=part.id, label=part.label) for part in parts)
    inventory = Inventory(parts=tuple(parts), devices=devices)
    return make_context(tmp_path, device=devices[0], peers=devices, inventory=inventory)


def bound(ctx: Context, tmp_path: Path, times: int = 1) -> tuple[int, list[int]]:
    """Bind a thread of its own; give its share of the cores, and those that it may use."""

    def work() -> tuple[int, list[int]]:
        share = [bind_near_gpu(ctx, tmp_path) for _ in range(times)][-1]
        return share, sorted(os.sched_getaffinity(0))

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()


def test_a_worker_stays_on_the_cores_near_its_gpu_that_it_may_use(tmp_path: Path) -> None:
    ctx = near(tmp_path, f"{ALLOWED[0]},4000-4095")
    assert bound(ctx, tmp_path) == (1, ALLOWED[:1])
    assert sorted(os.sched_getaffinity(0)) == ALLOWED


def test_workers_of_gpus_near_the_same_cores_share_them(tmp_path: Path) -> None:
    everything, gpus = format_ranges(ALLOWED), 2
    ctx = near(tmp_path, *[everything] * gpus)
    assert bound(ctx, tmp_path) == (max(1, len(ALLOWED) // gpus), ALLOWED)


def test_a_core_that_was_taken_from_us_is_no_crash_and_hides_no_other() -> None:
    gone = 4095
    results = run_on_each([ALLOWED[0], gone], lambda core: core)

    assert next(results) == ALLOWED[0]
    with pytest.raises(Unable, match=f"core {gone} may not be used any more") as caught:
        next(results)
    assert (caught.value.cause, caught.value.remedy) == (Cause.PARTIAL_VIEW, Remedy.RERUN)


def test_a_sandbox_that_lets_nobody_pin_a_thread_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbid(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "sched_setaffinity", forbid)
    assert bound(near(tmp_path, f"{ALLOWED[0]}"), tmp_path) == (len(ALLOWED), ALLOWED)
    with pytest.raises(Unable, match="forbids sched_setaffinity: allow it") as caught:
        next(run_on_each(ALLOWED[:1], lambda core: core))
    assert caught.value.cause is Cause.DENIED


def test_a_gpu_on_another_socket_takes_no_share(tmp_path: Path) -> None:
    ctx = near(tmp_path, format_ranges(ALLOWED), "4000-4095")
    assert bound(ctx, tmp_path) == (len(ALLOWED), ALLOWED)


def test_a_worker_is_bound_once_however_often_it_is_asked(tmp_path: Path) -> None:
    ctx = near(tmp_path, *[format_ranges(ALLOWED)] * 2)
    assert bound(ctx, tmp_path, times=3) == bound(ctx, tmp_path)


@pytest.mark.parametrize("listed", ["", "4095", "none"])
def test_where_no_near_core_is_known_and_allowed_nothing_changes(
    tmp_path: Path, listed: str
) -> None:
    ctx = near(tmp_path, *[listed] * 2)
    assert bound(ctx, tmp_path) == (max(1, len(ALLOWED) // 2), ALLOWED)
    assert list_near_cores(ctx, "GPU-0", tmp_path) == frozenset()


def test_a_part_that_is_not_on_pci_is_near_no_core(tmp_path: Path) -> None:
    ctx = make_context(tmp_path)
    assert list_near_cores(ctx, ctx.device.part, tmp_path) == frozenset()


def kernel_with(root: Path, online: str) -> Path:
    """Let the kernel's list of online cores under *root* be *online*."""
    listed = root / cpu.CPU_FOLDER / "online"
    listed.parent.mkdir(parents=True)
    listed.write_text(f"{online}\n")
    return root


def test_a_pass_without_all_online_cores_says_how_many_there_were(tmp_path: Path) -> None:
    root = kernel_with(tmp_path, format_ranges([*ALLOWED, 4094, 4095]))
    (finding,) = report_left_out_cores(make_context(tmp_path), root)
    measured = [Measurement(n, v, "", "cpu0") for n, v in (("results", 1.0), ("wrong_units", 0.0))]
    judged = judge_items(cpu_units.CHECK, [finding, *measured])

    assert judged.verdict is Verdict.PASS
    assert f"{len(ALLOWED)} of {len(ALLOWED) + 2} online cores" in judged.reason
    assert "4094-4095" in judged.reason


def test_where_all_online_cores_are_used_a_pass_needs_no_reason(tmp_path: Path) -> None:
    root = kernel_with(tmp_path, format_ranges(ALLOWED))
    assert not list(report_left_out_cores(make_context(tmp_path), root))


def test_a_gpus_worker_which_is_bound_on_purpose_leaves_out_no_core(tmp_path: Path) -> None:
    assert not list(report_left_out_cores(near(tmp_path, "0"), kernel_with(tmp_path, "0-4095")))


@pytest.mark.parametrize(("user", "kept"), [(0, ALLOWED), (1000, ALLOWED[-1:])])
def test_root_verifies_all_cores_and_a_user_keeps_to_the_mask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, user: int, kept: list[int]
) -> None:
    root = kernel_with(tmp_path, format_ranges([*ALLOWED, 4095]))
    monkeypatch.setattr(os, "geteuid", lambda: user)

    def work() -> list[int]:
        os.sched_setaffinity(0, ALLOWED[-1:])
        use_all_cores(root)
        return sorted(os.sched_getaffinity(0))

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(work).result() == kept
