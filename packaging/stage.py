"""
Lay out /opt/hpcverify as the packages install it: for a node, and what a controller adds.

It is a virtual environment of the distribution's Python, at its final path. Nothing in it
depends on when and where it was made.
"""

from __future__ import annotations

import filecmp
import os
import shutil
from pathlib import Path
from tomllib import loads

from wheels import install_wheels, run_pip

HOME = "/opt/hpcverify"
SCRIPT = """\
#!{home}/bin/python3
import sys

from {module} import {function}

sys.exit({function}())
"""
PIP = {"pip": "pip._internal.cli.main:main"}
LEFT_OUT = ("bin", "**/*.exe", "*.dist-info/RECORD", "*.dist-info/REQUESTED")
"""
Commands of libraries, those of Windows, and what lets pip remove a library: these belong
to the package, and pip refuses to replace them.
"""


def stage_node(wheel: Path, requirements: Path, python: str, root: Path) -> None:
    """Make the environment of a node at *root*: *wheel*, and what it needs without torch."""
    packages = root / f"lib/python{python}/site-packages"
    install_wheels(requirements, python, packages)
    run_pip(*("install", "--no-compile", "--no-deps", "--no-index", "--target", packages), wheel)
    for folder in ("slurm", "monitoring"):  # the packages have each file at its place
        shutil.rmtree(packages / "hpcverify/share" / folder)
    _tidy(packages)
    programs = root / "bin"
    programs.mkdir()
    scripts = loads(Path("pyproject.toml").read_text())["project"]["scripts"]
    for name, entry in (scripts | PIP).items():
        module, _, function = entry.partition(":")
        script = programs / name
        script.write_text(SCRIPT.format(home=HOME, module=module, function=function))
        script.chmod(0o755)
    (programs / "python3").symlink_to(f"/usr/bin/python{python}")
    (programs / "python").symlink_to("python3")
    (root / "pyvenv.cfg").write_text(
        f"home = /usr/bin\ninclude-system-site-packages = false\nversion = {python}\n"
    )


def stage_controller(requirements: Path, python: str, root: Path, node: Path) -> None:
    """Make at *root* what a controller needs beyond the environment of a *node*."""
    packages = root / f"lib/python{python}/site-packages"
    install_wheels(requirements, python, packages)
    _tidy(packages)
    for path in _list_files(root):
        present = node / path.relative_to(root)
        if present.exists():
            if not filecmp.cmp(path, present, shallow=False):
                raise ValueError(f"{path} is not the file that the package of the node has")
            path.unlink()
    for folder in sorted((path for path in root.rglob("*") if path.is_dir()), reverse=True):
        if not any(folder.iterdir()):
            folder.rmdir()


def _tidy(packages: Path) -> None:
    for pattern in LEFT_OUT:
        for path in list(packages.glob(pattern)):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
    for installer in packages.glob("*.dist-info/INSTALLER"):
        installer.write_text("package of hpcverify\n")
    for record in packages.glob("*.dist-info/direct_url.json"):
        record.unlink()  # where this machine kept the wheel


def date_files(root: Path, seconds: int) -> None:
    """Give everything below *root* one time, and modes that depend on nobody's umask."""
    for path in (root, *root.rglob("*")):
        if not path.is_symlink():
            executable = path.is_dir() or path.stat().st_mode & 0o100
            path.chmod(0o755 if executable else 0o644)
        os.utime(path, (seconds, seconds), follow_symlinks=False)


def _list_files(root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if path.is_file()]
