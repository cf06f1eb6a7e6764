"""
The lines of an nhc.conf: ``target || check arguments``.

A target is a glob, ``/regex/`` or ``{range}`` as pdsh writes it, or one of them after ``!``.
NHC evaluates the rest as bash; here it is split into words, and what only a shell can
evaluate is refused.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from fnmatch import translate

from msgspec import Struct

SHELL_SYNTAX = re.compile(r"\$[\w({?#@*!]|`")
QUOTED = re.compile(r"""'[^']*'|"(?:\\.|[^"\\])*"|\\.""")
BRACES = re.compile(r"\{[^{}\s]*(?:,|\.\.)[^{}\s]*\}|\$['\"]")
SHELL_OPERATOR = re.compile(r"[;|&<>()]")
SHELL_KEYWORDS = frozenset({"if", "for", "while", "until", "case", "!", "{"})
POSIX_CLASSES = {
    "[:space:]": r"\s",
    "[:blank:]": r" \t",
    "[:digit:]": "0-9",
    "[:alpha:]": "A-Za-z",
    "[:alnum:]": "A-Za-z0-9",
    "[:upper:]": "A-Z",
    "[:lower:]": "a-z",
    "[:xdigit:]": "0-9A-Fa-f",
    "[:punct:]": r"!-/:-@\[-`{-~",
}
KIB_PER_GIB = 2**20


class CannotTurn(Exception):  # noqa: N818 - an outcome, as `Unable`
    """A line, or a part of it, has no counterpart; the reason says why, or what to do."""


class Line(Struct, frozen=True):
    """A line of the file: where it is, and what it says."""

    number: int
    text: str
    target: str
    words: tuple[str, ...]


class Unturned(Struct, frozen=True):
    """What was not turned, and why."""

    number: int
    text: str
    reason: str


def read_lines(text: str) -> Iterator[Line | Unturned]:
    """Yield each line that says something; comments and empty lines say nothing."""
    for number, raw in _join_lines(text.splitlines()):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        try:
            target, words = _parse_line(line)
            if words:
                yield Line(number, line, target, words)
        except CannotTurn as exc:
            yield Unturned(number, line, str(exc))


def _join_lines(lines: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Join lines and drop backslashes as bash's read does, by which NHC reads its file."""
    joined, first = "", 0
    for number, line in enumerate(lines, 1):
        first = first or number
        continues = len(line) - len(line.rstrip("\\")) & 1
        joined += line[:-1] if continues else line
        if not continues or number == len(lines):
            yield first, re.sub(r"\\(.)", r"\1", joined)
            joined, first = "", 0


def _parse_line(line: str) -> tuple[str, tuple[str, ...]]:
    target, bars, check = line.partition("||")
    if not bars:
        raise CannotTurn("is not a line of an nhc.conf: it has no ||")
    return turn_target(target.strip()), _split(check)


def _split(check: str) -> tuple[str, ...]:
    outside = re.sub(r"'[^']*'", "''", check)  # in single quotes nothing is evaluated
    if SHELL_SYNTAX.search(outside):
        raise CannotTurn("only a shell can evaluate it: write the value in its place")
    bare = QUOTED.sub(lambda quoted: "_" * len(quoted[0]), check)
    if comment := re.search(r"(?:^|\s)#", bare):
        check, bare = check[: comment.start()], bare[: comment.start()]
    if BRACES.search(bare):
        raise CannotTurn("only a shell can evaluate its braces: write one line for each value")
    try:
        words = tuple(shlex.split(check))
    except ValueError as exc:
        raise CannotTurn(f"cannot be split into words: {exc}") from None
    if SHELL_OPERATOR.search(bare) or SHELL_KEYWORDS.intersection(words[:1]):
        raise CannotTurn("is a program of the shell, not one check")
    return words


def turn_target(target: str) -> str:
    """Turn a target into what `Expectation.nodes` takes."""
    if target.startswith("!"):
        return "!" + turn_target(target[1:].strip())
    if len(target) > 1 and target.startswith("/") and target.endswith("/"):
        return turn_regex(target)
    if target.startswith("{") and target.endswith("}"):
        if not re.fullmatch(r"[\w.,\[\]-]+", target[1:-1]) or ".." in target:
            raise CannotTurn("the range of its target is not as pdsh writes them")
        return target[1:-1]
    if not target or not re.fullmatch(r"[\w.*?\[\]^!-]+", target):
        raise CannotTurn("its target is of a kind of the site's own (NHC_MCHECK_DELIM)")
    # In a glob, brackets hold characters; in a host list they hold numbers.
    return f"/^{translate(target).replace('(?s:', '(?:')}/" if "[" in target else target


def turn_regex(pattern: str) -> str:
    """Turn a regular expression of bash (POSIX) into Python's."""
    for name, meaning in POSIX_CLASSES.items():
        pattern = pattern.replace(name, meaning)
    try:
        re.compile(pattern)
    except re.error as exc:
        raise CannotTurn(f"its regular expression is not Python's: {exc}") from None
    return pattern


def turn_pattern(pattern: str) -> str:
    """Turn what NHC compares texts with; globs and ``!`` mean the same here."""
    if pattern.startswith("!"):
        return "!" + turn_pattern(pattern[1:])
    if pattern.startswith("{"):
        raise CannotTurn("compares a text with a range of nodes")
    return turn_regex(pattern) if pattern.startswith("/") and pattern.endswith("/") else pattern


def parse_options(
    words: Sequence[str], flags: str, valued: str
) -> tuple[dict[str, list[str]], list[str]]:
    """Parse options of one letter as getopts does: by letter, and what follows them."""
    options: dict[str, list[str]] = {}
    rest = list(words)
    while rest and rest[0].startswith("-") and rest[0] != "-":
        word = rest.pop(0)
        if word == "--":
            break
        letters = word[1:]
        while letters:
            letter, letters = letters[0], letters[1:]
            if letter in flags:
                options.setdefault(letter, []).append("")
            elif letter in valued and (letters or rest):
                options.setdefault(letter, []).append(letters or rest.pop(0))
                letters = ""
            else:
                raise CannotTurn(f"NHC has no option -{letter} here, or its value is missing")
    return options, rest


def parse_size(text: str) -> float:
    """Parse a size as NHC does, in kB without a unit, and return GiB."""
    return parse_number(text.rstrip("bB"), 1024, "kmgtpe") / KIB_PER_GIB


def parse_number(text: str, factor: int, suffixes: str) -> float:
    """Parse a number with one of *suffixes*, each *factor* times the one before."""
    power = 0
    if text and text[-1].isalpha():
        power = suffixes.find(text[-1].lower())
        text = text[:-1]
    if power < 0 or not re.fullmatch(r"\d+(\.\d+)?", text):
        hint = ": write a decimal point and no separators" if "," in text else ""
        raise CannotTurn(f"{text!r} is not a size{hint}")
    return float(text) * float(factor**power)


def parse_count(text: str) -> float:
    """Parse a count as NHC does, with ``k`` for 1000."""
    return parse_number(text, 1000, " kmgtpe")


def parse_share(text: str) -> float | None:
    """Parse ``5%`` as 0.05; None if it is none."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)%", text)
    return float(match[1]) / 100 if match else None
