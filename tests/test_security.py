"""What the pages on security name is there: each place that listens or executes, and its test."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.test_arrows import PACKAGES

ROOT = Path(__file__).parents[1]
PAGE = "".join(
    (ROOT / page).read_text(encoding="utf-8") for page in ("SECURITY.md", "docs/internals/trust.md")
)
CALLS = {
    *("listen", "bind", "create_server", "create_connection"),
    *("HTTPConnection", "HTTPSConnection"),
    *("Popen", "posix_spawn", "execv", "execve"),
}
"""The names by which our code listens, connects, or starts a program."""
NAMED = re.findall(r"`((?:hpcverify|checks|reports|slurm|tests)/[\w./]+)(?:::(\w+))?`", PAGE)


def test_what_the_page_names_is_there() -> None:
    assert NAMED
    assert [path for path, _ in NAMED if not (ROOT / path).exists()] == []
    tests = [(path, test) for path, test in NAMED if test]
    assert [
        (path, test)
        for path, test in tests
        if f"def {test}(" not in (ROOT / path).read_text(encoding="utf-8")
    ] == []


def list_callers() -> Iterator[str]:
    """List the files that listen, connect, or start a program."""
    for folder in PACKAGES.values():
        for path in folder.rglob("*.py"):
            called = {
                node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id
                for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute | ast.Name)
            }
            if called & CALLS:
                yield str(path.relative_to(ROOT))


def test_every_place_that_listens_connects_or_executes_is_on_the_page() -> None:
    callers = set(list_callers())
    assert "hpcverify/run/lock.py" in callers
    assert callers - {path for path, _ in NAMED} == set()


def test_every_row_of_a_place_has_a_test_or_says_where_it_is_described() -> None:
    rows = [
        line for line in PAGE.splitlines() if re.match(r"\| `(?:hpcverify|checks|slurm)/", line)
    ]
    assert rows
    lacking = [
        row for row in rows if "`tests/" not in row and "Listening and connecting" not in row
    ]
    assert lacking == []
