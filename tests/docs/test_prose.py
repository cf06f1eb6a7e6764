"""The pages and the messages are in plain English, and the book is short."""

from __future__ import annotations

import pytest

from tests.docs.pages import ROOT
from tests.docs.prose import (
    BLOCK,
    BY_TABLES,
    RULES,
    Rule,
    count_words,
    list_messages,
    list_pages,
    strip_code,
)

WORDS_PER_USE = 2000
"""Of the pages, for each rule: tools that are easy to read have fewer uses."""
MAX_WORDS = 31_000
"""Of the book without its pages of checks and faults: tables and code in a line included, blocks
of code excluded."""
CHECK_PAGES = (*BY_TABLES, "docs/reference/checks")
BY_NAME = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)


@BY_NAME
def test_the_pages_hardly_use_a_word_that_the_rules_replace(rule: Rule) -> None:
    pages = list_pages()
    uses = rule.list_uses(pages)
    limit = count_words(text for _, text in pages) // WORDS_PER_USE
    assert len(uses) <= limit, "\n".join((f"{rule.instead}:", *uses))


@BY_NAME
def test_messages_use_such_words_no_more_often_than_before(rule: Rule) -> None:
    uses = rule.list_uses(list_messages())
    assert len(uses) <= rule.messages, "\n".join((f"{rule.instead}:", *uses))


def test_the_book_is_short() -> None:
    names = (str(page.relative_to(ROOT)) for page in (ROOT / "docs").rglob("*.md"))
    read = [
        strip_code((ROOT / name).read_text(), (BLOCK,))
        for name in names
        if "/internals/" not in name and not name.startswith(CHECK_PAGES)
    ]
    assert count_words(read) <= MAX_WORDS
