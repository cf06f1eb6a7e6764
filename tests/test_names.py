"""One meaning for each name."""

from __future__ import annotations

import ast
import re
from collections import Counter

from tests.test_arrows import PACKAGES, ROOT


def test_no_two_classes_have_the_same_name() -> None:
    names = Counter(
        node.name
        for folder in PACKAGES.values()
        for path in folder.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    )

    assert [name for name, count in names.items() if count > 1] == []


def test_the_glossary_has_forty_terms() -> None:
    terms = re.findall(
        r"(?m)^\| \*\*(.+?)\*\* \|", (ROOT / "docs/reference/glossary.md").read_text()
    )

    assert len(terms) == len(set(terms)) >= 40
