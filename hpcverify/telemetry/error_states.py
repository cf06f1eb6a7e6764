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
    """
    List the GPUs that need a reset or a reboot; if there are none, those with memory errors.

    The count of uncorrected errors is since the driver was loaded, and may be of last month:
    it says nothing where the driver asks for an action on another GPU, or where one of them
    is in trouble and cannot answer.
    """
    source = find(vendors.name_vendor(inventory, None))
    if source is None:
        return
    try:
        memory, recovery = source.read_memory_errors(), source.read_recovery()
    except NotStartedError:
        return
    actions = {
        part_id: state.action.replace("_", " ")
        for part_id, state in recovery.answers.items()
        if state.action is not None and state.action not in OTHER_ACTIONS
    }
    for part_id, action in actions.items():
        yield Finding(ERROR_STATE_CODE, part_id, f"the driver asks for this action: {action}")
    if actions or memory.findings:
        return
    for part_id, readings in memory.answers.items():
        count = sum(r.value for r in readings if r.name == UNCORRECTED)
        if count:
            text = f"the driver counts {count:.0f} uncorrected memory errors since it was loaded"
            yield Finding(ERROR_STATE_CODE, part_id, text)
