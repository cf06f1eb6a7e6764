"""The schemas that are published are those of the code, and fit what is written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest

from hpcverify.commands.gate import GateDocument
from hpcverify.commands.history import HistoryDocument
from hpcverify.insight.nodes_document import NodesDocument
from hpcverify.insight.reliability_document import ReliabilityDocument
from hpcverify.model import Run
from hpcverify.records.collectives import CollectiveRun
from hpcverify.records.qualification import Qualification
from tests.doubles import a_run
from tests.reports.qualifications import a_qualification

SCHEMAS = Path(__file__).parents[2] / "docs/reference/schema"


@pytest.mark.parametrize(
    ("name", "document"),
    [
        ("run", Run),
        ("collectives", CollectiveRun),
        ("qualification", Qualification),
        ("gate", GateDocument),
        ("history", HistoryDocument),
        ("nodes", NodesDocument),
        ("reliability", ReliabilityDocument),
    ],
)
def test_the_published_schema_is_that_of_the_code(name: str, document: type[Any]) -> None:
    of_the_code = json.loads(json.dumps(msgspec.json.schema(document)))

    assert json.loads((SCHEMAS / f"{name}.json").read_text()) == of_the_code, "run: make schema"


@pytest.mark.parametrize(
    ("name", "written", "required"),
    [("run", a_run(), "verdict"), ("qualification", a_qualification(), "steps")],
    ids=["run", "qualification"],
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
