"""
What a worker says when CUDA ended its task: a finding on the GPU, or an ERROR with the fix.

A GPU that dies under load raises an exception in the check, as a bug in the check does. The
table `hpcverify.telemetry.cuda_errors` separates them, in this one place for all checks.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Collection, Mapping
from types import ModuleType

from msgspec.structs import replace

from hpcverify import breadcrumb
from hpcverify.model import Cause, Finding, Verdict
from hpcverify.run.executor import Answer
from hpcverify.run.wire import Measure, Outcome, Task
from hpcverify.telemetry.cuda_errors import CudaError, find_cuda_error, find_unexplained
from hpcverify.telemetry.vendors import AMD, NVIDIA, matches_torch_ids, write_torch_ids

MAX_MESSAGE_CHARACTERS = 300
PROBE_WORDS = 2**16
FULL_GPU_PATTERN = r"\bGPU (\d+) has a total capacity"
"""In the message of torch's allocator."""
ContextErrors = Callable[[Collection[str]], Mapping[str, str]]
"""Returns which of the GPUs with these ids have a broken context, and its error."""


def explain_cuda_failure(
    exc: BaseException, task: Task, context_errors: ContextErrors | None = None
) -> Answer | None:
    """
    Explain *exc*, which ended *task*; None if it has nothing to do with CUDA.

    Where a worker uses several GPUs, or a library says only that something failed, the
    contexts say more: the error of a broken one comes back with every call. Where they do
    not say which GPU it was, or CUDA did not even start, the finding is one of the node.
    """
    torch = sys.modules.get("torch")
    platform = "" if torch is None or torch.version.hip is None else "hip"
    error = find_cuda_error(str(exc), platform)
    if error is None:
        if torch is None or not isinstance(exc, torch.AcceleratorError):
            return None
        error = find_unexplained(platform or "cuda")
    gpus: list[str] = []
    others: list[str] = []
    if isinstance(task, Measure):
        own = task.context.device
        others = [d.part for d in task.context.inventory.devices if d.kind == "cuda"]
        gpus = [own.part] if own.kind == "cuda" else others
    errors: dict[str, CudaError | None] = {}
    broken: dict[str, CudaError] = {}
    if len(gpus) > 1 or not error.is_exact:
        texts = (context_errors or find_context_errors)(gpus)
        errors = {part: find_cuda_error(text, error.platform) for part, text in texts.items()}
        broken = {part: e for part, e in errors.items() if e and e.verdict is Verdict.FAIL}
        if broken and (error.verdict is not Verdict.FAIL or not error.is_exact):
            error = next(iter(broken.values()))
    if error.verdict is not Verdict.FAIL or not gpus:
        outcome = _build_outcome(error, exc)
        refused = {part for part, e in errors.items() if e and e.code == error.code}
        holders = refused
        full = re.search(FULL_GPU_PATTERN, str(exc))
        if full and torch is not None and torch.cuda.is_initialized():
            part = _number_gpus(torch, gpus).get(int(full[1]))
            holders = {part} if part else refused
        if isinstance(task, Measure) and 0 < len(holders) < len(gpus):
            labels = task.context.inventory.format_names(sorted(holders))
            outcome = replace(outcome, reason=f"{labels}: {outcome.reason}")
        return Answer(outcome=outcome)
    named = broken if 0 < len(broken) < len(gpus) else {}
    # CUDA starts on all GPUs of the node: if the hardware of one prevents that, every process
    # raises its error.
    has_started = torch is None or torch.cuda.is_initialized()
    is_of_any = not has_started and not error.software and len(others) > 1
    is_alone = len(gpus) == 1 and (bool(broken) or not is_of_any)
    places = {gpus[0]: error} if is_alone else named or {"node": error}
    unnamed = "" if "node" not in places else "; CUDA did not report which GPU"
    findings = tuple(
        Finding(e.code, part, f"{e.text}{unnamed}", {"error": e.title, "raised": _shorten(exc)})
        for part, e in places.items()
    )
    outcome = replace(_build_outcome(error, exc), is_worker_spent=True)
    return Answer(items=findings, outcome=outcome)


def find_context_errors(parts: Collection[str]) -> dict[str, str]:
    """Find GPUs with a broken context, which returns its error to every call, by a few kernels."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return {}
    errors: dict[str, str] = {}
    for index, part in _number_gpus(torch, parts).items():
        try:
            with breadcrumb.during("a few kernels after an error", part):
                torch.cuda.synchronize(index)
                words = torch.arange(PROBE_WORDS, device=torch.device("cuda", index))
                (words * words + words).sum().item()
        except RuntimeError as exc:
            errors[part] = str(exc)
    return errors


def _number_gpus(torch: ModuleType, parts: Collection[str]) -> dict[int, str]:
    vendor = NVIDIA if torch.version.hip is None else AMD
    numbered: dict[int, str] = {}
    for index in range(torch.cuda.device_count()):
        ids = write_torch_ids(torch.cuda.get_device_properties(index), vendor)
        for part in parts:
            if matches_torch_ids(part, ids):
                numbered[index] = part
    return numbered


def raise_pending_error(task: Task) -> None:
    """Raise the CUDA error of asynchronous work that a check did not wait for, if any."""
    torch = sys.modules.get("torch")
    if not isinstance(task, Measure) or task.context.device.kind != "cuda":
        return
    if torch is not None and torch.cuda.is_initialized():
        with breadcrumb.during("what the check did not wait for", task.context.device.part):
            torch.cuda.synchronize()


def _build_outcome(error: CudaError, exc: BaseException) -> Outcome:
    import traceback  # noqa: PLC0415 - hardly ever, and it takes 4 ms

    vague = f"{error.meaning} ({_shorten(exc)}): {error.fix}"
    reason = error.text if error.is_exact else vague
    ended = error.verdict is Verdict.FAIL
    return Outcome(
        verdict=Verdict.ERROR,
        reason=f"the check ended early: {reason}" if ended else reason,
        cause=Cause.CRASHED if ended else error.cause,
        remedy=error.remedy,
        code=error.code,
        trace="".join(traceback.format_exception(exc)),
        is_worker_spent=error.sticky,
    )


def _shorten(exc: BaseException) -> str:
    return str(exc).strip().partition("\n")[0][:MAX_MESSAGE_CHARACTERS]
