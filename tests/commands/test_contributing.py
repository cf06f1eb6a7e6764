"""The check that docs/how-to/write-a-check.md builds is one file, and all there is to add."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hpcverify.plan.catalog import list_check_names, load_check
from tests.cli import Cli

ROOT = Path(__file__).parents[2]


PAGE = ROOT / "docs/how-to/write-a-check.md"
CHECK, TEST = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
"""The check that the page builds, and its test."""


@pytest.fixture
def site(cli: Cli, tmp_path: Path) -> Cli:
    """Add the file of the walk-through to a package of the site's."""
    package = tmp_path / "walkthrough_checks"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "clock.py").write_text(CHECK)
    cli.config.write_text('check_packages = ["walkthrough_checks"]')
    cli.environment["PYTHONPATH"] = str(tmp_path)
    return cli


def chronyd_says(cli: Cli, tmp_path: Path, offset: float) -> None:
    """Stand in for the time daemon, which a test must not start."""
    tools = tmp_path / "tools"
    tools.mkdir(exist_ok=True)
    (tools / "chronyc").write_text(f"#!/bin/sh\necho id,true.example,2,0,{offset}\n")
    (tools / "chronyc").chmod(0o755)
    cli.environment["PATH"] = f"{tools}:{cli.environment['PATH']}"


@pytest.mark.parametrize(("offset", "verdict"), [(0.001, "pass"), (-0.499, "pass"), (-0.7, "warn")])
def test_it_is_run_and_judged(site: Cli, tmp_path: Path, offset: float, verdict: str) -> None:
    chronyd_says(site, tmp_path, offset)
    assert json.loads(site("run", "--check", "clock", "--json").stdout)["verdict"] == verdict


def test_it_is_listed_planned_and_shown(site: Cli, tmp_path: Path) -> None:
    chronyd_says(site, tmp_path, -0.7)
    site("run", "--check", "clock")
    ours = [load_check(name) for name in list_check_names(("hpcverify_checks",))]
    run_by_all = [check for check in ours if not check.only_named]

    assert "the clock against true time" in site("checks").stdout
    assert f"suite quick: {len(run_by_all) + 1} checks" in site("config", "check").stdout
    assert "offset 700 ms > 500 (our job timeouts)" in site("show").stdout
    assert "our job timeouts" in site("report", "-o", "-").stdout


def test_its_test_passes(site: Cli, tmp_path: Path) -> None:
    test = tmp_path / "test_clock.py"
    test.write_text(TEST.replace("hpcverify_checks.", "walkthrough_checks."))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", test],
        env=os.environ | site.environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout


def test_without_its_tool_it_is_an_error_that_names_it(site: Cli, tmp_path: Path) -> None:
    site.environment["PATH"] = str(tmp_path)  # this machine may have the tool
    done = site("run", "--check", "clock", "--json")
    (result,) = json.loads(done.stdout)["results"]
    assert done.returncode == 3
    assert result["reason"] == "chronyc is not installed: apt-get install chrony"
