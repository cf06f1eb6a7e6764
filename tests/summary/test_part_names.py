"""Several parts are named in few words, and none is left out or added."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcverify.model import Inventory, Part
from hpcverify.summary.part_names import name_parts
from tests.reports.samples import DISKS, GPUS, INVENTORY

CORES = Inventory()


@pytest.mark.parametrize(
    ("places", "named"),
    [
        ([GPUS[3].id], "GPU 3 (…4f21)"),
        ([gpu.id for gpu in GPUS], "all 8 GPUs"),
        ([gpu.id for gpu in GPUS[1:]], "GPU 1-7"),
        ([GPUS[i].id for i in (7, 0, 1, 3, 4, 6)], "GPU 0-1, 3-4, 6-7"),
        ([GPUS[0].id, GPUS[0].id], "GPU 0 (…9a0c)"),
        ([disk.id for disk in DISKS], ", ".join(disk.label for disk in DISKS)),
        (["node", GPUS[2].id, GPUS[5].id], "node, GPU 2, 5"),
        (["cpu11", "cpu2", "cpu3"], "cpu2-3, 11"),
        ([], ""),
    ],
)
def test_parts_are_named_as_ranges_of_their_numbers(places: list[str], named: str) -> None:
    assert name_parts(places, INVENTORY) == named


@given(st.sets(st.integers(0, 40), min_size=2))
def test_ranges_hold_each_number_and_no_other(numbers: set[int]) -> None:
    named = name_parts([f"cpu{n}" for n in numbers], CORES).removeprefix("cpu")
    spans = [list(map(int, span.split("-"))) for span in named.split(", ")]

    assert sorted(numbers) == [n for s in spans for n in range(s[0], s[-1] + 1)]


def test_two_parts_of_one_number_are_both_named() -> None:
    """A GPU that was exchanged has the number of the one before."""
    known = Inventory(parts=tuple(Part("gpu", f"id{i}", f"GPU 3 (…{i})") for i in range(3)))

    assert name_parts(["id0", "id1"], known) == "GPU 3 (…0), GPU 3 (…1)"
