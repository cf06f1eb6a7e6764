"""
Download the wheels of a lock, for one version of Python, each verified by its hash.

pip would read the markers of a lock for the Python that it runs on; `select_wheels` reads
them for the Python that the wheels are for.
"""

from __future__ import annotations

import platform
import re
import subprocess
import sys
from pathlib import Path

from packaging.requirements import Requirement

MACHINE = platform.machine()
PLATFORMS = (
    *(f"manylinux_2_{minor}_{MACHINE}" for minor in range(28, 16, -1)),
    f"manylinux2014_{MACHINE}",
)
"""glibc 2.28 is that of RHEL 8."""
REQUIREMENT = re.compile(r"^\S.*?(?=^\S|\Z)", re.MULTILINE | re.DOTALL)


def select_wheels(lock: str, python: str) -> str:
    """Return the requirements of *lock* that *python*, as ``3.11``, needs, without markers."""
    environment = {
        "python_version": python,
        "python_full_version": f"{python}.0",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
        "platform_machine": MACHINE,
        "sys_platform": "linux",
    }
    selected = []
    for match in REQUIREMENT.finditer(lock):
        head, separator, hashes = match[0].partition(" \\\n")
        requirement = Requirement(head)
        if requirement.marker is None or requirement.marker.evaluate(environment):
            selected.append(f"{requirement.name}{requirement.specifier}{separator}{hashes}")
    return "".join(selected)


def download_wheels(lock: Path, python: str, folder: Path) -> Path:
    """Put the wheels of *lock* into *folder*; return the list there that pip installs them by."""
    folder.mkdir(parents=True, exist_ok=True)
    requirements = folder / f"{lock.stem}-{python}.txt"
    requirements.write_text(select_wheels(lock.read_text(), python))
    run_pip("download", "--dest", folder, *_list_options(python, requirements))
    return requirements


def install_wheels(requirements: Path, python: str, target: Path) -> None:
    """Unpack the wheels of a list that `download_wheels` left, from its folder alone."""
    source = ("--no-index", "--find-links", requirements.parent)
    run_pip(
        *("install", "--no-compile", "--target", target),
        *source,
        *_list_options(python, requirements),
    )


def _list_options(python: str, requirements: Path) -> list[object]:
    platforms = [option for name in PLATFORMS for option in ("--platform", name)]
    return [
        *("--require-hashes", "--no-deps", "--only-binary", ":all:"),
        *("--python-version", python),
        *platforms,
        *("--requirement", requirements),
    ]


def run_pip(*words: object) -> None:
    """Run the pip of this environment."""
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*command, *map(str, words)], check=True)


if __name__ == "__main__":
    lock, folder, *pythons = sys.argv[1:]
    for python in pythons:
        download_wheels(Path(lock), python, Path(folder, f"wheelhouse-{python}-{MACHINE}"))
