"""
Faults of arithmetic that change nothing in a product that does not round.

No plan of integers finds them: only the one whose outputs are rounded once. That the whole
check accuses the core that has them, and no other, is in `test_injections`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcverify_checks.exact.families import CPU_FAMILIES
from hpcverify_checks.sdc.prepare import prepare
from tests.checks.sdc import faulty_library as faulty
from tests.checks.sdc.benches import a_task
from tests.checks.sdc.faulty_library import FaultyProducts, Harm, is_any_core

BOTH = (
    faulty.lose_low_bit,
    faulty.flush_results,
    faulty.flush_operands,
    faulty.saturate,
    faulty.err_on_full_significands,
)
CASES = [*((harm, name) for harm in BOTH for name in ("fp32", "fp64"))]


@pytest.mark.parametrize(
    ("harm", "name"),
    [*CASES, (faulty.round_towards_zero, "fp32")],
    ids=lambda x: getattr(x, "__name__", x),
)
def test_only_the_sparse_plan_finds_a_fault_of_rounding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, harm: Harm, name: str
) -> None:
    FaultyProducts(harm, is_any_core).put_into(monkeypatch)
    prepared = prepare(a_task(tmp_path, family=CPU_FAMILIES[name]))
    assert prepared.failures
    for failure in prepared.failures:
        assert failure.corruption
        assert failure.corruption.evidence["plan"].startswith("sparse")
        assert "persistent: 3 of 3" in failure.corruption.text
