"""The schemas that are published are those of the code, and fit what is written."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest

from hpcverify.commands.gate import GateDocument
from hpcverify.commands.history import HistoryDocument
from hpcverify.events.event import (
    SCHEMA,
    Actor,
    Event,
    EventKind,
    FindingState,
    Severity,
    StateChange,
)
from hpcverify.insight.morning import MorningReport
from hpcverify.insight.outlook import ReliabilityReport
from hpcverify.insight.overview import NodesDocument
from hpcverify.model import Remedy, Run, Verdict
from hpcverify.records.collectives import CollectiveRun
from tests.doubles import a_run


def an_event() -> Event:
    """Make an event with a finding and a change."""
    return Event(
        schema=SCHEMA,
        number=7,
        id="c0ffee-7",
        time=datetime(2026, 11, 23, tzinfo=UTC),
        kind=EventKind.FINDING_OPENED,
        severity=Severity.HIGH,
        actor=Actor(name="hpcverify", host="ctl1"),
        previous="0" * 64,
        node="n1",
        change=StateChange(subject="", before="healthy", after="suspect"),
        finding=FindingState(
            uid="ab",
            part="GPU-1",
            label="GPU 1",
            check="gemm",
            code="slow",
            verdict=Verdict.FAIL,
            remedy=Remedy.INSPECT,
        ),
    )


SCHEMAS = Path(__file__).parents[2] / "docs/reference/schema"


@pytest.mark.parametrize(
    ("name", "document"),
    [
        ("run", Run),
        ("collectives", CollectiveRun),
        ("fleet", MorningReport),
        ("gate", GateDocument),
        ("history", HistoryDocument),
        ("nodes", NodesDocument),
        ("reliability", ReliabilityReport),
        ("event", Event),
    ],
)
def test_the_published_schema_is_that_of_the_code(name: str, document: type[Any]) -> None:
    of_the_code = json.loads(json.dumps(msgspec.json.schema(document)))
    assert json.loads((SCHEMAS / f"{name}.json").read_text()) == of_the_code, "run: make schema"


@pytest.mark.parametrize(
    ("name", "written", "required"),
    [
        ("run", a_run(), "verdict"),
        ("event", an_event(), "previous"),
    ],
    ids=["run", "event"],
)
def test_the_published_schema_fits_what_is_written(
    name: str, written: object, required: str
) -> None:
    schema = json.loads((SCHEMAS / f"{name}.json").read_text())
    document = json.loads(msgspec.json.encode(written))

    jsonschema.validate(document, schema)
    del document[required]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, schema)
