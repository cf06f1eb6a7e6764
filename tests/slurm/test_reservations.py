"""What Slurm says of its reservations."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcverify.errors import SlurmError
from hpcverify.slurm.reservations import from_text

RECORDED = Path(__file__).with_name("recorded")
RESERVED = "ReservationName=a StartTime=1 Nodes={nodes} Flags={flags} State=ACTIVE\n"


@pytest.mark.parametrize("version", ["22.05", "24.11"])
def test_a_reservation_is_read_with_its_nodes_and_flags(version: str) -> None:
    found = from_text((RECORDED / f"reservation-{version}.txt").read_text())
    assert (list(found), found["hv-n3"].nodes) == (["hv-n3", "licences"], ("n3",))
    assert found["hv-n3"].flags == {"MAINT", "IGNORE_JOBS", "SPEC_NODES"}


def test_a_list_of_nodes_is_expanded() -> None:
    found = from_text(RESERVED.format(nodes="n[1-2],x7", flags="(null)"))
    assert (found["a"].nodes, found["a"].flags) == (("n1", "n2", "x7"), frozenset())


def test_a_reservation_without_nodes_is_read() -> None:
    assert from_text(RESERVED.format(nodes="(null)", flags="FLEX"))["a"].nodes == ()


def test_that_there_is_none_is_said_in_words() -> None:
    assert from_text("No reservations in the system\n") == {}
    with pytest.raises(SlurmError, match="nothing"):
        from_text("\n")


def test_an_answer_that_breaks_off_is_none() -> None:
    with pytest.raises(SlurmError, match="is incomplete"):
        from_text("ReservationName=a StartTime=1 Nod")
