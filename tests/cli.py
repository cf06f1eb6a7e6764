"""The command line with a state, a site and a node of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import dedent

from tests.warm import run_warm

COMMAND = (str(Path(sys.executable).with_name("hpcverify")),)
HERE = Path(__file__).parent


@dataclass
class Cli:
    """Runs ``hpcverify`` and collects what it prints."""

    state: Path
    config: Path
    command: tuple[str, ...] = COMMAND
    node: str = "n1"
    environment: dict[str, str] = field(default_factory=dict[str, str])
    preload: str = ""
    """The module to install in the process that a warm one is forked from."""

    def __call__(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run one command to its end, in a warm process if it is hpcverify alone."""
        if self.command == COMMAND:
            return run_warm(list(arguments), self.environment, preload=self.preload)
        return subprocess.run(
            [*self.command, *arguments],
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start one command, with both outputs captured."""
        pipe, command = subprocess.PIPE, [*self.command, *arguments]
        return subprocess.Popen(command, env=self.environment, stdout=pipe, stderr=pipe, text=True)

    def list_documents(self) -> list[Path]:
        """List the run documents, oldest first."""
        return sorted((self.state / "runs").glob("*.json"))

    def site(self, text: str) -> None:
        """Write the site file, which names the checks of the tests."""
        self.config.write_text(f'check_packages = ["acme_checks"]\n{text}\n')

    def suite(self, name: str, checks: str, budget: float = 120) -> None:
        """Write a suite of the site's own."""
        folder = self.config.parent / "suites"
        folder.mkdir(exist_ok=True)
        head = f'summary = "of the tests"\nbudget = {budget}\n'
        (folder / f"{name}.toml").write_text(head + dedent(checks))

    def suite_budget(self, name: str, seconds: float) -> None:
        path = self.config.parent / "suites" / f"{name}.toml"
        path.write_text(path.read_text().replace("budget = 120", f"budget = {seconds}"))


def gone(pid: int) -> bool:
    """Whether *pid* is no more; a zombie is still there."""
    return not Path(f"/proc/{pid}").exists()


def is_alive(pid: int) -> bool:
    """Whether *pid* runs; a zombie that nobody has waited for does not."""
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2]
    except OSError:
        return False


@contextmanager
def open_closed_pipe() -> Generator[int]:
    """Give the end of a pipe that nobody reads."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        yield writer
    finally:
        os.close(writer)


def make_cli(folder: Path) -> Cli:
    """Make one whose state is empty."""
    config = folder / "etc" / "site.toml"
    config.parent.mkdir()
    made = Cli(state=folder / "state", config=config)
    made.environment = {
        **os.environ,
        "HPCVERIFY_STATE": str(made.state),
        "HPCVERIFY_CONFIG": str(config),
        "SLURMD_NODENAME": made.node,
        "PYTHONPATH": str(HERE / "site"),
        "COLUMNS": "120",
        # Beside other work, threads that wait for each other cost more than they do.
        "OMP_NUM_THREADS": "1",
    }
    made.site("")
    return made
