"""The error states that the driver reports of GPUs: they name the GPU where CUDA does not."""

from __future__ import annotations

from collections.abc import Iterator

from hpcverify.model import Finding, Inventory
from hpcverify.telemetry import vendors
from hpcverify.telemetry.gpus import NotStartedError
from hpcverify.telemetry.vendors import SourceFinder

ERROR_STATE_CODE = "error_state"
UNCORRECTED = "ecc.uncorrected"
"""The reading that counts since the driver was loaded."""
OTHER_ACTIONS = frozenset({"none", "drain_p2p", "recover_imex"})
"""Recovery actions that are not about the GPU itself."""


def list_error_states(
    inventory: Inventory, find: SourceFinder = vendors.find_source
) -> Iterator[Finding]:
    """List the GPUs with uncorrected memory errors, and those that need a reset or a reboot."""
    source = find(vendors.name_vendor(inventory, None))
    if source is None:
        return
    try:
        memory, recovery = source.read_memory_errors().answers, source.read_recovery().answers
    except NotStartedError:
        return
    for part_id, readings in memory.items():
        count = sum(r.value for r in readings if r.name == UNCORRECTED)
        if count:
            text = f"the driver counts {count:.0f} uncorrected memory errors since it was loaded"
            yield Finding(ERROR_STATE_CODE, part_id, text)
    for part_id, state in recovery.items():
        if state.action is not None and state.action not in OTHER_ACTIONS:
            action = state.action.replace("_", " ")
            yield Finding(ERROR_STATE_CODE, part_id, f"the driver asks for this action: {action}")
