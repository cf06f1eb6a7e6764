"""
The explanation of each code that a result may have: a title, a meaning and a fix.

The texts of a check lie in a TOML file beside its module, such as ``ecc.toml`` beside ``ecc.py``;
a check of a site has its own in the same way. ``common.toml`` here has the codes that several
checks or the engine use. Tables of faults, such as ``xid/xids.csv``, are read as they are: a
text file lists those of its check.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path

from msgspec import Struct

from hpcverify.check import matches, rank_pattern
from hpcverify.errors import ConfigError
from hpcverify.plan.catalog import BUILTIN_PACKAGE
from hpcverify.plan.config import read_toml

COMMON_PATH = Path(__file__).with_name("common.toml")


class Explanation(Struct, frozen=True, forbid_unknown_fields=True):
    """What a code means; *title* follows the name of a part, as "row remapping failed"."""

    title: str
    meaning: str
    fix: str = ""
    """A command or a clear step; empty if there is nothing to do."""


class Texts(Struct, frozen=True, forbid_unknown_fields=True):
    """The texts of a check, or those that checks have in common."""

    group: str = ""
    """What the check is about: GPU, node or fabric."""
    does: str = ""
    """What the check does, for its page."""
    why: str = ""
    """Why that matters."""
    load: str = ""
    """How long the check takes, and what it loads."""
    params: dict[str, str] = {}
    """The meaning of each parameter."""
    codes: dict[str, Explanation] = {}
    """By code, or by a pattern of metrics."""
    tables: tuple[str, ...] = ()
    """Tables of faults, relative to the folder of this file."""
    suffixes: dict[str, Explanation] = {}
    """What a suffix adds to the explanation of a code of these tables."""
    remedies: dict[str, str] = {}
    """The step of each remedy, for a row of a table that has none of its own."""


def find_explanation(
    check: str, code: str, packages: tuple[str, ...] = (BUILTIN_PACKAGE,)
) -> Explanation | None:
    """Find what *code* means in a result of *check*; None if no table has it."""
    try:
        own = list_explanations(check, packages)
    except ConfigError:  # a mistake in the table of a site
        own = {}
    common = list_common_explanations()
    exact = own.get(code) or common.get(code)
    return exact or _match_pattern(own, code) or _match_pattern(common, code)


def list_explanations(
    check: str, packages: tuple[str, ...] = (BUILTIN_PACKAGE,)
) -> Mapping[str, Explanation]:
    """
    List the explanations of the codes that only *check* has.

    Raises:
        ConfigError: a table has a mistake.

    """
    found = find_text_file(check, packages)
    return _list_file(found) if found else {}


def list_common_explanations() -> Mapping[str, Explanation]:
    """List the explanations of the codes that checks and the engine have in common."""
    return _list_file(COMMON_PATH)


def find_text_file(check: str, packages: tuple[str, ...] = (BUILTIN_PACKAGE,)) -> Path | None:
    """Find the file with the texts of *check*, in the first of *packages* that has one."""
    if not check.isidentifier():
        return None
    folders = (folder for package in packages for folder in import_module(package).__path__)
    paths = (Path(folder, f"{check}.toml") for folder in folders)
    return next((path for path in paths if path.is_file()), None)


@cache
def read_texts(path: Path) -> Texts:
    """
    Read the file of texts *path*.

    Raises:
        ConfigError: it has a mistake.

    """
    return read_toml(path, Texts)


@cache
def _list_file(path: Path) -> Mapping[str, Explanation]:
    texts = read_texts(path)
    suffixes = read_texts(COMMON_PATH).suffixes | texts.suffixes
    rows = {
        code: row
        for table in texts.tables
        for code, row in _list_rows(path.parent / table, suffixes)
    }
    return rows | texts.codes


def _list_rows(
    path: Path, suffixes: Mapping[str, Explanation]
) -> Iterator[tuple[str, Explanation]]:
    """Yield the codes of the table of faults *path*, each alone and with each of *suffixes*."""
    steps = read_texts(COMMON_PATH).remedies
    with path.open(encoding="utf-8", newline="") as table:
        for row in reversed([*csv.DictReader(table)]):  # the first row of a code counts
            number = f"Xid {row['xid']}: " if row.get("xid") else ""
            action = f" NVIDIA's action: {row['nvidia']}." if row.get("nvidia") else ""
            words = row["meaning"]
            plain = Explanation(
                title=number + words,
                meaning=f"{words[0].upper()}{words[1:]}.{action}",
                fix=row.get("fix") or steps.get(row["remedy"], ""),
            )
            yield row["code"], plain
            for suffix, more in suffixes.items():
                yield (
                    row["code"] + suffix,
                    Explanation(
                        title=f"{plain.title}{more.title}",
                        meaning=f"{plain.meaning} {more.meaning}",
                        fix=more.fix or plain.fix,
                    ),
                )


def _match_pattern(explanations: Mapping[str, Explanation], code: str) -> Explanation | None:
    fitting = (pattern for pattern in explanations if matches(code, pattern))
    best = max(fitting, key=rank_pattern, default=None)
    return None if best is None else explanations[best]
