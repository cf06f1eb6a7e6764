"""Markdown from texts of the code."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

RST_CODE = re.compile(r"``([^`]+)``|(?<!\w)\*(\w+)\*(?!\w)")
"""Code, or the name of a setting, as docstrings have them."""
CODE = re.compile(r"(`[^`]*`)")
ESCAPED = re.compile(r"[*|]|<(?=\w)")


def format_text(text: str) -> str:
    """Give a text of the code as Markdown in one line: its code marks, its stars as they are."""
    line = RST_CODE.sub(lambda m: f"`{m[1] or m[2]}`", " ".join(text.split()))
    return "".join(p if p.startswith("`") else ESCAPED.sub(r"\\\g<0>", p) for p in CODE.split(line))


def format_code(text: str) -> str:
    """Give *text* as code that may stand in a table; nothing for nothing."""
    return f"`{text}`".replace("|", "\\|") if text else ""


def write_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a table; none without rows."""
    lines = [f"| {' | '.join(row)} |" for row in rows]
    if lines:
        yield f"| {' | '.join(head)} |"
        yield "|" + "---|" * len(head)
        yield from lines
        yield ""


def write_block(language: str, text: str) -> Iterator[str]:
    """Yield a block of code."""
    yield f"```{language}"
    yield text
    yield "```"
    yield ""
