"""What is worse than its peers is one event on the first night, and one when it is over."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from hpcverify.events.event import Event
from hpcverify.insight.judgement import FleetJudgement
from hpcverify.insight.night import record_night
from hpcverify.model import Verdict
from hpcverify.trends.fleet import PartChange
from tests.fleet.builders import a_room

NIGHT = date(2026, 11, 22)
SLOWER = PartChange(
    node="n1",
    part="GPU 3",
    metric="gemm bf16.sustained",
    verdict=Verdict.WARN,
    kind="step",
    size=0.1,
    before=700.0,
    after=630.0,
    unit="TFLOP/s",
    day=NIGHT,
    why="with driver 570",
)


def test_a_change_to_the_worse_is_opened_once_and_closed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HPCVERIFY_CONFIG", "/dev/null")
    controller = a_room(tmp_path).controller
    worse = FleetJudgement(night=NIGHT, changes=(SLOWER,))
    further = replace(worse, changes=(replace(SLOWER, size=0.2, why="with driver 571"),))
    for judgement in (worse, further, FleetJudgement(night=NIGHT)):
        record_night(controller, judgement)

    lines = controller.ledger.read_lines(0, 100)
    events = [msgspec.json.decode(line, type=Event) for _, line in lines]
    assert [event.kind.value for event in events] == [
        *("outlier.opened", "night.judged", "night.judged"),
        *("outlier.closed", "night.judged"),
    ]
    opened, closed = events[0], events[3]
    assert opened.change is not None
    assert closed.change is not None
    assert (opened.node, opened.text) == ("n1", "with driver 570")
    assert opened.change.subject == closed.change.subject == ("n1 GPU 3: gemm bf16.sustained, step")
    assert events[1].text == "the night of 2026-11-22: 0 outliers, 1 change to the worse"
