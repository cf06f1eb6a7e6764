"""
The packages that a site installs: those that HPCVERIFY_DEB names, with a space between two,
or those of `make packages`.

Without that target, they are made here: the same files at the same places.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from tests.packaging.root import PROJECT, make_root

HOOKS = ("prolog", "epilog", "healthcheck", "hooks.sh")
UNITS = ("hpcverify-sweep", "hpcverify-bmc")
DEPENDS = {
    "hpcverify": "Depends: python3 (>= 3.11)\n",
    "hpcverify-controller": "Depends: hpcverify (= 0.1.0)\n",
}


def find_debs(debian: Path, folder: Path) -> tuple[Path, ...]:
    """Return the packages of the node and of the controller, in the order of their needs."""
    (python,) = (path.name for path in debian.glob("usr/bin/python3.[0-9][0-9]"))
    version = python.removeprefix("python")
    named = os.environ.get("HPCVERIFY_DEB", "").split()
    target = ("make", "--directory", PROJECT, "packages", f"PYTHONS={version}")
    if (
        not named
        and subprocess.run([*target, "--dry-run"], capture_output=True, check=False).returncode == 0
    ):
        subprocess.run(target, check=True, capture_output=True)
        named = [str(path) for path in (PROJECT / "dist").glob("*.deb")]
    if named:
        fitting = [Path(name).resolve() for name in named if f"+py{version}_" in name]
        return tuple(sorted(fitting, key=lambda path: len(path.name)))
    root = make_root(debian, folder / "build")
    wheel = build_wheel(folder / "wheel")
    shutil.copy(wheel, root.upper)
    root.run("python3", "-m", "venv", "/opt/hpcverify")
    root.run("/opt/hpcverify/bin/pip", "install", "--quiet", f"/{wheel.name}[report,cluster]")
    node, controller = folder / "hpcverify", folder / "hpcverify-controller"
    shutil.copytree(root.upper / "opt", node / "opt", symlinks=True)
    _copy_all(HOOKS, node / "usr/libexec/hpcverify")
    (node / "etc/hpcverify/site.d").mkdir(parents=True)
    units = [f"{unit}.{kind}" for unit in UNITS for kind in ("service", "timer")]
    _copy_all(units, controller / "usr/lib/systemd/system")
    return _pack(node), _pack(controller)


def build_wheel(folder: Path) -> Path:
    """Return the wheel of this checkout, in a new folder."""
    pip = (sys.executable, "-m", "pip", "--quiet", "wheel", "--no-deps", "--wheel-dir", folder)
    subprocess.run([*pip, PROJECT], check=True, capture_output=True)
    (wheel,) = folder.glob("hpcverify-*.whl")
    return wheel


def download_wheels(folder: Path, *requirements: str) -> Path:
    """Put what these need into a new folder, for the Python of Debian 12, and return it."""
    pip = (sys.executable, "-m", "pip", "--quiet", "download", "--dest", folder)
    wanted = ("--only-binary", ":all:", "--python-version", "3.11", *requirements)
    subprocess.run([*pip, *wanted], check=True, capture_output=True)
    return folder


def _copy_all(names: Iterable[str], to: Path) -> None:
    to.mkdir(parents=True)
    for name in names:
        shutil.copy(PROJECT / "slurm" / name, to)


def _pack(content: Path) -> Path:
    control = content / "DEBIAN"
    control.mkdir()
    (control / "control").write_text(
        f"Package: {content.name}\nVersion: 0.1.0\nArchitecture: amd64\n"
        f"Maintainer: the tests <root@localhost>\nDescription: hpcverify\n{DEPENDS[content.name]}"
    )
    package = content.with_suffix(".deb")
    subprocess.run(
        ["dpkg-deb", "--root-owner-group", "-Znone", "--build", content, package],
        check=True,
        capture_output=True,
    )
    return package
