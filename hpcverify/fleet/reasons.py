"""
Tell from the reason of a drain whether somebody found a fault in the node.

A reason is *planned* if it has a word for planned work and none for a fault; the words are lines of
`reason_words.csv`. A reason with neither counts as an outage, since somebody drained the node.
Scripts write reasons with underscores: `reboot_failed` is two words.
"""

from __future__ import annotations

import csv
import re
from functools import cache
from pathlib import Path


@cache
def read_reason_words() -> dict[str, tuple[str, ...]]:
    """Read the words that ship, in lower case and with wildcards, by what they mean."""
    words: dict[str, tuple[str, ...]] = {}
    with Path(__file__).with_name("reason_words.csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            words[row["means"]] = (*words.get(row["means"], ()), row["word"])
    return words


def is_planned(reason: str, of_site: tuple[str, ...] = ()) -> bool:
    """
    Whether *reason* is planned work and no fault.

    A word *of_site* says that it is, whatever else it says.
    """
    shipped, words = read_reason_words(), _part(reason)
    if _compile(of_site).search(words):
        return True
    planned = _compile(shipped["planned"]).search(words)
    return planned is not None and not _compile(shipped["fault"]).search(words)


def _part(text: str) -> str:
    return text.replace("_", " ")


@cache
def _compile(words: tuple[str, ...]) -> re.Pattern[str]:
    """Compile *words* to what finds any of them; without words, to what finds nothing."""
    either = "|".join(re.escape(_part(word)).replace(r"\*", r"\w*") for word in words) or r"(?!)"
    return re.compile(rf"\b(?:{either})\b", re.IGNORECASE)
