"""What the commands of the tutorial show: ``python -m tests.docs.transcript``."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Sequence
from itertools import count
from pathlib import Path

from tests.reports.chromium import open_address

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/tutorial/first-sick-node.md"
SESSION = re.compile(r"(?ms)^```console\n(.*?)^```$")
PROMPT = "$ "
SEPARATOR = "\x1e"
RUN = re.compile(r"\d{8}-\d{6}-[0-9a-f]{12}")
MILLISECONDS = re.compile(r"\b\d+(?:\.\d+)? m?s\b")
COLUMNS = "100"
READERS_HOME = "/home/ann"


def list_page_commands(page: str) -> list[str]:
    """List the commands of *page*, in their order."""
    lines = (line for session in SESSION.findall(page) for line in session.splitlines())
    return [line.removeprefix(PROMPT) for line in lines if line.startswith(PROMPT)]


def run_commands(commands: Sequence[str], home: Path) -> list[str]:
    """Run *commands* in one shell, and give what each prints: without progress, ids and times."""
    after = f"status=$?; printf '{SEPARATOR}'; (exit $status)"
    script = "".join(f"{command}\n{after}\n" for command in commands)
    kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    done = subprocess.run(
        ["bash"],
        input=script,
        cwd=ROOT,
        env=kept | {"HOME": str(home), "COLUMNS": COLUMNS, "LC_ALL": "C.UTF-8"},
        capture_output=True,
        text=True,
        check=False,  # its status is that of the last command
    )
    return replace_what_changes(done.stdout.replace(str(home), READERS_HOME)).split(SEPARATOR)[:-1]


def replace_what_changes(printed: str) -> str:
    """Replace in *printed* the ids of runs and how long they took."""
    numbers = count()
    runs = dict.fromkeys(RUN.findall(printed))
    for run in runs:
        printed = printed.replace(run, f"20261123-09{next(numbers):02}00-5ca1ab1e5eed")
    return MILLISECONDS.sub("60 ms", printed)


def write_page(page: str, home: Path) -> str:
    """Give *page* with what its commands print now."""
    printed = iter(run_commands(list_page_commands(page), home))

    def write_session(session: re.Match[str]) -> str:
        commands = [line for line in session[1].splitlines() if line.startswith(PROMPT)]
        lines = [f"{command}\n{_tidy(next(printed))}" for command in commands]
        return f"```console\n{''.join(lines)}```"

    return SESSION.sub(write_session, page)


def _tidy(output: str) -> str:
    """Leave out the spaces at the ends of lines, and empty lines around *output*."""
    lines = [line.rstrip() for line in output.strip("\n").splitlines()]
    return "".join(f"{line}\n" for line in lines)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="hvtutorial-") as folder:
        PAGE.write_text(write_page(PAGE.read_text(), Path(folder)))
        report = Path(folder) / "sick-node/report.html"
        shot = (f"--screenshot={PAGE.with_name('report.png')}", "--hide-scrollbars")
        open_address(report.as_uri(), Path(folder), "--window-size=1120,780", *shot)
