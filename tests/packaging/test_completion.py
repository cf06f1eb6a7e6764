"""The completion files: a shell asks what is installed, whatever a person has typed."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from completion import SHELLS, write_completion
from tests.cli import COMMAND, Cli

ASK = """\
source {file}
COMP_WORDS=({typed} re) COMP_CWORD=1
_hpcverify_completion {typed} re {typed}
echo "${{COMPREPLY[@]}}"
"""


@pytest.mark.parametrize("typed", ["hpcverify", "./hpcverify"])
def test_a_file_that_is_called_like_the_command_is_not_started(
    tmp_path: Path, cli: Cli, typed: str
) -> None:
    fake = tmp_path / "hpcverify"
    fake.write_text(f"#!/bin/sh\ntouch {tmp_path}/started\n")
    fake.chmod(0o755)
    file = tmp_path / "completion"
    file.write_text(write_completion("bash", COMMAND[0]))
    done = subprocess.run(
        ["bash", "-c", ASK.format(file=file, typed=typed)],
        cwd=tmp_path,
        env=cli.environment | {"PATH": f"{tmp_path}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert set(done.stdout.split()) >= {"report"}, done.stderr
    assert not (tmp_path / "started").exists()


@pytest.mark.parametrize("shell", SHELLS)
def test_each_shell_asks_the_program_that_is_installed(shell: str) -> None:
    text = write_completion(shell, "/usr/bin/hpcverify")
    assert text.count("/usr/bin/hpcverify)") == 1
    assert "$1" not in text
