"""A run on a node with a mount that hangs names it, ends in time, and tells the rest."""

from __future__ import annotations

import json
import time
from pathlib import Path

from tests.cli import Cli
from tests.fuse import silent_file_system


def test_a_hung_mount_is_named_by_the_prolog_and_keeps_nothing_else(
    cli: Cli, tmp_path: Path
) -> None:
    folder = tmp_path / "home"
    folder.mkdir()
    cli.config.parent.mkdir(exist_ok=True)
    cli.config.write_text(
        "[params.host]\ndeadline = 0.5\n"
        f'[[params.host.expect]]\nnodes = "n1"\nmounts = [{{ path = "{folder}" }}]\n'
        '[[params.host.expect]]\nnodes = "n2"\nmounts = [{ path = "/none" }]\n'
    )
    with silent_file_system(folder):
        start = time.monotonic()
        runs = [json.loads(cli("run", "--suite", "prolog", "--json", "-").stdout) for _ in "ab"]
        seconds = time.monotonic() - start
    results = [{r["check"]: r for r in run["results"]} for run in runs]

    for each in results:
        assert (each["host"]["verdict"], each["host"]["cause"]) == ("error", "hung")
        assert f"{folder}: fuse of silent has not answered" in each["host"]["reason"]
        assert each["inventory"]["verdict"] == "pass"
    assert "since an earlier run" in results[1]["host"]["reason"]
    assert all("/none" not in each["host"]["reason"] for each in results)
    assert seconds < 20  # two runs that wait for half a second each
