"""What is built: the same twice, what distributions take, and what rpm installs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from hashlib import sha256
from pathlib import Path

import pytest

from tests.packaging.machine import PYTHONS, ROOT

pytestmark = pytest.mark.installs

VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
PYTHON = PYTHONS["bookworm"]
ELSEWHERE = re.compile(r"^/usr/share/(zsh|lintian|doc|licenses)/")
"""Where each distribution wants these is its own."""


def list_packages(folder: Path, kind: str) -> list[Path]:
    return [path for python in PYTHONS.values() for path in folder.glob(f"*+py{python}*.{kind}")]


def read_sums(folder: Path) -> dict[str, str]:
    paths = [*folder.glob(f"*+py{PYTHON}*"), *folder.glob("*.whl")]
    return {path.name: sha256(path.read_bytes()).hexdigest() for path in paths}


def test_two_builds_of_one_commit_are_equal_byte_for_byte(packages: Path, tmp_path: Path) -> None:
    """The other is made elsewhere, by somebody with another umask and time zone."""
    clone = tmp_path / "another-folder"
    subprocess.run(["git", "clone", "--quiet", ROOT, clone], check=True, umask=0o077)
    environment = os.environ | {
        "PYTHONPATH": f"{clone}:{clone}/checks:{clone}/reports",
        "TZ": "Asia/Tokyo",
    }
    command = [sys.executable, str(clone / "packaging/build.py"), PYTHON]
    subprocess.run(command, env=environment, check=True, capture_output=True, umask=0o077)

    sums = read_sums(clone / "dist")
    assert len(sums) == 5  # two debs, two rpms and the wheel
    assert sums == read_sums(packages)


def test_lintian_has_no_error(packages: Path) -> None:
    for path in list_packages(packages, "deb"):
        shown = subprocess.run(
            ["lintian", "--allow-root", "--tag-display-limit", "0", path],
            capture_output=True,
            text=True,
            check=False,
        ).stdout
        assert [line for line in shown.splitlines() if line.startswith("E:")] == []


def test_rpmlint_has_no_error(packages: Path) -> None:
    for path in list_packages(packages, "rpm"):
        shown = subprocess.run(
            ["rpmlint", "--config", ROOT / "packaging/rpmlint.toml", path],
            capture_output=True,
            text=True,
            check=False,
        ).stdout
        assert "1 packages and 0 specfiles checked; 0 errors" in shown


def test_each_file_for_slurm_and_for_monitoring_is_at_one_place(
    packages: Path, tmp_path: Path
) -> None:
    for deb in packages.glob(f"*+py{PYTHON}_*.deb"):
        subprocess.run(["dpkg-deb", "-x", deb, tmp_path], check=True)
    names = {path.name for folder in ("slurm", "monitoring") for path in (ROOT / folder).iterdir()}
    assert {name: len(list(tmp_path.rglob(name))) for name in names} == dict.fromkeys(names, 1)


def test_rpm_installs_the_files_of_the_deb_into_an_empty_root(
    packages: Path, tmp_path: Path
) -> None:
    (deb,) = packages.glob(f"hpcverify_*+py{PYTHON}_*.deb")
    (rpm,) = packages.glob(f"hpcverify-{VERSION}+py{PYTHON}-*.rpm")
    subprocess.run(["dpkg-deb", "-x", deb, tmp_path / "deb"], check=True)
    place = [f"--root={tmp_path}/rpm", "--dbpath=/db"]
    command = ["rpm", *place, "--nodeps", "--noscripts", "-i", str(rpm)]
    subprocess.run(command, check=True)

    assert list_tree(tmp_path / "rpm") == list_tree(tmp_path / "deb")
    assert (tmp_path / "rpm/opt/hpcverify/bin/python3").readlink() == Path("/usr/bin/python3.11")


def list_tree(root: Path) -> dict[str, str]:
    """Return the files below *root* with their content, by their path."""
    files = {f"/{path.relative_to(root)}": path for path in root.rglob("*")}
    return {
        name: sha256(path.read_bytes()).hexdigest()
        for name, path in files.items()
        if path.is_file() and not path.is_symlink() and not ELSEWHERE.match(name)
        if not name.startswith("/db/")
    }
