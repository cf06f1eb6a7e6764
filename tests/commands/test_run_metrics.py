"""``hpcverify run`` leaves the metrics of a whole suite where the site says."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcverify.metrics.table import NODE_METRICS
from tests.cli import Cli
from tests.fuse import silent_file_system
from tests.metrics.reading import list_strays, read_value

FILE_NAME = "hpcverify_run_acme.prom"


@pytest.fixture
def directory(cli: Cli, tmp_path: Path) -> Path:
    """Give the directory that the site names, and a suite to run."""
    folder = tmp_path / "textfiles"
    folder.mkdir()
    cli.site(f'[metrics]\ndirectory = "{folder}"')
    cli.suite("acme", '[[check]]\nname = "steady"')
    return folder


def test_a_run_of_a_suite_is_in_its_file(cli: Cli, directory: Path) -> None:
    done = cli("run", "--suite", "acme")
    (path,) = directory.iterdir()
    text = path.read_text()

    assert done.returncode == 0, done.stderr
    assert path.name == FILE_NAME
    assert list_strays(text, NODE_METRICS) == []
    assert read_value(text, "hpcverify_run_verdict", suite="acme", verdict="pass") == 1
    labels = {"suite": "acme", "check": "steady", "verdict": "pass"}
    assert read_value(text, "hpcverify_check_verdict_info", **labels) == 1


def test_a_few_checks_are_not_the_last_run_of_their_suite(cli: Cli, directory: Path) -> None:
    cli("run", "--check", "steady")
    assert [*directory.iterdir()] == []


def test_a_text_file_that_cannot_be_written_costs_a_line_and_no_exit_status(
    cli: Cli, directory: Path
) -> None:
    (directory / FILE_NAME).mkdir()
    done = cli("run", "--suite", "acme")
    assert done.returncode == 0
    assert f"{directory / FILE_NAME} cannot be written: it is a directory" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.needs("root")
def test_a_directory_that_does_not_answer_costs_a_line_and_holds_up_nothing(
    cli: Cli, directory: Path
) -> None:
    with silent_file_system(directory):
        done = cli("run", "--suite", "acme")
    assert done.returncode == 0
    assert f"no metrics: directory {directory} did not respond within 2 s" in done.stderr


def test_a_directory_that_is_missing_costs_nothing(cli: Cli, directory: Path) -> None:
    directory.rmdir()
    done = cli("run", "--suite", "acme")
    assert done.returncode == 0
    assert "textfiles" not in done.stderr


def test_without_a_directory_nothing_is_written(cli: Cli, directory: Path) -> None:
    cli.site("")
    cli("run", "--suite", "acme")
    assert [*directory.iterdir()] == []
