"""What packages contain is what the project asks for, each file named by its hash."""

from __future__ import annotations

import re
import tomllib
from itertools import pairwise
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
LOCKS = ROOT / "packaging"
EXTRAS = {
    "node.txt": ("report", "cluster"),
    "controller.txt": ("bmc", "fleet"),
    "torch.txt": ("gpu",),
}
"""The extras that a lock has beside what hpcverify itself requires."""


def read_pins(path: Path) -> dict[str, set[str]]:
    """Return the versions in a lock by name; some depend on the Python."""
    pins: dict[str, set[str]] = {}
    for name, version in re.findall(r"^([\w.-]+)==([^\s;]+)", path.read_text(), re.MULTILINE):
        pins.setdefault(canonicalize_name(name), set()).add(version)
    return pins


@pytest.mark.parametrize("name", EXTRAS)
def test_a_lock_has_all_that_the_project_requires(name: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    required = project["dependencies"] + [line for key in EXTRAS[name] for line in extras[key]]
    pins = read_pins(LOCKS / name)

    for line in required:
        requirement = Requirement(line)
        versions = pins[canonicalize_name(requirement.name)]
        assert all(version in requirement.specifier for version in versions), line


@pytest.mark.parametrize("name", EXTRAS)
def test_a_lock_has_the_versions_of_the_constraints(name: str) -> None:
    pins = read_pins(LOCKS / name)
    for library, versions in read_pins(ROOT / "constraints.txt").items():
        assert pins.get(library, versions) == versions


@pytest.mark.parametrize("name", EXTRAS)
def test_each_line_of_a_lock_has_hashes(name: str) -> None:
    lines = (LOCKS / name).read_text().splitlines()
    for line, following in pairwise(lines):
        if "==" in line:
            assert following.startswith("    --hash=sha256:"), line


def test_what_node_and_controller_share_has_one_version() -> None:
    node, controller = (read_pins(LOCKS / name) for name in ("node.txt", "controller.txt"))
    assert {name: controller[name] for name in node.keys() & controller} == {
        name: node[name] for name in node.keys() & controller
    }
