"""The words that the project does not use, and the texts in which they are looked for."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.docs.pages import ROOT
from tests.test_arrows import PACKAGES

RENDERED = tuple(
    page
    for pattern in ("docs/**/*.md", "packaging/*/README.md", "*.md")
    for page in sorted(ROOT.glob(pattern))
    if "internals" not in page.parts and page.name != "CHANGELOG.md"
)
"""The pages of the book, and the README; the changelog is a record of earlier words."""
BY_TABLES = ("docs/reference/faults.md", "docs/reference/coverage.md")
"""Pages of which the tests' tables write all; their texts count as messages."""
WRITTEN_BY_CODE = re.compile(r"(?s)<!-- (?:written: )?(\w+) -->.*?<!-- (?:end of |/)\1 -->")
BLOCK = re.compile(r"(?ms)^( *)```.*?^\1```$")
INLINE = re.compile(r"`[^`\n]+`")
COMMENT = re.compile(r"(?s)<!--.*?-->")
TARGET = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
WORD = re.compile(r"[^\s]*[^\W_][^\s]*")


@dataclass(frozen=True)
class Rule:
    """A pattern to avoid, its replacement, and how many messages still use it."""

    name: str
    pattern: str
    instead: str
    messages: int = 0

    def list_uses(self, texts: Iterable[tuple[str, str]]) -> list[str]:
        """List each use in *texts*, with its file."""
        pattern = re.compile(rf"(?i){self.pattern}")
        return [
            f"{file}: …{text[max(0, use.start() - 40) : use.end() + 40].strip()}…"
            for file, text in texts
            for use in pattern.finditer(text)
        ]


RULES = (
    Rule(
        "nobody",
        r"\b(?:no|some|any|every)body\b|\bnothing\b|\bnone\b|\bwhoever\b",
        "negate the verb",
        185,
    ),
    Rule("say", r"\b(?:say|says|said)\b", "list, show, print, report", 104),
    Rule("ask", r"\b(?:ask|answer)(?:s|ed|ing)?\b", "query, read; respond, return", 155),
    Rule(
        "verb and no",
        r"(?<!there )\b(?:[a-z]+(?:s|ed)|have|had|do|did|are|were|made|found|get|need|take|give)"
        r" no (?!longer|more|other)[a-z]",
        "does not …",
        112,
    ),
    Rule(
        "name",
        r"\bnamed\b|\bnames (?:the|it|its|them|an?|each|every|that|which|who|what)\b",
        "report",
        44,
    ),
    Rule("come", r"\b(?:comes?|came)\b", "recur, result from, arrive", 44),
    Rule("turn", r"(?<!in )\bturns?\b(?! (?:on|off|into))", "cycle", 21),
    Rule("go on", r"\b(?:go|goes|went|going) on\b", "continue, resume", 13),
    Rule(
        "retired words",
        r"\b(?:told|tells?|accuse[ds]?|blamed?|guilty|culprit|innocent|acquitted|witness(?:es)?"
        r"|(?:its|their|the) like|like it|stands? (?:out|apart)|in vain|meant so"
        r"|whom|of which|that which|what it is)\b",
        "the noun itself",
    ),
)


@cache
def list_pages() -> tuple[tuple[str, str], ...]:
    """List the prose of each page that people write, without code and generated parts."""
    pages = ((str(page.relative_to(ROOT)), page.read_text()) for page in RENDERED)
    return tuple((name, strip_code(text)) for name, text in pages if name not in BY_TABLES)


def strip_code(
    text: str, patterns: Iterable[re.Pattern[str]] = (WRITTEN_BY_CODE, BLOCK, INLINE)
) -> str:
    """Strip what is not prose from *text*; of a link, keep its words."""
    for pattern in (*patterns, COMMENT):
        text = pattern.sub("", text)
    return TARGET.sub(r"\1", text)


def count_words(texts: Iterable[str]) -> int:
    """Count the words of *texts*; a word has a letter or a digit."""
    return sum(len(WORD.findall(text)) for text in texts)


@cache
def list_messages() -> tuple[tuple[str, str], ...]:
    """List what users may read of the packages: strings, help, and text in templates."""
    files = (
        path
        for folder in PACKAGES.values()
        for path in (*folder.rglob("*.py"), *folder.rglob("*.j2"))
    )
    written = ((page, strip_code((ROOT / page).read_text())) for page in BY_TABLES)
    strings = ((str(path.relative_to(ROOT)), text) for path in files for text in _list_texts(path))
    return (*written, *strings)


def _list_texts(path: Path) -> Iterator[str]:
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
        if isinstance(node, ast.FunctionDef) and _is_command(node):
            yield ast.get_docstring(node) or ""
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            is_prose = " " in node.value.strip() and "create table" not in node.value
            if is_prose and id(node) not in comments:
                yield node.value


def _is_command(function: ast.FunctionDef) -> bool:
    """Whether click makes a command of *function*, whose docstring is its help."""
    return any("command" in ast.unparse(made_by) for made_by in function.decorator_list)
