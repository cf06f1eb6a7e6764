"""What CI's scripts take from the machine that they run on."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest

MIRROR = Path(__file__).parents[1] / ".ci/mirror"
NEED = Path(__file__).parents[1] / ".ci/need"

apt = pytest.mark.needs("apt-get")


def repository(folder: Path, label: str) -> Path:
    packages = folder / "dists/stable/main/binary-amd64/Packages"
    packages.parent.mkdir(parents=True)
    packages.write_text("Package: one\nVersion: 1\nArchitecture: amd64\nSize: 0\n")
    content = packages.read_bytes()
    (folder / "dists/stable/Release").write_text(
        f"Label: {label}\nSuite: stable\nComponents: main\nArchitectures: amd64\n"
        "Date: Sat, 01 Nov 2025 00:00:00 UTC\nSHA256:\n"
        f" {sha256(content).hexdigest()} {len(content)} main/binary-amd64/Packages\n"
    )
    return folder


def mirror(
    tmp_path: Path, *, old: str = "", new: str = "", **environ: str
) -> subprocess.CompletedProcess[str]:
    """Ask for the mirror where apt has these sources, in its two forms."""
    (tmp_path / "sources.list").write_text(old)
    for name in ("parts", "state/lists/partial", "cache/archives/partial"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "parts/debian.sources").write_text(new)
    config = tmp_path / "apt.conf"
    config.write_text(
        f'Dir::Etc::sourcelist "{tmp_path}/sources.list";\n'
        f'Dir::Etc::sourceparts "{tmp_path}/parts";\n'
        f'Dir::State "{tmp_path}/state";\n'
        f'Dir::Cache "{tmp_path}/cache";\n'
        'APT::Architecture "amd64";\nAPT::Sandbox::User "root";\n'
    )
    return subprocess.run(
        [MIRROR],
        env={**os.environ, "APT_CONFIG": str(config), **environ},
        capture_output=True,
        text=True,
        check=False,
    )


@apt
def test_the_mirror_is_that_of_the_machine_in_either_form(tmp_path: Path) -> None:
    debian = repository(tmp_path / "debian", "Debian")
    security = repository(tmp_path / "security", "Debian-Security")
    stanza = "Types: deb\nURIs: file:{}/\nSuites: stable\nComponents: main\nTrusted: yes\n"
    for place in (tmp_path / "one", tmp_path / "other"):
        place.mkdir()
    lines = "".join(
        f"deb [trusted=yes] file:{folder} stable main\n" for folder in (security, debian)
    )

    found = mirror(tmp_path / "one", old=lines)
    assert found.stdout == f"file:{debian}\n", found.stderr
    found = mirror(tmp_path / "other", new=stanza.format(debian))
    assert found.stdout == f"file:{debian}\n", found.stderr


@apt
def test_where_apt_has_no_debian_the_way_out_is_named(tmp_path: Path) -> None:
    other = repository(tmp_path / "ubuntu", "Ubuntu")
    (tmp_path / "apt").mkdir()
    line = f"deb [trusted=yes] file:{other} stable main\n"
    refused = mirror(tmp_path / "apt", old=line)

    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr.endswith("set DEBIAN_MIRROR to one\n")


def test_who_names_a_mirror_is_given_that_one(tmp_path: Path) -> None:
    assert mirror(tmp_path, DEBIAN_MIRROR="file:/here").stdout == "file:/here\n"


def test_no_script_of_ci_names_a_host() -> None:
    for script in MIRROR.parent.iterdir():
        assert "://" not in script.read_text(), script


@pytest.fixture
def need(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run ``.ci/need`` where no package can be installed."""
    (tmp_path / "id").symlink_to("/usr/bin/id")

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["/bin/sh", NEED, *arguments],
            env={"PATH": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
        )

    return run


def test_all_that_is_missing_is_named_at_once(
    need: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    done = need("--venv", "/no/python3", "no-cc:gcc", "--optional", "no-fio:fio", "no-disk:smart")
    first, second = done.stderr.splitlines()
    assert done.returncode == 1
    assert first.endswith("apt-get install python3-venv gcc fio smart)")
    assert second == "without fio smart some checks are skipped"


def test_what_is_optional_does_not_end_the_installation(
    need: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    assert need("--optional", "no-fio:fio").returncode == 0
    assert (need("true:coreutils", "--optional").stderr, need().stdout) == ("", "")
