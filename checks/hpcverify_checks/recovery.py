"""
What the driver itself wants done about a GPU.

Drivers from R565 on keep, for each GPU, what would bring it back into order: the one
answer that has everything in it which the driver knows, NVLink and GSP included. It is
taken at its word: a GPU that asks for a reset must not get the next job. Beside it the
driver tells of repairs that wait for a reset, and of memory that none will mend. The
checksums of the InfoROM, which keeps a GPU's records, are looked at here as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from hpcverify.check import Check, Context, Params, Placement
from hpcverify.model import CheckItem, Coverage, Finding, FindingRule, Remedy, Verdict
from hpcverify.telemetry import problems
from hpcverify.telemetry.gpus import GpuAnswers, Recovery
from hpcverify_checks.common import gpu_source

RECOVERY_ACTIONS: Mapping[str, tuple[str, FindingRule]] = {
    "gpu_reset": (
        "end all its processes and reset it (nvidia-smi -r)",
        FindingRule(Verdict.FAIL, Remedy.RESET_GPU, hard=True),
    ),
    "bus_reset": ("reset its PCIe bus", FindingRule(Verdict.FAIL, Remedy.RESET_GPU, hard=True)),
    "drain_and_reset": (
        "give it no new work and reset it (nvidia-smi -r)",
        FindingRule(Verdict.FAIL, Remedy.RESET_GPU, hard=True),
    ),
    "node_reboot": ("reboot the node", FindingRule(Verdict.FAIL, Remedy.REBOOT, hard=True)),
    "system_reboot": (
        "reboot the system, with all the nodes that share its NVLinks",
        FindingRule(Verdict.FAIL, Remedy.REBOOT, hard=True),
    ),
    "drain_p2p": (
        "end the processes that use it from other GPUs (peer to peer)",
        FindingRule(Verdict.WARN, Remedy.INSPECT),
    ),
    "recover_imex": (
        "bring the IMEX domain back (nvidia-imex-ctl -N shows who is missing)",
        FindingRule(Verdict.WARN, Remedy.FIX_CONFIGURATION),
    ),
}
"""What the driver may want done about a GPU, in words, and what that means here.
NVML_GPU_RECOVERY_ACTION_*; NVIDIA GPU memory error management, "recovery action
flag". The two that warn say nothing against the GPU itself; the others are hard
evidence, for the log tells of them once (Xid 154) and older drivers nowhere else."""


def measure(ctx: Context, params: Params) -> Iterator[CheckItem]:
    """Yield what the driver wants done about the GPUs of this node."""
    yield from report_recovery(gpu_source.open_gpu_source(ctx).read_recovery())


def report_recovery(heard: GpuAnswers[Recovery]) -> Iterator[CheckItem]:
    """Yield what is to be done, by what was *heard*."""
    for uuid, recovery in heard.answers.items():
        yield from _report_action(uuid, recovery)
        yield from _report_repairs(uuid, recovery)
    yield from gpu_source.report_troubles(heard)


def _report_action(uuid: str, recovery: Recovery) -> Iterator[CheckItem]:
    if recovery.action is None:
        text = "cannot tell whether it needs a reset: drivers before R565 do not say"
        yield Coverage(uuid, text)
        return
    yield Coverage(uuid, f"recovery action: {recovery.action.replace('_', ' ')}")
    if recovery.action in RECOVERY_ACTIONS:
        words, _ = RECOVERY_ACTIONS[recovery.action]
        yield Finding(recovery.action, uuid, f"the driver asks to {words}")
    elif recovery.action != "none":
        text = f"the driver asks for an unknown recovery action: {recovery.action}"
        yield Finding("action_unknown", uuid, text)


def _report_repairs(uuid: str, recovery: Recovery) -> Iterator[Finding]:
    waiting = {
        "memory channel": recovery.channel_repair_pending,
        "TPC": recovery.tpc_repair_pending,
    }
    for what, pending in waiting.items():
        if pending:
            yield Finding("repair_pending", uuid, f"a repair of a {what} waits for a reset")
    if recovery.unrepairable_memory:
        text = "its memory has errors that can no longer be repaired"
        yield Finding("memory_unrepairable", uuid, text)


CHECK = Check(
    summary="recovery actions the driver asks for: reset, reboot, repair",
    measure=measure,
    metrics={},
    finding_rules={
        **problems.PROBLEM_RULES,
        **{name: ruling for name, (_, ruling) in RECOVERY_ACTIONS.items()},
        "action_unknown": FindingRule(Verdict.WARN, Remedy.INSPECT),
        "repair_pending": FindingRule(Verdict.WARN, Remedy.RESET_GPU),
        "memory_unrepairable": FindingRule(Verdict.FAIL, Remedy.REPLACE, hard=True),
    },
    placement=Placement.PASSIVE,
    timeout=60,
)
