"""
Build the packages: a deb and an rpm, of a node and of a controller, for each Python.

Usage: build.py PYTHON... Results are in dist/. Two builds of one commit are equal.
"""

from __future__ import annotations

import gzip
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from email.utils import formatdate
from pathlib import Path
from tomllib import loads

from completion import SHELLS, write_completion
from manual import write_manual
from stage import date_files, stage_controller, stage_node
from wheels import MACHINE, download_wheels, run_pip

ROOT = Path(__file__).parents[1]
HERE = Path("packaging")
WHEELS = Path("build/wheels")
STAGE = Path("build/packages")
DIST = Path("dist")
PROGRAM = "/usr/bin/hpcverify"
MAINTAINER = "hpcverify maintainers <hpcverify@hpcverify.invalid>"
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
CHANGELOG = """\
{name} ({version}) stable; urgency=medium

  * The changes are in CHANGELOG.md of the release.

 -- {maintainer}  {date}
"""
COPYRIGHT = """\
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Comment: The libraries in /opt/hpcverify have their licences in their .dist-info folders.

Files: *
Copyright: 2026 hpcverify contributors
License: Apache-2.0
 On Debian systems the licence is in /usr/share/common-licenses/Apache-2.0.
"""


def build_packages(pythons: list[str]) -> None:
    """Build everything for each of *pythons*, such as ``3.11``, into dist/."""
    version = loads(Path("pyproject.toml").read_text())["project"]["version"]
    seconds = read_commit_time()
    os.environ["SOURCE_DATE_EPOCH"] = str(seconds)
    DIST.mkdir(exist_ok=True)
    for former in DIST.glob("hpcverify*"):
        former.unlink()
    run_pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", DIST, ".")
    wheel = DIST / f"hpcverify-{version}-py3-none-any.whl"
    for python in pythons:
        shutil.rmtree(STAGE, ignore_errors=True)
        node = download_wheels(HERE / "node.txt", python, WHEELS)
        stage_node(wheel, node, python, STAGE / "node")
        controller = download_wheels(HERE / "controller.txt", python, WHEELS)
        stage_controller(controller, python, STAGE / "controller", STAGE / "node")
        write_help(f"{version}+py{python}", seconds)
        date_files(STAGE, seconds)
        for name in ("node", "controller"):
            for packager in ("deb", "rpm"):
                pack(name, packager, {"VERSION": version, "PYTHON": python})


def read_commit_time() -> int:
    """Return when the commit was made, in seconds since 1970."""
    command = ["git", "log", "-1", "--format=%ct"]
    return int(subprocess.run(command, check=True, capture_output=True).stdout)


def write_help(version: str, seconds: int) -> None:
    """Write man pages, completion files and what a package says about itself."""
    write_manual(STAGE / "man", version.partition("+")[0], seconds)
    completion = STAGE / "completion"
    completion.mkdir()
    for shell in SHELLS:
        (completion / shell).write_text(write_completion(shell, PROGRAM))
    (STAGE / "copyright").write_text(COPYRIGHT)
    for name in ("hpcverify", "hpcverify-controller"):
        text = CHANGELOG.format(
            name=name, version=version, maintainer=MAINTAINER, date=formatdate(seconds)
        )
        (STAGE / f"{name}.changelog.gz").write_bytes(gzip.compress(text.encode(), mtime=0))


def pack(name: str, packager: str, settings: Mapping[str, str]) -> None:
    """Write the package of *name* for *packager* into dist/."""
    command = [
        str(Path(sys.executable).with_name("nfpm")),
        "package",
        "--config",
        str(HERE / name / "nfpm.yaml"),
    ]
    subprocess.run(
        [*command, "--packager", packager, "--target", str(DIST)],
        env={**os.environ, **settings, "ARCH": ARCHITECTURES[MACHINE], "MAINTAINER": MAINTAINER},
        check=True,
    )


if __name__ == "__main__":
    os.chdir(ROOT)
    build_packages(sys.argv[1:])
