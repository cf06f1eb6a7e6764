"""
What the errors of all GPUs in one check mean together.

A worker sees its own GPU. Here all answers are seen: which Xid stood in the kernel log
beside an error, whether all GPUs raised the same one, and whether a GPU only met the error
of its peer.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from msgspec.structs import replace

from hpcverify.model import Cause, Finding, Inventory, Remedy, Verdict
from hpcverify.run.attribution import GpuXids
from hpcverify.run.executor import Answer
from hpcverify.run.wire import GpuHolder, Outcome
from hpcverify.telemetry import cuda_errors

MIN_GPUS_ALIKE = 2
"""GPUs from which "all of them" says more of the software than of the GPUs."""
VERSIONS_FIX = (
    "install a driver that this torch supports, or a torch that supports the driver, and run again"
)
DRIVER_FIX = "see dmesg, reboot the node, and run again"
HARDWARE_XIDS = frozenset(
    {48, 63, 64, 74, 79, 94, 95, 140, *range(144, 151), 155, 168, *range(171, 174)}
)
"""The Xids of uncorrectable errors of memory and links, and of a GPU that is lost (NVIDIA, Xid
catalog). Where only hardware causes an error, others, as those of a job that crashed meanwhile,
name no GPU for it."""
ALONE_FIX = "hpcverify run --check gemm, which uses one process per GPU"

AskForXids = Callable[[Collection[str], float], GpuXids]
"""Finds the Xids of the GPUs since a time on the clock of `Outcome.start`."""
Answers = Mapping[str, Answer]


def explain_gpu_errors(
    answers: Answers,
    inventory: Inventory,
    ask: AskForXids,
    holders: Collection[GpuHolder] = (),
    common: frozenset[str] = frozenset(),
) -> tuple[dict[str, Answer], frozenset[str]]:
    """Explain CUDA errors by all GPUs, their Xids, and *common* codes; return answers and codes."""
    gpus = [d.part for d in inventory.devices if d.kind == "cuda"]
    named = {
        name: _read_log(_name_holders(answer, name, holders), name, gpus)
        for name, answer in answers.items()
    }
    if not any(_list_errors(answer) for answer in named.values()):
        return named, common
    xids = ask(gpus, min(answer.outcome.start for answer in named.values()))
    placed = {name: _add_xids(answer, gpus, xids) for name, answer in named.items()}
    return _explain_software_errors(_explain_peer_errors(placed), gpus, common)


def _list_errors(answer: Answer) -> list[Finding]:
    codes = cuda_errors.build_finding_rules()
    return [i for i in answer.items if isinstance(i, Finding) and i.code in codes]


def _replace_errors(answer: Answer, errors: Collection[Finding], outcome: Outcome) -> Answer:
    old = _list_errors(answer)
    rest = tuple(item for item in answer.items if item not in old)
    return replace(answer, items=(*rest, *errors), outcome=outcome)


def _name_holders(answer: Answer, part: str, holders: Collection[GpuHolder]) -> Answer:
    """Say who holds a GPU that takes no other process, if we know of somebody."""
    pids = [str(holder.pid) for holder in holders if holder.part == part]
    if answer.outcome.code != cuda_errors.BUSY or not pids:
        return answer
    reason = f"in use by process {', '.join(pids)}: {answer.outcome.reason}"
    return replace(answer, outcome=replace(answer.outcome, reason=reason))


def _read_log(answer: Answer, worker: str, gpus: Collection[str]) -> Answer:
    """Find the GPU error in the log of a worker that died: NCCL or torch may end the process."""
    outcome = answer.outcome
    error = cuda_errors.find_cuda_error(outcome.trace) if _has_died(outcome) else None
    if error is None or error.verdict is not Verdict.FAIL or not gpus:
        return answer
    part_id = worker if worker in gpus else "node"
    finding = Finding(error.code, part_id, error.text, {"error": error.title})
    ended = replace(outcome, remedy=error.remedy, code=error.code)
    return replace(answer, items=(*answer.items, finding), outcome=ended)


def _has_died(outcome: Outcome) -> bool:
    """Whether the worker's process ended by itself, as the executor reports it."""
    return outcome.cause is Cause.CRASHED and outcome.remedy is Remedy.RERUN and not outcome.code


def _add_xids(answer: Answer, gpus: Collection[str], xids: GpuXids) -> Answer:
    """Put the Xids beside each error; they, or the driver, may name a GPU where CUDA did not."""
    software = cuda_errors.list_software_codes()
    errors: list[Finding] = []
    for error in _list_errors(answer):
        unknown = error.part_id == "node"
        marked = xids.list_marked(gpus, frozenset() if error.code in software else HARDWARE_XIDS)
        places = marked if unknown and len(marked) < len(gpus) else []
        for part_id in places or [error.part_id]:
            states = (s.text for s in xids.error_states if unknown and s.part_id == part_id)
            cause = xids.describe(part_id) or ", ".join(states)
            text = f"{error.text}; {cause}" if cause else error.text
            evidence = {**error.evidence, **xids.make_evidence(part_id)}
            errors.append(replace(error, part_id=part_id, text=text, evidence=evidence))
    return _replace_errors(answer, errors, answer.outcome)


def _explain_peer_errors(answers: Answers) -> dict[str, Answer]:
    """Turn cudaErrorContained into an ERROR if another GPU failed (driver_types.h)."""
    explained = dict(answers)
    codes = {name: {e.code for e in _list_errors(answer)} for name, answer in answers.items()}
    # A worker that only waited in vain did not fail first.
    failed_first = {
        name
        for name, answer in answers.items()
        if codes[name] - {cuda_errors.CONTAINED}
        or (not codes[name] and (_has_died(answer.outcome) or answer.outcome.cause is Cause.HUNG))
    }
    for name, answer in answers.items():
        if codes[name] == {cuda_errors.CONTAINED} and failed_first - {name}:
            outcome = replace(
                answer.outcome,
                reason="the GPU received the error of a peer over NVLink. Fix: repair the GPU that "
                "failed, and run again",
                cause=Cause.CRASHED,
                remedy=Remedy.RERUN,
                code="",
            )
            explained[name] = _replace_errors(answer, (), outcome)
    return explained


def _explain_software_errors(
    answers: Answers, gpus: Collection[str], common: frozenset[str]
) -> tuple[dict[str, Answer], frozenset[str]]:
    """Turn an error of all GPUs, or of an unknown GPU, into an ERROR if software can cause it."""
    software = cuda_errors.list_software_codes()
    places: dict[str, set[str]] = {}
    for answer in answers.values():
        for error in _list_errors(answer):
            places.setdefault(error.code, set()).add(error.part_id)
    if len(gpus) >= MIN_GPUS_ALIKE:
        common |= {c for c, parts in places.items() if c in software and parts >= set(gpus)}
    unknown = {code for code, parts in places.items() if code in software and "node" in parts}
    return {n: _explain_without_gpu(a, common, unknown) for n, a in answers.items()}, common


def _explain_without_gpu(
    answer: Answer, common: Collection[str], unknown: Collection[str]
) -> Answer:
    errors = _list_errors(answer)
    left = [e for e in errors if e.code not in common and e.code not in unknown]
    if len(left) == len(errors):
        return answer
    first = next(e for e in errors if e not in left)
    title = first.evidence.get("error", first.code)
    reason = f"CUDA did not report which GPU raised the error ({title}). Fix: {ALONE_FIX}"
    cause, remedy = Cause.CRASHED, Remedy.INSPECT
    alike = [error.code for error in errors if error.code in common]
    if cuda_errors.UNKNOWN in alike:
        reason = (
            f"every GPU raised the same error ({title}), so the driver failed, not the "
            f"GPUs. Fix: {DRIVER_FIX}"
        )
        cause, remedy = Cause.CRASHED, Remedy.REBOOT
    elif alike:
        reason = (
            f"every GPU raised the same error ({title}), so driver and torch do not match. "
            f"Fix: {VERSIONS_FIX}"
        )
        cause, remedy = Cause.MISCONFIGURED, Remedy.FIX_CONFIGURATION
    ended = replace(
        answer.outcome, verdict=Verdict.ERROR, reason=reason, cause=cause, remedy=remedy, code=""
    )
    return _replace_errors(answer, left, ended)
