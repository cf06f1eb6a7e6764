"""What shows only under load is seen there, for what it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcverify.limits.specs import load_specs
from tests.faults.loaded import judged, watched
from tests.faults.table import LOADED, Fault
from tests.nvml_lab.nvmllab import Lab
from tests.nvml_lab.parts import profile

(H100,) = (sheet for sheet in load_specs() if sheet.key == "h100-sxm5-80gb")


@pytest.mark.system
@pytest.mark.parametrize("fault", LOADED, ids=lambda fault: fault.name)
def test_a_fault_under_load_is_seen_for_what_it_is(lab: Lab, tmp_path: Path, fault: Fault) -> None:
    inventory, watch = watched(lab, [*profile(H100, busy=True), *fault.lines])
    results = {r.check: r for r in judged(inventory, watch, tmp_path)}
    result = results[fault.check]

    assert result.verdict is fault.verdict, result.reason
    assert fault.says in result.reason
    assert (result.remedy, result.cause) == (fault.remedy, fault.cause)
