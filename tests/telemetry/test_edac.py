"""The host's memory errors."""

from __future__ import annotations

from pathlib import Path

from hpcverify.telemetry import edac
from tests.telemetry import trees


def counts(root: Path) -> dict[tuple[str, str], float]:
    return {(r.part_id, r.name): r.value for r in edac.EdacReader(root).read()}


def test_errors_are_counted_by_dimm_and_never_twice(tmp_path: Path) -> None:
    read = counts(trees.edac(tmp_path, corrected=7, uncorrected=1))
    assert read["mc0/dimm1", "ecc.corrected"] == 7
    assert sum(v for (_, name), v in read.items() if name == "ecc.corrected") == 7
    assert sum(v for (_, name), v in read.items() if name == "ecc.uncorrected") == 1


def test_a_dimm_goes_by_the_label_of_the_board(tmp_path: Path) -> None:
    first, second = edac.list_parts(trees.edac(tmp_path))
    assert (first.id, first.label) == ("mc0/dimm0", "CPU0_DIMM_A1")
    assert second.facts == {"size_mib": "32768"}


def test_older_drivers_count_by_row(tmp_path: Path) -> None:
    row = f"{trees.EDAC}/mc1/csrow0"
    trees.grow(tmp_path, {f"{row}/ce_count": 3, f"{row}/size_mb": 8192})
    assert counts(tmp_path) == {("mc1/csrow0", "ecc.corrected"): 3}
    assert [part.label for part in edac.list_parts(tmp_path)] == ["memory mc1/csrow0"]


def test_a_controller_without_dimms_counts_as_a_whole(tmp_path: Path) -> None:
    trees.grow(tmp_path, {f"{trees.EDAC}/mc0/ue_count": 2})
    assert counts(tmp_path) == {("mc0", "ecc.uncorrected"): 2}


def test_a_machine_without_edac_gives_nothing(tmp_path: Path) -> None:
    assert counts(tmp_path) == {}
    assert list(edac.list_parts(tmp_path)) == []
