"""One meaning for each name."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.docs.pages import PAGES
from tests.test_arrows import PACKAGES, ROOT

UNUSED_WORDS_HEAD = "| not | but |\n|---|---|\n"
ALLOWED = re.compile(r"(?i)\bthere (is|are|was) no\b|\b(is|are|was|were) no (longer|more|other)\b")
"""Good English that contains a word of the list."""


def test_no_two_classes_have_the_same_name() -> None:
    names = Counter(
        node.name
        for folder in PACKAGES.values()
        for path in folder.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    )

    assert [name for name, count in names.items() if count > 1] == []


def list_unused_words() -> list[str]:
    """List the words that the glossary replaces by others."""
    table = (ROOT / "docs/reference/glossary.md").read_text().split(UNUSED_WORDS_HEAD)[1]
    return [word.strip() for row in table.splitlines() for word in row.split("|")[1].split(",")]


def is_command(function: ast.FunctionDef) -> bool:
    """Whether click makes a command of *function*, whose docstring is its help."""
    return any("command" in ast.unparse(made_by) for made_by in function.decorator_list)


@cache
def list_all_texts() -> tuple[tuple[str, str], ...]:
    """List what users may read of the three packages and in the book, each with its file."""
    files = (
        path
        for folder in PACKAGES.values()
        for path in (*folder.rglob("*.py"), *folder.rglob("*.j2"))
    )
    return tuple(
        (str(path.relative_to(ROOT)), ALLOWED.sub("", text))
        for path in (*files, *(page for page in PAGES if page.name != "CHANGELOG.md"))
        for text in list_texts(path)
    )


@cache
def list_texts_with_an_unused_word() -> tuple[tuple[str, str], ...]:
    pattern = re.compile(rf"\b({'|'.join(list_unused_words())})\b", re.IGNORECASE)
    return tuple((file, text) for file, text in list_all_texts() if pattern.search(text))


def list_texts(path: Path) -> Iterator[str]:
    """Yield what users may read of *path*: strings and help in code, text in a template or page."""
    if path.suffix == ".md":
        yield from path.read_text().partition(UNUSED_WORDS_HEAD)[0].splitlines()
        return
    if path.suffix == ".j2":
        yield from re.sub(r"{[{%#].*?[}%#]}", "", path.read_text(), flags=re.DOTALL).splitlines()
        return
    tree = ast.parse(path.read_text())
    comments = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and is_command(node):
            yield ast.get_docstring(node) or ""
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            is_prose = " " in node.value.strip() and "create table" not in node.value
            if is_prose and id(node) not in comments:
                yield node.value


@pytest.mark.parametrize("word", list_unused_words())
def test_no_message_help_or_page_uses_a_word_that_the_glossary_replaces(word: str) -> None:
    pattern = re.compile(rf"\b{word}\b", re.IGNORECASE)
    uses = [
        f"{file}: {text.strip()[:90]}"
        for file, text in list_texts_with_an_unused_word()
        if pattern.search(text)
    ]

    assert uses == []


def test_the_glossary_has_forty_terms() -> None:
    terms = re.findall(
        r"(?m)^\| \*\*(.+?)\*\* \|", (ROOT / "docs/reference/glossary.md").read_text()
    )

    assert len(terms) == len(set(terms)) >= 40
