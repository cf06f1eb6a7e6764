"""
The packages that a site installs.

HPCVERIFY_DEB names them, with a space between two. Without it, they are made here: the
same files at the same places, with the Python of the Debian that they are for.
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
    if named := os.environ.get("HPCVERIFY_DEB"):
        (python,) = (path.name for path in debian.glob("usr/bin/python3.*") if path.suffix != ".py")
        version = python.removeprefix("python")
        names = [name for name in named.split() if f"+py{version}_" in name or "+py" not in name]
        return tuple(
            sorted((Path(name).resolve() for name in names), key=lambda path: len(path.name))
        )
    root = make_root(debian, folder / "build")
    wheel = build_wheel(folder)
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


def build_wheel(folder: Path, *, wheelhouse: bool = False) -> Path:
    """Return the wheel of this checkout, in a folder of its own or with what it needs."""
    wheels = folder / "wheels"
    pip = (sys.executable, "-m", "pip", "--quiet", "wheel", "--wheel-dir", wheels)
    what = [f"{PROJECT}[cluster]"] if wheelhouse else ["--no-deps", PROJECT]
    subprocess.run([*pip, *what], check=True, capture_output=True)
    (wheel,) = wheels.glob("hpcverify-*.whl")
    return wheel


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
