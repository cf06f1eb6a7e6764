"""The man pages: one for each command, one for site.toml, as man reads them."""

from __future__ import annotations

import gzip
import subprocess
from pathlib import Path

import msgspec
import pytest

from hpcverify.cli import COMMANDS
from hpcverify.plan.config import SiteFile
from manual import write_manual
from setting_tables import list_site_tables

pytestmark = pytest.mark.needs("man")

SITE_PAGE = "hpcverify-site.toml.5.gz"


@pytest.fixture(scope="module")
def manual(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("man")
    write_manual(folder, "1.2", 1_700_000_000)
    return folder


def show(page: Path) -> str:
    """Return a page as man prints it; a mistake in it fails."""
    shown = subprocess.run(
        ["man", "--warnings", "--local-file", page],
        env={"MANWIDTH": "80", "PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stderr == ""
    return shown.stdout


def test_each_command_has_a_page(manual: Path) -> None:
    pages = {path.name for path in manual.iterdir()}
    assert pages >= {f"hpcverify-{name}.8.gz" for name in COMMANDS}
    assert pages >= {"hpcverify.8.gz", "hpcverify-config-check.8.gz", "hpcverify-site.toml.5.gz"}


def test_man_reads_each_page_without_a_warning(manual: Path) -> None:
    for page in manual.iterdir():
        lines = show(page).splitlines()
        assert "NAME" in lines
        assert "SEE ALSO" in lines


def test_a_page_has_options_and_examples_as_the_help_has(manual: Path) -> None:
    lines = [" ".join(line.split()) for line in show(manual / "hpcverify-run.8.gz").splitlines()]
    assert "--expect-gpus N" in lines
    assert lines[lines.index("EXAMPLES") + 1] == "hpcverify run"


def test_a_page_shows_its_version_and_the_day_of_the_commit(manual: Path) -> None:
    assert "hpcverify 1.2" in show(manual / "hpcverify.8.gz")
    assert "2023-11-14" in show(manual / "hpcverify.8.gz")


def test_the_page_of_the_site_file_has_each_setting_with_its_default(manual: Path) -> None:
    lines = {" ".join(line.split()) for line in show(manual / SITE_PAGE).splitlines()}
    tables = list(list_site_tables())
    headings = {table.heading.strip("[]") for table in tables}
    top = {row.name for row in tables[0].rows}

    assert {field.name for field in msgspec.structs.fields(SiteFile)} <= headings | top
    assert headings - {""} <= {line.strip("[]") for line in lines}
    assert {"at_once = 16 (integer >= 1, <= 100000)", "The most nodes to verify at once."} <= lines


def test_pages_do_not_depend_on_when_they_are_written(manual: Path, tmp_path: Path) -> None:
    write_manual(tmp_path, "1.2", 1_700_000_000)
    for page in manual.iterdir():
        assert (tmp_path / page.name).read_bytes() == page.read_bytes()
        assert gzip.decompress(page.read_bytes()).startswith(b".TH ")
