"""The blocks of code in the pages, and the commands in them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.docs.pages import PAGES, ROOT

BLOCK = re.compile(r"(?ms)^(?P<indent> *)```(?P<language>[^`\n]*)\n(?P<text>.*?)^(?P=indent)```$")
INLINE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
PROGRAM = "hpcverify"
WRAPPERS = frozenset({"sudo", "srun", "time"})
ENDS = frozenset({"|", ";", "&", "&&", "||", ">", ">>", "<", ")", "("})


@dataclass(frozen=True)
class Block:
    """A block of code in a page, without its indent."""

    page: Path
    line: int
    language: str
    text: str

    @property
    def place(self) -> str:
        """Name the place, for the name of a test."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def list_blocks() -> Iterator[Block]:
    """Yield every block of every page."""
    for page in PAGES:
        text = page.read_text()
        for found in BLOCK.finditer(text):
            lines = found["text"].splitlines()
            body = "\n".join(line.removeprefix(found["indent"]) for line in lines)
            number = text.count("\n", 0, found.start()) + 1
            yield Block(page, number, found["language"], body)


def list_commands() -> Iterator[tuple[str, list[str]]]:
    """Yield the arguments of every ``hpcverify …`` in blocks and in code within a line."""
    for block in list_blocks():
        for line in block.text.splitlines():
            if block.language == "sh" or (block.language == "" and line.startswith("$ ")):
                yield from ((block.place, words) for words in split_commands(line))
    for page in PAGES:
        for number, line in enumerate(page.read_text().splitlines(), start=1):
            place = f"{page.relative_to(ROOT)}:{number}"
            for code in INLINE.findall(line):
                if code.startswith(f"{PROGRAM} "):
                    yield from ((place, words) for words in split_commands(code))


def split_commands(line: str) -> Iterator[list[str]]:
    """Split a line of a shell into the commands of hpcverify in it, as their arguments."""
    lexer = shlex.shlex(line.removeprefix("$ "), posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    try:
        words = list(lexer)
    except ValueError:  # an apostrophe: output, and no command
        return
    starts = [at for at, word in enumerate(words) if _is_program(words, at, word)]
    for at in starts:
        rest = words[at + 1 :]
        yield rest[: next((n for n, word in enumerate(rest) if word in ENDS), len(rest))]


def _is_program(words: list[str], at: int, word: str) -> bool:
    """Whether *word* stands where a shell looks for a program."""
    if word.rpartition("/")[2] != PROGRAM:
        return False
    return at == 0 or words[at - 1] in ENDS or words[0] in WRAPPERS
