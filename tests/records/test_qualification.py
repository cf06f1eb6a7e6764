"""The document of a qualification is a contract, and names no node."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import msgspec
import pytest

from hpcverify.records.qualification import FILE_NAME, Qualification, write
from tests.reports.qualifications import a_qualification

SCHEMA = Path(__file__).parents[2] / "docs/schema/qualification.json"


def test_a_qualification_comes_back_from_its_file_as_it_was(tmp_path: Path) -> None:
    write(a_qualification(), tmp_path)
    text = (tmp_path / FILE_NAME).read_bytes()

    assert msgspec.json.decode(text, type=Qualification) == a_qualification()


def test_the_published_schema_fits_what_is_written() -> None:
    schema = json.loads(SCHEMA.read_text())
    document = json.loads(msgspec.json.encode(a_qualification()))

    jsonschema.validate(document, schema)
    del document["steps"]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, schema)


def test_the_published_schema_is_that_of_the_code() -> None:
    of_the_code = json.loads(json.dumps(msgspec.json.schema(Qualification)))

    assert json.loads(SCHEMA.read_text()) == of_the_code, "run: make schema"
