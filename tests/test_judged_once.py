"""
A result is judged once, and its faults are data from there on.

So no other place compares a value with a limit, and none takes one of our own sentences apart
to learn what the judge knew.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
JUDGES = {"hpcverify/check.py"}
"""Where a value meets its limit."""
CALLERS = {
    "judge": {
        "hpcverify/run/conclude.py",
        "hpcverify/insight/comparison.py",
        "hpcverify/testing.py",
    },
    "add_faults": {
        "hpcverify/run/conclude.py",
    },
    "compute_margin": {"hpcverify/summary/wording.py"},
}
"""
Who may call what compares: those who write a result, and who asks whether a part that peers name
fails by its own limits too. The terminal shows the tightest margin of a result that passed; it
judges nothing.
"""
SENTENCE_READERS = (
    "hpcverify/summary",
    "reports/hpcverify_reports",
    "hpcverify/commands/show.py",
    "hpcverify/fleet/evidence.py",
    "hpcverify/fleet/notify.py",
    "hpcverify/run/conclude.py",
)
"""What shows, groups or acts on results."""
SPLITTERS = {"removeprefix", "removesuffix", "split", "rsplit", "partition", "rpartition"}
TAKEN_APART = {
    # names of metrics, and of sensors
    ("hpcverify/summary/figures.py", "find_sheet_value"),
    ("hpcverify/summary/figures.py", "_find_measured_share"),
    ("reports/hpcverify_reports/node.py", "_group_sensors"),
    ("reports/hpcverify_reports/pictures.py", ""),
    ("reports/hpcverify_reports/pictures.py", "_draw_latencies"),
    ("reports/hpcverify_reports/pictures.py", "_draw_throttling"),
    ("reports/hpcverify_reports/pictures.py", "_group_by_series"),
    # labels of parts, and files
    ("reports/hpcverify_reports/pictures.py", "_draw_bars"),
    ("reports/hpcverify_reports/pictures.py", "_draw_pairs"),
    ("reports/hpcverify_reports/pictures.py", "draw_places"),
    # digits of a number
    ("reports/hpcverify_reports/labels.py", "format_number"),
    ("reports/hpcverify_reports/pages.py", "group_digits"),
    ("hpcverify/summary/part_names.py", ""),
    ("hpcverify/commands/show.py", "find_parts"),
    ("reports/hpcverify_reports/svg.py", "label"),
    ("hpcverify/summary/verdict.py", "shorten"),
    # what others wrote, or what is escaped whatever it says
    ("hpcverify/fleet/notify.py", "_run_program"),
    ("hpcverify/summary/printable.py", "make_printable"),
    ("hpcverify/summary/printable.py", "escape_json"),
    ("reports/hpcverify_reports/pages.py", ""),
    ("reports/hpcverify_reports/pages.py", "keep_times"),
    ("reports/hpcverify_reports/text.py", ""),
    ("reports/hpcverify_reports/text.py", "escape"),
    # the full stop of a sentence of the table of remedies
    ("reports/hpcverify_reports/fleet.py", "_list_actions"),
}
"""The file and the function of what may be taken apart: none of it is a sentence of ours."""


def list_files(*rooms: str) -> Iterator[tuple[str, ast.Module]]:
    for room in rooms:
        path = ROOT / room
        for file in [path] if path.is_file() else sorted(path.rglob("*.py")):
            yield str(file.relative_to(ROOT)), parse(file)


@cache
def parse(file: Path) -> ast.Module:
    return ast.parse(file.read_text())


@pytest.fixture(scope="module", autouse=True)
def forget_files() -> Iterator[None]:
    """Drop the trees after the last test: garbage collection in later tests walks them all."""
    yield
    parse.cache_clear()


def list_calls(tree: ast.AST, function: str = "") -> Iterator[tuple[str, ast.Call]]:
    """Yield each call with the function that it is in; empty at the level of the module."""
    for node in ast.iter_child_nodes(tree):
        own = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        name = node.name if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) else function
        if isinstance(node, ast.Call):
            yield function, node
        yield from list_calls(node, name if own else function)


def get_called(call: ast.Call) -> tuple[str, str]:
    """Return the object, as far as it is a name, and the function that *call* calls."""
    match call.func:
        case ast.Attribute(value=ast.Name(id=owner), attr=name):
            return owner, name
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return "", name
        case _:
            return "", ""


@pytest.mark.parametrize("name", CALLERS)
def test_only_who_writes_a_result_has_it_judged(name: str) -> None:
    imported = {
        file
        for file, tree in list_files("hpcverify", "reports")
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        and node.module == "hpcverify.check"
        and name in {alias.name for alias in node.names}
    }

    assert imported == CALLERS[name]


def test_no_other_place_asks_a_limit_about_a_value() -> None:
    asking = {
        file
        for file, tree in list_files("hpcverify", "reports")
        for _, call in list_calls(tree)
        if get_called(call)[1] == "admits"
    }

    assert asking == JUDGES


def test_no_other_place_compares_with_a_bound() -> None:
    rooms = ("summary", "commands", "records", "run", "fleet")
    comparing = {
        file
        for file, tree in list_files(*(f"hpcverify/{room}" for room in rooms), "reports")
        for node in ast.walk(tree)
        if isinstance(node, ast.Compare)
        and any(isinstance(op, (ast.Lt, ast.LtE, ast.Gt, ast.GtE)) for op in node.ops)
        and any(
            isinstance(side, ast.Attribute) and side.attr in {"low", "high"}
            for side in (node.left, *node.comparators)
        )
    }

    assert comparing == set()


def test_nobody_takes_our_own_sentences_apart() -> None:
    taken_apart = {
        (file, function)
        for file, tree in list_files(*SENTENCE_READERS)
        for function, call in list_calls(tree)
        if get_called(call)[0] == "re" or get_called(call)[1] in SPLITTERS
    }

    assert taken_apart == TAKEN_APART
