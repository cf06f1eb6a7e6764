"""The pages of the book say what the code does: its commands, its settings, its links."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from itertools import dropwhile
from pathlib import Path

import click
import pytest

from hpcverify.cli import COMMANDS, LazyGroup, cli
from hpcverify.errors import write_install_command
from hpcverify.plan.config import Site, convert_config
from hpcverify.plan.suite import Suite
from hpcverify.telemetry.redfish.access import BmcLogins
from setting_tables import list_site_tables, list_suite_tables
from tests.docs.blocks import Block, list_blocks, list_commands
from tests.docs.checks_page import PAGES_FOLDER, write_check_pages
from tests.docs.pages import PAGES, ROOT, list_written_pages, write_page
from tests.reports.chromium import open_address

TEXT = "\n".join(page.read_text() for page in PAGES)
SHELLS = {"sh": "sh", "bash": "bash"}
NOT_RENDERED = ("docs/internals/", "tests/")
PATHS = re.compile(r"\]\(([^):#]+)[)#]|`(docs/[^`]*\.md|tests/[^`]*\.md)`")
"""Links to files from a page, and pages that it names by their path in the repository."""
ROOT_FLAGS = frozenset({"-q", "-v"})
STARTERS = ("hpcverify", "checks", "reports", "slurm", "monitoring", "packaging", "Makefile")
MENTIONED = re.compile(r"(bin/|.?)(?:(?<=bin/)|(?<![\w/.-]))hpcverify ([a-z]+)\b(?: ([a-z]+))?")
"""A word after the name of the program, what is before, and the next word."""
MAX_WORDS = 14_000
PLACEHOLDERS = re.compile(r"…|\.\.\.|\[")
"""What stands in a synopsis for words of the reader's own."""


@pytest.mark.parametrize("page", list_written_pages(), ids=lambda page: page.name)
def test_what_the_code_writes_into_a_page_is_what_it_would_write_today(page: Path) -> None:
    assert write_page(page.read_text()) == page.read_text(), "make reference"


def test_each_check_has_a_page_of_what_it_declares() -> None:
    pages = write_check_pages()

    assert {page.read_text() for page in pages} == {*pages.values()}, "make reference"
    assert {*PAGES_FOLDER.iterdir()} == {*pages}


def test_the_pages_of_checks_and_faults_are_short() -> None:
    reference = ROOT / "docs/reference"
    pages = [*(reference / "checks").iterdir()]
    pages += [reference / f"{name}.md" for name in ("checks", "faults", "coverage")]

    assert sum(len(page.read_text().split()) for page in pages) <= MAX_WORDS


def test_every_setting_of_a_file_has_a_meaning() -> None:
    tables = [*list_site_tables(), *list_suite_tables()]
    rows = [(table.heading, row.name) for table in tables for row in table.rows if not row.meaning]
    assert rows == []


@pytest.mark.parametrize("page", sorted({place.split(":")[0] for place, _ in list_commands()}))
def test_every_command_of_a_page_is_one_that_the_command_line_takes(page: str) -> None:
    for place, words in list_commands():
        if place.split(":")[0] != page:
            continue
        command: click.Command = cli
        context = click.Context(cli, info_name="hpcverify")
        rest = [*dropwhile(ROOT_FLAGS.__contains__, words)]
        while isinstance(command, click.Group):
            rest = command.add_default(context, rest) if isinstance(command, LazyGroup) else rest
            if not rest or rest[0].startswith("-"):
                break
            found = command.get_command(context, rest.pop(0))
            assert found is not None, place
            command, context = found, click.Context(found, context, found.name)
        rest = [word for word in rest if not PLACEHOLDERS.match(word)]
        try:
            values, beyond, _ = command.make_parser(context).parse_args(args=rest)
        except click.UsageError as error:
            pytest.fail(f"{place} {words}: {error.message}")
        assert beyond == [], (place, words)
        for parameter in command.get_params(context):
            if isinstance(parameter.type, click.Choice) and parameter.name in values:
                value = values[parameter.name]
                chosen = value if isinstance(value, list) else [value]
                assert {*chosen} <= {*parameter.type.choices}, (place, words)


def test_every_command_in_a_message_or_a_file_that_starts_hpcverify_exists() -> None:
    groups = {name: entry for name, entry in cli.entries.items() if isinstance(entry, LazyGroup)}
    inner = {name for group in groups.values() for name in group.entries} - {*COMMANDS}
    listed = subprocess.run(
        ["git", "ls-files", *STARTERS], cwd=ROOT, capture_output=True, text=True, check=True
    )
    found = [
        (path, *match.groups())
        for path in listed.stdout.splitlines()
        for match in MENTIONED.finditer((ROOT / path).read_text())
    ]
    assert len(found) > len(COMMANDS)
    for path, mark, first, second in found:
        assert first not in inner, (path, first)
        assert first in cli.all_entries or mark not in ("`", "bin/"), (path, first)
        if first in groups and second in inner - groups[first].entries.keys():
            pytest.fail(f"{path}: {first} {second}")


def list_blocks_in(*languages: str) -> list[object]:
    """List the blocks in one of *languages*, as parameters with their places."""
    return [pytest.param(b, id=b.place) for b in list_blocks() if b.language in languages]


@pytest.mark.parametrize("block", list_blocks_in(*SHELLS))
def test_every_block_for_a_shell_is_one_that_a_shell_can_read(block: Block) -> None:
    shell = [SHELLS[block.language], "-n"]
    done = subprocess.run(shell, input=block.text, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("block", list_blocks_in("toml"))
def test_every_block_of_toml_is_one_that_the_reader_of_its_file_takes(block: Block) -> None:
    raw = tomllib.loads(block.text)
    kind = Suite if "budget" in raw else BmcLogins if "login" in raw or "password" in raw else Site
    assert isinstance(convert_config(raw, kind, block.place), kind)


@pytest.mark.parametrize("block", list_blocks_in("python"))
def test_every_block_of_python_is_one_that_python_can_compile(block: Block) -> None:
    compile(block.text, block.place, "exec")


def test_every_page_asks_for_the_torch_that_doctor_asks_for() -> None:
    arguments = ROOT / "packaging/ansible/roles/hpcverify/meta/argument_specs.yml"
    asked = re.findall(r"\btorch[<>=~!]=[\d.]+\d", TEXT + arguments.read_text())
    assert [f"'{asked[0]}'"] == re.findall(r"'torch\S+'", write_install_command("torch"))
    assert len({*asked}) == 1


def test_every_target_of_make_in_a_page_exists() -> None:
    named = set(re.findall(r"(?m)(?:`|^)make ([\w-]+)", TEXT))
    targets = set(re.findall(r"(?m)^([\w-]+):", (ROOT / "Makefile").read_text()))
    assert named
    assert named - targets == set()


def test_every_module_that_a_page_runs_exists() -> None:
    modules = set(re.findall(r"python -m (tests\.[\w.]+?)[\s`)]", TEXT))
    assert modules
    assert [name for name in modules if find_spec(name) is None] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_file_that_a_page_links_to_exists(page: Path) -> None:
    """Sphinx checks the links between rendered pages only."""
    found = PATHS.findall(page.read_text())
    paths = [page.parent / link if link else ROOT / path for link, path in found]
    assert [str(path) for path in paths if not path.exists()] == []


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Render the book as `make docs` does: a link or an anchor that leads nowhere ends it."""
    folder = tmp_path_factory.mktemp("book")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-c", "docs"]
    done = subprocess.run(
        [*command, "-d", str(folder / "doctrees"), ".", str(folder / "html")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder / "html"


@pytest.mark.system
def test_every_page_is_rendered_and_found_by_the_search(site: Path) -> None:
    index = (site / "searchindex.js").read_text()
    for page in PAGES:
        name = str(page.relative_to(ROOT).with_suffix(""))
        if name.startswith(NOT_RENDERED):
            continue
        assert (site / f"{name}.html").is_file()
        assert f'"{name}"' in index


@pytest.mark.needs("chromium")
def test_the_search_finds_a_page_without_a_server(site: Path, tmp_path: Path) -> None:
    address = f"{(site / 'search.html').as_uri()}?q=quarantined"
    shown = open_address(address, tmp_path, "--virtual-time-budget=60000", "--dump-dom")
    assert "how-to/daily-operation.html" in shown.partition('id="search-results"')[2]


@pytest.mark.system
def test_the_site_needs_no_network(site: Path) -> None:
    loaded = re.compile(r'<(?:script|img|iframe)[^>]* src="(\w+:)?//|<link[^>]* href="(\w+:)?//')
    pages = [page for page in site.rglob("*.html") if loaded.search(page.read_text())]
    assert pages == []
