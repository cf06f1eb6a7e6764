"""Who may import whom: the floors that docs/explanation/design.md draws."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = {
    "hpcverify": ROOT / "hpcverify",
    "hpcverify_checks": ROOT / "checks/hpcverify_checks",
    "hpcverify_reports": ROOT / "reports/hpcverify_reports",
}
FLOORS = (
    ("model", "errors", "breadcrumb", "gate", "imports", "memory_files", "stats"),
    ("units", "trust"),
    ("check", "peers", "reliability", "metrics"),
    ("limits", "plan", "processes", "trends", "selection"),
    ("explain",),
    ("telemetry", "slurm", "summary"),
    ("records", "events"),
    ("run", "console", "isolation", "history"),
    ("fleet", "qualification", "cli"),
    ("fabric", "insight", "bmc"),
    ("commands", "testing"),
    ("entry",),
)
"""The rooms of the engine from the ground up: each imports only from floors below its own."""
FROM_OUTSIDE = {
    "hpcverify_checks": {
        "check",
        "errors",
        "memory_files",
        "model",
        "processes",
        "telemetry",
        "limits",
        "units",
        "stats",
        "records",
    },
    "hpcverify_reports": {
        *(
            "check",
            "model",
            "units",
            "stats",
            "explain",
            "summary",
            "telemetry",
            "records",
            "isolation",
            "fleet",
            "insight",
            "qualification",
            "peers",
            "trends",
        ),
    },
}
"""The rooms of the engine that checks and reports may import."""
MEASURES = "qualification"
"""The room of measurements that say what the checks are worth: it stands on any of them."""


def list_imports(path: Path) -> Iterator[tuple[str, str]]:
    """Name the package and the room of ours that *path* imports, at its top or within."""
    for node in ast.walk(ast.parse(path.read_text())):
        names: list[str] = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for package, room, *_ in ([*name.split("."), ""] for name in names):
            if package in PACKAGES and room:
                yield package, room


def list_arrows(package: str) -> Iterator[tuple[str, str, str, str]]:
    """Yield each file of *package* with its room, and the package and room it imports."""
    folder = PACKAGES[package]
    for path in sorted(folder.rglob("*.py")):
        place = path.relative_to(folder)
        for target, room in list_imports(path):
            yield str(place), place.parts[0].removesuffix(".py"), target, room


FLOOR_OF = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}


def test_every_room_of_the_engine_has_a_floor() -> None:
    rooms = {p.name.removesuffix(".py") for p in PACKAGES["hpcverify"].iterdir()}

    assert rooms - {"__init__", "__pycache__", "py.typed"} == set(FLOOR_OF)


def test_no_arrow_of_the_engine_runs_up_or_along_a_floor() -> None:
    strays = {
        f"{file} -> {target}"
        for file, room, package, target in list_arrows("hpcverify")
        if package == "hpcverify" and room != target and FLOOR_OF[target] >= FLOOR_OF[room]
    }

    assert strays == set()


def test_the_engine_knows_checks_and_reports_by_name_only() -> None:
    strays = {f"{f} -> {p}" for f, _, p, _ in list_arrows("hpcverify") if p != "hpcverify"}

    assert strays == set()


@pytest.mark.parametrize("package", FROM_OUTSIDE)
def test_checks_and_reports_import_only_what_they_may(package: str) -> None:
    strays = {
        f"{file} -> {target}.{room}"
        for file, _, target, room in list_arrows(package)
        if target != package and (target != "hpcverify" or room not in FROM_OUTSIDE[package])
    }

    assert strays == set()


def test_of_the_records_checks_know_only_the_document_that_they_fill() -> None:
    files = PACKAGES["hpcverify_checks"].rglob("*.py")
    known = {
        name for file in files for name in re.findall(r"hpcverify\.records\S*", file.read_text())
    }

    assert known == {"hpcverify.records.collectives"}


def test_a_check_stands_on_what_checks_share_and_on_no_other_check() -> None:
    strays = {
        f"{file} -> {target}"
        for file, room, package, target in list_arrows("hpcverify_checks")
        if package == "hpcverify_checks" and target not in {room, "common"} and room != MEASURES
    }

    assert strays == set()


def test_the_page_on_the_design_has_the_same_floors() -> None:
    rows = (
        (ROOT / "docs/explanation/design.md").read_text().split("| floor | rooms |\n|---|---|\n")[1]
    )
    table = [re.findall(r"`(\w+)`", row) for row in rows.split("\n\n")[0].splitlines()]

    assert [set(rooms) for rooms in reversed(table)] == [set(rooms) for rooms in FLOORS]


def test_only_the_place_that_chooses_by_vendor_knows_the_library_of_a_vendor() -> None:
    pattern = re.compile(
        r"telemetry\.(nvml|amd)\b|from hpcverify\.telemetry import .*\b(nvml|amd)\b"
    )
    knowing = {
        str(path.relative_to(ROOT))
        for folder in PACKAGES.values()
        for path in folder.rglob("*.py")
        if any(pattern.search(line) for line in path.read_text().splitlines() if "import" in line)
    }

    inside = {path for path in knowing if path.startswith("hpcverify/telemetry/nvml/")}
    assert knowing - inside == {"hpcverify/telemetry/vendors.py"}
