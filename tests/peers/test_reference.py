"""A learned reference is a file that is written once."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcverify.errors import ConfigError, UnusableError
from hpcverify.peers.document import judge_fleet, learn_reference
from hpcverify.peers.floors import PeerFloor
from hpcverify.peers.reference import FleetReference, read_reference, write_reference
from hpcverify.peers.values import PartRuns, PartValue, reduce_runs
from tests.peers.fleets import NAME

DAY = 86400.0


def make_reference() -> tuple[FleetReference, list[PartValue]]:
    runs = [
        PartRuns(f"n{i}", "gpu0", {"driver": "580.1"}, [100.0 + i % 3], [DAY * (20000 + i % 5)])
        for i in range(40)
    ]
    parts = [value for part in runs if (value := reduce_runs(part))]
    return learn_reference({NAME: parts}, "sweep", DAY * 20010), parts


def test_a_reference_keeps_its_sample_its_days_and_its_versions(tmp_path: Path) -> None:
    reference, _ = make_reference()
    path = tmp_path / "reference.json"

    write_reference(path, reference)
    (entry,) = reference.metrics

    assert read_reference(path) == reference
    assert (entry.median, entry.parts, entry.nodes) == (101.0, 40, 40)
    assert (reference.first, reference.last) == ("2024-10-04", "2024-10-08")
    assert (reference.learned, reference.versions) == ("2024-10-14", {"driver": ("580.1",)})


def test_a_reference_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "reference.json"
    path.write_text("reviewed")
    with pytest.raises(UnusableError, match="never moves by itself"):
        write_reference(path, make_reference()[0])
    assert path.read_text() == "reviewed"


@pytest.mark.parametrize("text", ["", "[]", '{"format": 9, "learned": "x", "source": "y"}'])
def test_what_is_no_reference_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "reference.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"reference\.json"):
        read_reference(path)


def test_judging_by_a_reference_says_of_which_day_it_is() -> None:
    reference, parts = make_reference()

    document = judge_fleet(
        {NAME: parts},
        source="sweep",
        find_floor=lambda *_: PeerFloor(floor=0.02, worse="low"),
        reference=reference,
    )

    assert (document.reference, document.metrics[0].moved) == ("2024-10-14", 0.0)
