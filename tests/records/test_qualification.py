"""The document of a qualification is a contract, and names no node."""

from __future__ import annotations

from pathlib import Path

import msgspec

from hpcverify.records.qualification import FILE_NAME, Qualification, write
from tests.reports.qualifications import a_qualification


def test_a_qualification_comes_back_from_its_file_as_it_was(tmp_path: Path) -> None:
    write(a_qualification(), tmp_path)
    text = (tmp_path / FILE_NAME).read_bytes()
    assert msgspec.json.decode(text, type=Qualification) == a_qualification()
