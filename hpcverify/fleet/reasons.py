"""
Tell from the reason of a drain whether anybody found something wrong with the node.

By words, each a line of `reason_words.csv`: a reason is *planned* if it has a word for planned
work and none for a fault. What has neither counts as an outage, since somebody drained the node.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Collection
from fnmatch import fnmatchcase
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


def is_planned(reason: str, of_site: Collection[str] = ()) -> bool:
    """
    Whether *reason* is planned work and no fault.

    A word *of_site* says that it is, whatever else it says.
    """
    said = re.findall(r"\w+", reason.lower())
    shipped = read_reason_words()
    if _has_any(said, [word.lower() for word in of_site]):
        return True
    return _has_any(said, shipped["planned"]) and not _has_any(said, shipped["fault"])


def _has_any(said: Collection[str], words: Collection[str]) -> bool:
    return any(fnmatchcase(each, word) for each in said for word in words)
