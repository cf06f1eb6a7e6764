"""What becomes of a check that CUDA ended: each row of the table, through a worker."""

from __future__ import annotations

import io
from collections.abc import Collection, Mapping
from pathlib import Path

import pytest
import torch
from msgspec import structs

from hpcverify.check import Context, Metric
from hpcverify.model import Cause, Device, Finding, Inventory, Part, Remedy, Result, Verdict
from hpcverify.run.conclude import conclude, judge_result, list_conclusive
from hpcverify.run.cuda_failure import explain_cuda_failure
from hpcverify.run.executor import Answer
from hpcverify.run.wire import Measure, Outcome, Request, RunSelftest, decode_response
from hpcverify.run.worker import WorkerServer
from hpcverify.telemetry.cuda_errors import (
    CudaError,
    build_finding_rules,
    find_cuda_error,
    list_software_codes,
    load_rows,
)
from hpcverify.testing import has_no_past, make_context
from tests.run.builders import make_step

TAIL = (
    "\nSearch for `cudaErrorX' in https://docs.nvidia.com/cuda/ for more information.\nCUDA kernel "
    "errors might be asynchronously reported at some other API call, so the stacktrace below "
    "might be incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\n"
)
GPUS = tuple(Device("cuda", f"GPU-{i}", f"GPU {i}") for i in range(3))
NODE = Inventory(parts=tuple(Part("gpu", d.part, d.label) for d in GPUS), devices=GPUS)
CONCLUSIVE = {"ecc_uncorrectable", "cuda_nvlink_uncorrectable"}
"""Codes of errors that the hardware itself counted: no rerun takes them back."""
MESSAGES = [row for row in load_rows() if row.message]
PHRASES = [(row, phrase) for row in load_rows() for phrase in row.phrases]
BAD = [row for row in MESSAGES if row.verdict is Verdict.FAIL]


def name(row: CudaError) -> str:
    return f"{row.platform}-{row.name}"


def gpu_context(tmp_path: Path) -> Context:
    return make_context(tmp_path, device=GPUS[1], peers=GPUS, inventory=NODE)


def answered(tmp_path: Path, way: str, text: str = "") -> Answer:
    """Have the worker of GPU 1 run a check that ends in this *way*."""
    told = io.BytesIO()
    task = Measure(
        name="naughty",
        packages=("tests.site.acme_checks",),
        params={"way": way, "path": text},
        context=gpu_context(tmp_path),
    )
    WorkerServer(told).handle(Request(1, task))
    *items, outcome = (decode_response(line)[1] for line in told.getvalue().splitlines())
    assert isinstance(outcome, Outcome)
    return Answer(items=tuple(i for i in items if not isinstance(i, Outcome)), outcome=outcome)


def judged(answer: Answer, worker: str = "GPU-1") -> Result:
    return conclude(STEP, {worker: answer}, NODE, has_no_past, 1.0)


STEP = make_step(metrics={"before": Metric(unit="", worse="neither", meaning="m")})


def found(answer: Answer) -> list[Finding]:
    return [item for item in answer.items if isinstance(item, Finding)]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have CUDA started in this process, as it has when a kernel fails."""
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.accelerator, "empty_host_cache", lambda: None)


@pytest.mark.usefixtures("started")
@pytest.mark.parametrize("row", MESSAGES, ids=name)
def test_each_error_has_the_verdict_remedy_and_cause_of_its_row(
    tmp_path: Path, row: CudaError
) -> None:
    text = f"{row.platform.upper()} error: {row.message}{TAIL}"
    answer = answered(tmp_path, "accelerator_error", text)
    result = judged(answer)

    assert (result.verdict, result.remedy, result.cause) == (row.verdict, row.remedy, row.cause)
    assert row.text in result.reason
    assert answer.outcome.remedy is not Remedy.FIX_CHECKER
    assert answer.outcome.is_worker_spent is row.sticky
    accused = [(f.code, f.part_id) for f in found(answer)]
    assert accused == ([(row.code, "GPU-1")] if row.verdict is Verdict.FAIL else [])


@pytest.mark.parametrize(("row", "phrase"), PHRASES)
def test_each_phrase_of_a_library_means_its_row(
    tmp_path: Path, row: CudaError, phrase: str
) -> None:
    answer = answered(tmp_path, "runtime_error", f"{phrase}: of a library")

    known = find_cuda_error(f"{phrase}: of a library")
    assert known is not None
    assert known.code == row.code
    assert judged(answer).verdict is row.verdict
    assert answer.outcome.remedy is row.remedy


@pytest.mark.parametrize("row", [r for r in BAD if r.platform == "cuda"], ids=name)
@pytest.mark.parametrize("gpus", [1, 3])
def test_a_start_that_the_hardware_prevents_is_no_gpus_of_several(
    tmp_path: Path, row: CudaError, gpus: int
) -> None:
    text = f"Unexpected error from cudaGetDeviceCount(). Error {row.number}: {row.message}"
    here = NODE if gpus > 1 else structs.replace(NODE, devices=GPUS[1:2])
    context = structs.replace(gpu_context(tmp_path), inventory=here)
    task = Measure(name="any", packages=(), params={}, context=context)
    failure = explain_cuda_failure(RuntimeError(text), task)
    assert failure is not None
    part_id = "GPU-1" if gpus == 1 or row.software else "node"

    assert [(f.code, f.part_id) for f in found(failure)] == [(row.code, part_id)]


def test_a_check_that_ends_well_accuses_nobody(tmp_path: Path) -> None:
    answer = answered(tmp_path, "nothing")
    assert (judged(answer).verdict, found(answer)) == (Verdict.PASS, [])
    assert not answer.outcome.is_worker_spent


def test_a_bug_of_a_check_is_still_a_bug(tmp_path: Path) -> None:
    result = judged(answered(tmp_path, "raise"))
    assert (result.verdict, result.cause) == (Verdict.ERROR, Cause.CRASHED)
    assert result.remedy is Remedy.FIX_CHECKER


@pytest.mark.parametrize(
    "text",
    [
        "connection timed out",
        "unknown error",
        "out of memory",
        "DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes",
        "[Errno 5] Error 5: Input/output error",
        "an illegal memory access was encountered",
    ],
)
def test_what_does_not_come_from_cuda_is_not_taken_for_it(text: str) -> None:
    assert find_cuda_error(text) is None


def test_torchs_own_out_of_memory_is_no_space(tmp_path: Path) -> None:
    result = judged(answered(tmp_path, "out_of_gpu_memory", "CUDA out of memory. Tried to al"))
    assert (result.verdict, result.cause) == (Verdict.ERROR, Cause.NO_SPACE)
    assert "end the processes that nvidia-smi lists" in result.reason


@pytest.mark.parametrize("way", ["accelerator_error", "runtime_error"])
def test_an_error_of_cuda_that_nobody_knows_accuses_neither_gpu_nor_checker(
    tmp_path: Path, way: str
) -> None:
    answer = answered(tmp_path, way, f"CUDA error: invalid resource handle{TAIL}")
    assert (judged(answer).verdict, found(answer)) == (Verdict.ERROR, [])
    assert answer.outcome.remedy is Remedy.INSPECT
    assert "invalid resource handle" in answer.outcome.reason


def test_an_error_of_the_accelerator_without_its_usual_opening_is_no_bug(tmp_path: Path) -> None:
    answer = answered(tmp_path, "accelerator_error", "something new")
    assert answer.outcome.remedy is Remedy.INSPECT
    assert "something new" in answer.outcome.reason


def test_a_library_says_what_cuda_told_it() -> None:
    text = (
        "NCCL error in: ProcessGroupNCCL.cpp:3356, unhandled cuda error (run with "
        "NCCL_DEBUG=INFO for details), NCCL version 2.27.5\nncclUnhandledCudaError: Call to "
        "CUDA function failed.\nLast error:\nCuda failure 214 'uncorrectable ECC error encountered'"
    )
    error = find_cuda_error(text)

    assert error is not None
    assert error.code == "ecc_uncorrectable"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        # Of expandable segments, c10/cuda/driver_api.h: C10_CUDA_DRIVER_CHECK.
        ("CUDA driver error: out of memory", "cuda_out_of_memory"),
        ("CUDA driver error: an illegal memory access was encountered", "cuda_illegal_address"),
        ("CUDA driver error: uncorrectable ECC error encountered", "ecc_uncorrectable"),
        ("CUDA driver error: invalid device ordinalwhile mapping a segment", "cuda_invalid_device"),
        ("CUDA driver error: device not ready", "cuda_other"),
        ("HIP driver error: out of memory", "cuda_out_of_memory"),
        ("CUDA driver error: 214", "ecc_uncorrectable"),  # of ROCm, Exceptions.h
    ],
)
def test_an_error_of_the_driver_interface_is_found_in_the_same_table(text: str, code: str) -> None:
    error = find_cuda_error(text)
    assert error is not None
    assert error.code == code


def test_the_number_of_an_error_at_the_start_is_not_needed_to_know_it() -> None:
    text = "Unexpected error from cudaGetDeviceCount(). Did you run some? Error 802: system not y"
    error = find_cuda_error(text + "et initialized")
    assert error is not None
    assert "systemctl start nvidia-fabricmanager, of the same version as the driver" in error.text


@pytest.mark.parametrize("row", BAD, ids=name)
def test_what_was_found_fails_when_it_is_judged_again(tmp_path: Path, row: CudaError) -> None:
    text = f"{row.platform.upper()} error: {row.message}"
    result = judged(answered(tmp_path, "accelerator_error", text))
    assert judge_result(result, {}, {}, NODE, has_no_past) == result
    assert bool(list_conclusive(result, Verdict.FAIL)) is row.conclusive


def test_rows_of_one_code_are_ruled_alike() -> None:
    ruled = {(r.code, r.verdict, r.remedy, r.cause, r.software, r.conclusive) for r in load_rows()}
    codes = {row.code for row in load_rows()}
    errors = {row for row in ruled if row[1] is Verdict.ERROR}
    assert len(ruled) - len(errors) == len(build_finding_rules())
    assert len({row[0] for row in errors} | set(build_finding_rules())) == len(codes)


def test_every_row_is_complete_and_has_a_source() -> None:
    for row in load_rows():
        assert row.source, row
        assert row.fix, row
        assert row.message or row.phrases or row.code == "cuda_other"
        assert bool(row.cause) is (row.verdict is Verdict.ERROR), row
        assert row.verdict in (Verdict.ERROR, Verdict.FAIL)
        assert row.remedy not in (Remedy.NONE, Remedy.FIX_CHECKER)


def test_only_what_ecc_or_the_link_counted_is_beyond_software() -> None:
    assert build_finding_rules().keys() - list_software_codes() == CONCLUSIVE
    assert {row.code for row in load_rows() if row.conclusive} == CONCLUSIVE


def explained(
    tmp_path: Path, text: str, contexts: Mapping[str, str], device: Device | None = None
) -> list[tuple[str, str]]:
    """Explain *text*, raised by a worker of *device* or the node, by the broken *contexts*."""
    ctx = gpu_context(tmp_path)
    ctx = ctx if device else make_context(tmp_path, inventory=NODE)
    task = Measure(name="p2p", packages=(), params={}, context=ctx)
    failure = explain_cuda_failure(
        torch.AcceleratorError(text),
        task,
        lambda parts: {p: contexts[p] for p in contexts if p in parts},
    )
    assert failure is not None
    return [(f.code, f.part_id) for f in found(failure)]


LAUNCH, ECC = (
    "CUDA error: unspecified launch failure",
    "CUDA error: uncorrectable ECC error encountered",
)


def test_of_several_gpus_the_one_with_the_broken_context_is_named(tmp_path: Path) -> None:
    assert explained(tmp_path, LAUNCH, {"GPU-2": LAUNCH}) == [("cuda_launch_failure", "GPU-2")]


def test_of_several_gpus_each_broken_one_has_its_own_error(tmp_path: Path) -> None:
    broken = {"GPU-0": ECC, "GPU-2": LAUNCH}
    assert explained(tmp_path, LAUNCH, broken) == [
        ("ecc_uncorrectable", "GPU-0"),
        ("cuda_launch_failure", "GPU-2"),
    ]


@pytest.mark.parametrize("broken", [{}, dict.fromkeys(("GPU-0", "GPU-1", "GPU-2"), ECC)])
def test_where_the_contexts_do_not_tell_no_gpu_is_named(
    tmp_path: Path, broken: Mapping[str, str]
) -> None:
    assert explained(tmp_path, ECC, broken) == [("ecc_uncorrectable", "node")]


@pytest.mark.parametrize("status", ["INTERNAL_ERROR", "EXECUTION_FAILED"])
def test_what_a_library_does_not_say_the_context_says(tmp_path: Path, status: str) -> None:
    vague = f"CUDA error: CUBLAS_STATUS_{status} when calling `cublasLtMatmul`"
    assert explained(tmp_path, vague, {"GPU-1": ECC}, GPUS[1]) == [("ecc_uncorrectable", "GPU-1")]
    assert explained(tmp_path, vague, {}, GPUS[1]) == []


def test_memory_that_runs_out_in_a_worker_of_the_node_accuses_no_gpu(tmp_path: Path) -> None:
    assert explained(tmp_path, "CUDA out of memory. Tried to allocate", {}) == []


BUSY = "CUDA error: CUDA-capable device(s) is/are busy or unavailable"


@pytest.mark.parametrize(
    ("refused", "named"), [(("GPU-1",), "GPU 1: "), (("GPU-0", "GPU-1", "GPU-2"), "")]
)
def test_of_gpus_in_one_process_those_that_take_no_other_process_are_named(
    tmp_path: Path, refused: Collection[str], named: str
) -> None:
    task = Measure(
        name="p2p", packages=(), params={}, context=make_context(tmp_path, inventory=NODE)
    )
    failure = explain_cuda_failure(
        torch.AcceleratorError(BUSY), task, lambda _: dict.fromkeys(refused, BUSY)
    )

    assert failure is not None
    assert failure.items == ()
    assert failure.outcome.reason.startswith(f"{named}the GPU takes no further process")


def test_a_selftest_that_a_gpu_ended_is_an_error_and_no_finding(tmp_path: Path) -> None:
    task = RunSelftest(name="sdc", packages=(), context=gpu_context(tmp_path))
    failure = explain_cuda_failure(torch.AcceleratorError(ECC), task)
    assert failure is not None
    assert (failure.items, failure.outcome.remedy) == ((), Remedy.RESET_GPU)


def test_a_build_for_rocm_is_believed_that_it_is_one_whatever_it_calls_its_errors() -> None:
    text = "CUDA error: uncorrectable ECC error encountered"
    error = find_cuda_error(text, "hip")
    assert error is not None
    assert (error.platform, error.code) == ("hip", "ecc_uncorrectable")
    unknown = find_cuda_error("CUDA error: file not found", "hip")
    assert unknown is not None
    assert (unknown.platform, unknown.code) == ("hip", "cuda_other")
