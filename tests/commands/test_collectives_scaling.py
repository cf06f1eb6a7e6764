"""``hpcverify collectives --scaling``: results of different numbers of nodes, side by side."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from hpcverify.records.collectives import CollectiveRun
from tests.cli import Cli
from tests.isolation.test_scaling import build_run

pytestmark = pytest.mark.system


def write_run(path: Path, run: CollectiveRun) -> str:
    path.write_bytes(msgspec.json.encode(run))
    return str(path)


def test_each_number_of_nodes_is_shown_with_its_efficiency(cli: Cli, tmp_path: Path) -> None:
    two = write_run(tmp_path / "two.json", build_run(2, 40.0, 0.0100))
    four = write_run(tmp_path / "four.json", build_run(4, 36.0, 0.0125))

    done = cli("collectives", "--scaling", two, "--scaling", four)

    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines()[1:]]
    assert rows == [
        ["all_reduce", "1M", "2", "4", "40", "GB/s", "100%"],
        ["all_reduce", "1M", "4", "8", "36", "GB/s", "90%"],
        ["step", "2", "4", "10", "ms", "100%"],
        ["step", "4", "8", "12.5", "ms", "80%"],
    ]


def test_results_of_one_number_of_nodes_have_nothing_to_compare(cli: Cli, tmp_path: Path) -> None:
    name = write_run(tmp_path / "one.json", build_run(2, 40.0))
    assert (
        "nothing was measured on different numbers" in cli("collectives", "--scaling", name).stdout
    )


def test_a_file_that_is_no_result_is_named(cli: Cli, tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    other.write_text('{"no": "result"}')
    binary, deep = tmp_path / "binary", tmp_path / "deep.json"
    binary.write_bytes(b'{"id": "\xff\xfe"}')
    deep.write_bytes(b'{"more":' + b"[" * 100_000)
    for name in (other, binary, deep, tmp_path / "none.json"):
        done = cli("collectives", "--scaling", str(name))

        assert done.returncode == 2
        assert str(name) in done.stderr
        assert "Traceback" not in done.stderr
