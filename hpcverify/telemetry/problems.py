"""
What can keep us from seeing a node's GPUs, by the code of the finding.

Two kinds that must not be mixed: the node's set-up hides GPUs from us (which says
nothing of the hardware), or a GPU that ought to answer does not.
"""

from __future__ import annotations

from msgspec.structs import replace

from hpcverify.model import Cause, Finding, FindingRule, Inventory, Remedy, Verdict

VIEW_CAUSES = {
    "driver_not_loaded": Cause.MISCONFIGURED,
    "driver_mismatch": Cause.MISCONFIGURED,
    "probe_failed": Cause.CRASHED,
    "nvml_failed": Cause.MISCONFIGURED,
    "gpu_unreadable": Cause.MISCONFIGURED,
    "gpu_hung": Cause.HUNG,
    "gpu_blocked": Cause.HUNG,
    "partial_view": Cause.PARTIAL_VIEW,
}
"""Problems of the view, with the cause of the ERROR that they amount to."""

DRIVER_CODES = ("driver_not_loaded", "driver_mismatch", "nvml_failed")

BROKEN_CODES = (
    "gpu_lost",
    "gpu_missing",
    "gpu_reset_required",
    "gpu_inforom_corrupted",
    "gpu_unpowered",
)

CUT_UP_CODES = ("gpu_mig", "gpu_partitioned")
"""A GPU in several pieces, by NVIDIA's name for that or by AMD's."""

NOT_USED = "gpu_not_used"
"""A GPU that did not come back from an earlier check of the run, which says so."""

ERROR_STATE_CODE = "error_state"
"""What the driver holds against a GPU, where CUDA does not name the one that raised an error."""

UNREACHABLE_CAUSES = {
    **VIEW_CAUSES,
    **dict.fromkeys(CUT_UP_CODES, Cause.PARTIAL_VIEW),
    NOT_USED: Cause.HUNG,
}
"""Why nothing can be computed on a GPU. One that is cut up, or that hung in an earlier
check of the run, can be read all the same."""

VIEW_REMEDIES = {
    "gpu_hung": Remedy.REBOOT,
    "gpu_blocked": Remedy.RERUN,
    "gpu_unreadable": Remedy.INSPECT,
    "probe_failed": Remedy.RERUN,
}
"""Problems of the view that no setting undoes."""

UNREACHABLE_REMEDIES = {
    **dict.fromkeys((*VIEW_CAUSES, *CUT_UP_CODES), Remedy.FIX_CONFIGURATION),
    **VIEW_REMEDIES,
}
"""Used where a check cannot compute on a GPU; the others need somebody to look."""

MUTE = "gpu_mute"
"""A GPU that answers no call while others like it do: its handle is not valid, as after a reset."""

SINGLE_CHECK_CODES = ("gpu_flaky", "gpu_unlike", "gpu_silent")
"""Problems with the questions of one check: another check may have met others."""

_RULES = {
    "gpu_missing": FindingRule(Verdict.FAIL, Remedy.REBOOT, conclusive=True),
    "gpu_lost": FindingRule(Verdict.FAIL, Remedy.REBOOT, conclusive=True),
    "gpu_reset_required": FindingRule(Verdict.FAIL, Remedy.RESET_GPU),
    "gpu_inforom_corrupted": FindingRule(Verdict.FAIL, Remedy.CONTACT_VENDOR),
    "gpu_unpowered": FindingRule(Verdict.FAIL, Remedy.INSPECT),
    "gpu_flaky": FindingRule(Verdict.WARN, Remedy.RERUN),
    "gpu_slow": FindingRule(Verdict.WARN, Remedy.INSPECT),
    "gpu_unread": FindingRule(Verdict.ERROR, Remedy.RERUN, Cause.UNMEASURED),
    "gpu_unlike": FindingRule(Verdict.WARN, Remedy.INSPECT),
    "gpu_silent": FindingRule(Verdict.ERROR, Remedy.INSPECT, Cause.UNMEASURED),
    MUTE: FindingRule(Verdict.ERROR, Remedy.INSPECT, Cause.UNMEASURED),
    **dict.fromkeys((*CUT_UP_CODES, NOT_USED), FindingRule(Verdict.PASS, Remedy.NONE)),
    **{
        code: FindingRule(Verdict.ERROR, VIEW_REMEDIES.get(code, Remedy.FIX_CONFIGURATION), cause)
        for code, cause in VIEW_CAUSES.items()
    },
}
PROBLEM_RULES = {
    code: replace(rule, shared=code not in SINGLE_CHECK_CODES) for code, rule in _RULES.items()
}
"""What each of them means, for every check that meets one."""


def list_view_problems(inventory: Inventory) -> tuple[Finding, ...]:
    """List what hides parts of the node; with none, absence means loss."""
    return tuple(p for p in inventory.problems if p.code in VIEW_CAUSES)
