"""The document of collectives is what its schema says."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec

from hpcverify.records.collectives import CollectiveRun

SCHEMA = Path(__file__).parents[2] / "docs/schema/collectives.json"


def test_the_published_schema_is_that_of_the_code() -> None:
    of_the_code = json.loads(json.dumps(msgspec.json.schema(CollectiveRun)))

    assert json.loads(SCHEMA.read_text()) == of_the_code, "run: make schema"
