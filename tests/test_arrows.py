"""Who may import whom: the arrows that docs/design.md draws."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

ALLOWED = {
    "checks/hpcverify_checks": (
        "hpcverify.check",
        "hpcverify.model",
        "hpcverify.processes",
        "hpcverify.telemetry",
        "hpcverify.limits.specs",
        "hpcverify_checks",
    ),
    "reports/hpcverify_reports": (
        "hpcverify.actions",
        "hpcverify.check",
        "hpcverify.exclusions",
        "hpcverify.figures",
        "hpcverify.fleet.overview",
        "hpcverify.fleet.said",
        "hpcverify.model",
        "hpcverify.rounds",
        "hpcverify.telemetry.thinning",
        "hpcverify_reports",
    ),
    "hpcverify/telemetry": (
        "hpcverify.check",
        "hpcverify.model",
        "hpcverify.processes",
        "hpcverify.telemetry",
    ),
}
"""What the files of a room may import of ours."""


def imports(path: Path) -> Iterator[str]:
    """Name the modules of ours that *path* imports, at its top or within."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from (node.module,) if node.module.startswith("hpcverify") else ()
        elif isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name.startswith("hpcverify"))


@pytest.mark.parametrize("room", ALLOWED)
def test_a_room_imports_only_what_it_may(room: str) -> None:
    strays = {
        f"{path.name} -> {module}"
        for path in (ROOT / room).glob("*.py")
        for module in imports(path)
        if not module.startswith(ALLOWED[room]) and module != "hpcverify"
    }

    assert strays == set()


def test_the_model_imports_nothing_of_ours() -> None:
    assert list(imports(ROOT / "hpcverify/model.py")) == []


def test_the_engine_knows_checks_and_reports_by_name_only() -> None:
    named = {
        module
        for path in (ROOT / "hpcverify").rglob("*.py")
        for module in imports(path)
        if module.startswith(("hpcverify_checks", "hpcverify_reports"))
    }

    assert named == set()
