"""
The recovery action that the driver itself asks for on each GPU.

Drivers from R565 on name the action that would restore a GPU, from all that the driver
knows, NVLink and GSP included. We follow it: a GPU that needs a reset must not get the
next job. The driver also reports repairs that wait for a reset, and memory that no
repair can fix. The checksums of the InfoROM, where a GPU keeps its records, are checked
here as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import hpcverify.check as hv
from hpcverify.telemetry import problems
from hpcverify.telemetry.gpus import GpuAnswers, Recovery
from hpcverify.telemetry.vendors import NVIDIA, SourceFinder, find_source
from hpcverify_checks.node import gpu_source
from hpcverify_checks.node.fixes import write_fix

RECOVERY_ACTIONS: Mapping[str, tuple[str, hv.FindingRule]] = {
    "gpu_reset": (
        "end all its processes and {reset}",
        hv.FindingRule(hv.Verdict.FAIL, hv.Remedy.RESET_GPU, conclusive=True),
    ),
    "bus_reset": (
        "reset its PCIe bus",
        hv.FindingRule(hv.Verdict.FAIL, hv.Remedy.RESET_GPU, conclusive=True),
    ),
    "drain_and_reset": (
        "give it no new work and {reset}",
        hv.FindingRule(hv.Verdict.FAIL, hv.Remedy.RESET_GPU, conclusive=True),
    ),
    "node_reboot": (
        "reboot the node",
        hv.FindingRule(hv.Verdict.FAIL, hv.Remedy.REBOOT, conclusive=True),
    ),
    "system_reboot": (
        "reboot the system, with all the nodes that share its NVLinks",
        hv.FindingRule(hv.Verdict.FAIL, hv.Remedy.REBOOT, conclusive=True),
    ),
    "drain_p2p": (
        "end the processes that use it from other GPUs (peer to peer)",
        hv.FindingRule(hv.Verdict.WARN, hv.Remedy.INSPECT),
    ),
    "recover_imex": (
        "bring the IMEX domain back (nvidia-imex-ctl -N shows which node is missing)",
        hv.FindingRule(hv.Verdict.WARN, hv.Remedy.FIX_CONFIGURATION),
    ),
}
"""Each action: what to do, with the vendor's way to reset a GPU, and our rule.
NVML_GPU_RECOVERY_ACTION_*; NVIDIA GPU memory error management, "recovery action flag". The
two that warn are not about the GPU itself; the others are conclusive evidence:
the log has them once (Xid 154), and older drivers nowhere."""


def measure(
    ctx: hv.Context, params: hv.Params, find: SourceFinder = find_source
) -> Iterator[hv.CheckItem]:
    """Report what the driver asks for on the GPUs of this node."""
    reply = gpu_source.open_gpu_source(ctx, find).read_recovery()
    yield from report_recovery(reply, gpu_source.name_vendor(ctx))


def report_recovery(reply: GpuAnswers[Recovery], vendor: str) -> Iterator[hv.CheckItem]:
    """Report the actions and repairs in *reply*, of GPUs of *vendor*."""
    for uuid, recovery in reply.answers.items():
        yield from _report_action(uuid, recovery, vendor)
        for what, pending in (
            ("memory channel", recovery.channel_repair_pending),
            ("TPC", recovery.tpc_repair_pending),
        ):
            if pending:
                yield hv.Finding("repair_pending", uuid, f"a repair of a {what} waits for a reset")
        if recovery.unrepairable_memory:
            text = "its memory has errors that cannot be repaired any more"
            yield hv.Finding("memory_unrepairable", uuid, text)
    yield from gpu_source.report_troubles(reply)


def _report_action(uuid: str, recovery: Recovery, vendor: str) -> Iterator[hv.CheckItem]:
    if recovery.action is None:
        since = " before R565" if vendor == NVIDIA else " like this"
        text = f"unknown whether it needs a reset: drivers{since} do not say"
        yield hv.Coverage(uuid, text)
        return
    yield hv.Coverage(uuid, f"recovery action: {recovery.action.replace('_', ' ')}")
    if recovery.action in RECOVERY_ACTIONS:
        request, _ = RECOVERY_ACTIONS[recovery.action]
        todo = request.format(reset=write_fix("reset", vendor, uuid))
        yield hv.Finding(recovery.action, uuid, f"the driver asks to {todo}")
    elif recovery.action != "none":
        text = f"the driver asks for an unknown recovery action: {recovery.action}"
        yield hv.Finding("action_unknown", uuid, text)


CHECK = hv.Check(
    summary="recovery actions the driver asks for: reset, reboot, repair",
    measure=measure,
    metrics={},
    finding_rules={
        **problems.PROBLEM_RULES,
        **{name: rule for name, (_, rule) in RECOVERY_ACTIONS.items()},
        **hv.warn_on("action_unknown"),
        **hv.warn_on("repair_pending", remedy=hv.Remedy.RESET_GPU),
        **hv.fail_on("memory_unrepairable", remedy=hv.Remedy.REPLACE, conclusive=True),
    },
    placement=hv.Placement.PASSIVE,
    timeout=60,
)
