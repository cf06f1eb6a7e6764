"""Offsets of operands that a library refuses are left out and told; nobody is accused."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import pytest
import torch
from torch import Tensor

from hpcverify.check import Unable
from hpcverify.model import Cause, Coverage, Device, Finding, Inventory, Part, Remedy, Verdict
from hpcverify.testing import judge_items, make_context
from hpcverify_checks import sdc
from hpcverify_checks.exact.families import FAMILIES
from hpcverify_checks.exact.product_loop import ProductSeams, hunt
from hpcverify_checks.exact.products import ALL_SHIFTS, SHIFT_STEP
from hpcverify_checks.node.dtypes import Multiply, multiply
from hpcverify_checks.sdc.offsets import (
    OffsetOrder,
    OffsetTrial,
    RunApart,
    ShiftTrial,
    try_offsets,
)
from hpcverify_checks.sdc.prepare import DeviceTask, prepare
from tests.checks.sdc.benches import SHAPE, a_task

WORDS = (
    "CUDA error: {} when calling cublasLtMatmul with transpose_mat1 1 transpose_mat2 0 m 256 "
    "n 256 k 512 mat1_ld 640 mat2_ld 640 result_ld 256 abcType 3 computeType 72 scaleType 10"
)
REFUSED = "CUBLAS_STATUS_NOT_SUPPORTED"
REFUSALS = (
    REFUSED,
    "CUBLAS_STATUS_INVALID_VALUE",
    "CUBLAS_STATUS_ARCH_MISMATCH",
    "HIPBLAS_STATUS_NOT_SUPPORTED",
)


def refusing(offsets: Collection[int], status: str = REFUSED) -> Multiply:
    """Multiply, but refuse operands that begin at these *offsets*, as cublasLt would."""

    def picky(a: Tensor, b: Tensor, out: Tensor) -> None:
        if a.storage_offset() in offsets:
            raise RuntimeError(WORDS.format(status))
        multiply(a, b, out)

    return picky


def picky_task(tmp_path: Path, multiply: Multiply, family: str = "int8") -> DeviceTask:
    return a_task(tmp_path, FAMILIES[family], seams=ProductSeams(multiply=multiply))


def tried(task: DeviceTask) -> OffsetTrial:
    (trial,) = try_offsets([task])
    return trial


@pytest.mark.parametrize("family", ["int8", "fp8"])
def test_a_library_that_refuses_nothing_multiplies_at_every_offset(
    tmp_path: Path, family: str
) -> None:
    trial = tried(picky_task(tmp_path, multiply, family))
    assert (trial.task.shifts, trial.left_out) == (ALL_SHIFTS, {})


@pytest.mark.parametrize("status", REFUSALS)
def test_offsets_that_the_library_refuses_are_left_out_and_told(
    tmp_path: Path, status: str
) -> None:
    trial = tried(picky_task(tmp_path, refusing((16, 48), status), "fp8"))
    assert [shift * SHIFT_STEP for shift in trial.task.shifts] == [0, 32, 64, 80, 96, 112, 128]
    (told,) = sdc.report_refusal(trial)
    assert isinstance(told, Coverage)
    assert told.text == "fp8: operand offsets 16, 48 left out: the library refuses them"
    assert "at 7 offsets of 16 lanes" in sdc.FamilyResult(trial.task).summarize()


@pytest.mark.parametrize("left_out", [(16, 48), (0,)])
def test_the_hunt_goes_through_the_offsets_that_remain(
    tmp_path: Path, left_out: tuple[int, ...]
) -> None:
    seen = set[int]()
    picky = refusing(left_out)

    def watching(a: Tensor, b: Tensor, out: Tensor) -> None:
        picky(a, b, out)
        seen.add(int(a.storage_offset()))

    task = tried(picky_task(tmp_path, watching)).task
    seen.clear()
    prepared = prepare(task)
    assert not prepared.failures
    bench = task.make_bench("cpu0", prepared.jobs)
    every = len(prepared.jobs) * len(ALL_SHIFTS)
    assert not hunt(bench, lambda products: products >= every).wrong
    assert seen == {shift * SHIFT_STEP for shift in ALL_SHIFTS} - set(left_out)


def test_a_type_that_the_library_refuses_warns_and_accuses_nobody(tmp_path: Path) -> None:
    trial = tried(picky_task(tmp_path, refusing(range(129)), "fp8"))
    assert trial.task.shifts == ()
    (told,) = sdc.report_refusal(trial)
    assert isinstance(told, Finding)
    assert told.text.startswith(f"fp8 is not verified: the library refuses its products ({REFUSED}")
    params = sdc.SdcParams(seconds=0.6, size=128, depth=256)
    others = list(sdc.measure(trial.task.ctx, params))
    judgement = judge_items(sdc.CHECK, [told, *others])
    assert (judgement.verdict, judgement.remedy) == (Verdict.WARN, Remedy.FIX_CONFIGURATION)


@pytest.mark.parametrize(
    "raised",
    [
        RuntimeError(WORDS.format("CUBLAS_STATUS_EXECUTION_FAILED")),
        RuntimeError(WORDS.format("CUBLAS_STATUS_INTERNAL_ERROR")),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("mat1 and mat2 shapes cannot be multiplied"),
        torch.AcceleratorError("CUDA error: uncorrectable ECC error encountered"),
        torch.OutOfMemoryError("CUDA out of memory."),
    ],
)
def test_what_is_no_refusal_goes_through(tmp_path: Path, raised: RuntimeError) -> None:
    def broken(_a: Tensor, _b: Tensor, _out: Tensor) -> None:
        raise raised

    with pytest.raises(RuntimeError) as caught:
        tried(picky_task(tmp_path, broken))
    assert caught.value is raised


def on_gpu(tmp_path: Path, *families: str, mode: str = "") -> list[DeviceTask]:
    facts = {"compute_mode": mode} if mode else {}
    node = Inventory(parts=(Part("gpu", "GPU-0", "GPU 0", facts),))
    here = Device(kind="cuda", part="GPU-0", label="GPU 0")
    ctx = make_context(tmp_path, device=here, peers=(here,), inventory=node)
    device = torch.device("cuda", 0)
    return [DeviceTask(ctx, FAMILIES[name], SHAPE, device) for name in families]


def breaking(offsets: Collection[int], error: str, death: str = "") -> RunApart:
    """Answer as a process does whose kernel breaks, or that dies, at *offsets*."""

    def apart(order: OffsetOrder) -> tuple[list[ShiftTrial], str]:
        done: list[ShiftTrial] = []
        for name, _, _, shifts in order.products:
            for shift in shifts:
                if shift * SHIFT_STEP in offsets:
                    broken = [] if death else [ShiftTrial(name, shift, error=error)]
                    return [*done, *broken], death
                done.append(ShiftTrial(name, shift))
        return done, ""

    return apart


MISALIGNED = "CUDA error: misaligned address\nCUDA kernel errors might be asynchronously reported"
ODD = {16, 48, 80, 112}


@pytest.mark.parametrize(
    ("broken", "left"),
    [
        (ODD, [0, 32, 64, 96, 128]),  # kernels that load 32 bytes at once
        ({32, 96} | ODD, [0, 64, 128]),
        (set(range(16, 144, 16)), [0]),
    ],
)
@pytest.mark.parametrize("death", ["", "SIGSEGV"])
def test_offsets_that_break_a_kernel_are_left_out_and_the_others_are_tried(
    tmp_path: Path, broken: set[int], left: list[int], death: str
) -> None:
    tasks = on_gpu(tmp_path, "bf16", "fp8", "int8")
    trials = try_offsets(tasks, breaking(broken, MISALIGNED, death))
    assert trials[0].task.shifts == ALL_SHIFTS
    for trial in trials[1:]:
        assert [shift * SHIFT_STEP for shift in trial.task.shifts] == left
        (told,) = sdc.report_refusal(trial)
        assert isinstance(told, Coverage)
        why = death or "misaligned address"
        assert f'left out: there a kernel of the library ended in "{why}"' in told.text


@pytest.mark.parametrize(
    ("offset", "error"),
    [
        (0, MISALIGNED),  # aligned as always: the GPU's, or that of all GPUs together
        (16, "CUDA error: uncorrectable ECC error encountered"),
        (0, "CUDA out of memory."),
    ],
)
def test_an_error_that_alignment_does_not_explain_goes_through(
    tmp_path: Path, offset: int, error: str
) -> None:
    with pytest.raises(RuntimeError, match=error.partition("\n")[0]):
        try_offsets(on_gpu(tmp_path, "fp8"), breaking({offset}, error))


def test_a_process_that_dies_of_aligned_operands_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(Unable, match=r"products of fp8 died \(SIGSEGV\)") as caught:
        try_offsets(on_gpu(tmp_path, "fp8"), breaking({0}, "", "SIGSEGV"))
    assert caught.value.cause is Cause.CRASHED


def test_a_gpu_that_takes_one_process_is_verified_at_the_first_offset(tmp_path: Path) -> None:
    def never(_: OffsetOrder) -> tuple[list[ShiftTrial], str]:
        raise AssertionError

    (trial,) = try_offsets(on_gpu(tmp_path, "int8", mode="exclusive_process"), never)
    assert trial.task.shifts == (0,)
    assert "nvidia-smi -c 0" in trial.describe()


def test_types_that_every_library_takes_at_any_offset_are_not_tried(tmp_path: Path) -> None:
    def never(_a: Tensor, _b: Tensor, _out: Tensor) -> None:
        raise AssertionError

    assert tried(picky_task(tmp_path, never, "fp32")).task.shifts == ALL_SHIFTS
