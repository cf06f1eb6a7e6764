"""Runs the hooks as slurmd does: by their path, with next to no environment."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.waiting import PATIENCE_S

HERE = Path(__file__).parents[2] / "slurm"
LATER = 99_999_999_999
USER = "4242"


@dataclass(frozen=True)
class Hooks:
    """The hooks of a node, their settings, and what they take for hpcverify."""

    folder: Path
    shell: tuple[str, ...] = ()

    @property
    def state(self) -> Path:
        return self.folder / "state"

    @property
    def settings(self) -> Path:
        """The file that the hooks read."""
        return self.folder / "hooks.conf"

    @property
    def called(self) -> Path:
        return self.folder / "called"

    def prepare(self, **more: object) -> None:
        """Write the settings, *more* of them in place of the usual."""
        self.state.mkdir(exist_ok=True)
        values = {
            "HPCVERIFY": self.folder / "hpcverify",
            "HPCVERIFY_STATE": self.state,
            "HPCVERIFY_SPOOL": self.folder / "spool",
            "HPCVERIFY_DEADLINE": 2,
            "HPCVERIFY_USERS": 0,
            **more,
        }
        lines = (f"{name}={value}\n" for name, value in values.items())
        self.settings.write_text("# settings\n" + "".join(lines))

    def command(self, *lines: str, place: bool = True) -> None:
        """Put a script in the place of hpcverify, which notes its arguments; *place* to refuse."""
        script = self.folder / "hpcverify"
        note = f'echo "$@" >>{self.called}'
        asked = f"case $* in *--take-place) exit {int(not place)};; esac"
        script.write_text("\n".join(("#!/bin/sh", note, asked, *lines, "")))
        script.chmod(0o755)

    def word(self, text: str) -> None:
        """Let the controller's word be *text*, whatever that is."""
        (self.state / "gate").write_text(text)

    def start(self, hook: str) -> subprocess.Popen[bytes]:
        """Start a hook, of which nobody reads what it prints."""
        return subprocess.Popen(
            [*self.shell, HERE / hook, self.settings],
            env={"SLURMD_NODENAME": "n1", "SLURM_JOB_UID": USER},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def __call__(
        self, hook: str, user: str = USER, **environ: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a hook to its end; whatever holds its standard output counts as well."""
        return subprocess.run(
            [*self.shell, HERE / hook, self.settings],
            env={"SLURMD_NODENAME": "n1", "SLURM_JOB_UID": user, **environ},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
