"""Small Debians of their own, as a site's machines are before anything is installed."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.packaging.machine import ROOT

PATIENCE_S = 550.0
"""How long a command may take on a busy machine, less than a step of a test may."""
UNSHARE = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
MOUNT = """
enter() { # $1: the folder of a root
    mount -t overlay overlay \\
        -o "lowerdir=$1/lower,upperdir=$1/upper,workdir=$1/work" "$1/merged"
    mount -t proc proc "$1/merged/proc"
    mount --rbind /dev "$1/merged/dev"
    mount --rbind /sys "$1/merged/sys"
}
"""
PIVOT = """
cd "$1/merged"
shift
mkdir -p .machine
pivot_root . .machine
umount -l /.machine
exec "$@"
"""
"""No chroot: Apptainer refuses to run in one."""


@dataclass(frozen=True)
class Root:
    """A root whose changes lie in *folder*; its mounts last as long as a command in it."""

    folder: Path

    @property
    def upper(self) -> Path:
        """What differs from Debian."""
        return self.folder / "upper"

    @property
    def merged(self) -> Path:
        """Where the whole root is, for a command that `run_with` starts."""
        return self.folder / "merged"

    def run(self, *command: str | Path, binds: Mapping[Path, str] | None = None) -> str:
        """Run a command in it, where *binds* show paths of this machine; return its output."""
        shown = [
            f"mkdir -p {self.merged}{target}\nmount --rbind {source} {self.merged}{target}\n"
            for source, target in (binds or {}).items()
        ]
        return _unshare(
            f"{MOUNT}enter {self.folder}\n{''.join(shown)}{PIVOT}", (self.folder, *command)
        ).stdout

    def list_files(self) -> set[str]:
        """List the files that differ from those of Debian."""
        paths = self.upper.rglob("*")
        return {f"/{path.relative_to(self.upper)}" for path in paths if path.is_file()}

    def copy(self, folder: Path) -> Root:
        """Make another one that is as this one is now."""
        copied = make_root((self.folder / "lower").resolve(), folder)
        copied.upper.rmdir()
        subprocess.run(["cp", "-a", self.upper, copied.upper], check=True)
        return copied


def make_root(lower: Path, folder: Path) -> Root:
    """Make a root in a new folder, of what is below it."""
    for name in ("upper", "work", "merged"):
        (folder / name).mkdir(parents=True)
    (folder / "lower").symlink_to(lower)
    return Root(folder)


def find_debian(suite: str) -> Path:
    """Return where the Debian of this name is; it is made the first time."""
    done = subprocess.run(
        [str(ROOT / ".ci/debian"), "--ansible", suite], capture_output=True, text=True, check=True
    )
    return Path(done.stdout.strip())


def run_with(
    roots: Sequence[Root], *command: str | Path, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command of this machine that sees these roots where `Root.merged` says."""
    script = MOUNT + "".join(f"enter {root.folder}\n" for root in roots) + 'exec "$@"'
    return _unshare(script, command, environment)


def _unshare(
    script: str, arguments: Sequence[str | Path], environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a script whose mounts and processes end with it; raise if it fails."""
    command = (*UNSHARE, "sh", "-euc", script, "sh", *map(str, arguments))
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=PATIENCE_S, env=environment
    )
    try:
        done.check_returncode()
    except subprocess.CalledProcessError as failed:
        failed.add_note(done.stdout[-2000:] + done.stderr[-2000:])
        raise
    return done
