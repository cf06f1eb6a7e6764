"""``hpcverify fleet collect`` says what it cannot keep, and not each time."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hpcverify.commands._controller import tell_once_of_measurements
from hpcverify.fleet.ledger import Ledger
from hpcverify.history.writer import MeasurementWriter


def test_without_duckdb_it_is_said_once_that_no_measurements_are_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger, writer = Ledger(tmp_path), MeasurementWriter(tmp_path, print)

    tell_once_of_measurements(ledger, writer)
    assert capsys.readouterr().err == ""
    for _ in range(2):
        tell_once_of_measurements(ledger, None)

    line = capsys.readouterr().err
    install = f"{sys.executable} -m pip install"
    assert line.count(f"not kept for peers and trends without duckdb: {install}") == 1
    tell_once_of_measurements(ledger, writer)
    tell_once_of_measurements(ledger, None)
    assert capsys.readouterr().err == line
