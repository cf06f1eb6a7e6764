"""The columns that tables of faults have in common, and the rules made from them."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from hpcverify.check import FindingRule, Remedy, Verdict
from hpcverify.telemetry.fault_table import (
    OFTEN_SUFFIX,
    OVER_SUFFIX,
    KnownFault,
    build_finding_rules,
    index_rows,
)

HEAD = "code,verdict,conclusive,remedy,often,lasting,meaning,fix,source,words\n"


class WordyFault(KnownFault, frozen=True, kw_only=True):
    """A fault of a table with a column of its own."""

    words: tuple[str, ...] = ()


def read(folder: Path, *lines: str, head: str = HEAD) -> dict[str, WordyFault]:
    path = folder / "table.csv"
    path.write_text(head + "".join(f"{line}\n" for line in lines))
    return index_rows(path, WordyFault)


def test_an_empty_cell_is_the_default_of_its_column(tmp_path: Path) -> None:
    rows = read(tmp_path, "a,warn,,inspect,,,it broke,,a book,", "b,fail,yes,reboot,3,no,x,y,z,v|w")

    assert rows["a"] == WordyFault(
        code="a", verdict=Verdict.WARN, remedy=Remedy.INSPECT, meaning="it broke", source="a book"
    )
    assert (rows["b"].conclusive, rows["b"].lasting, rows["b"].often) == (True, False, 3)
    assert rows["b"].words == ("v", "w")


@pytest.mark.parametrize(
    ("line", "head"),
    [
        ("a,maybe,,inspect,,,x,,y,", HEAD),
        ("a,warn,,inspect,many,,x,,y,", HEAD),
        ("a,warn,perhaps,inspect,,,x,,y,", HEAD),
        ("a,warn,,inspect,,,,,y,", HEAD),
        ("a,warn,yes,inspect,,,x,,y,", HEAD.replace("conclusive", "hard")),
    ],
)
def test_a_cell_or_a_column_that_is_not_understood_is_refused(
    tmp_path: Path, line: str, head: str
) -> None:
    with pytest.raises(msgspec.ValidationError):
        read(tmp_path, line, head=head)


@pytest.mark.parametrize("line", ["a,warn,,inspect,,,x,,y", "a,warn,,inspect,,,x,,y,,"])
def test_a_row_that_is_too_short_or_too_long_is_refused(tmp_path: Path, line: str) -> None:
    with pytest.raises(ValueError, match="argument 2"):
        read(tmp_path, line)


def test_a_code_that_two_rows_have_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"table.csv lists a code twice"):
        read(tmp_path, *["a,warn,,inspect,,,x,,y,"] * 2)


def test_each_suffix_of_a_row_has_its_rule(tmp_path: Path) -> None:
    rows = read(tmp_path, "a,pass,,inspect,10,,x,,y,", "b,fail,yes,reboot,3,yes,x,y,z,")

    assert build_finding_rules(rows.values()) == {
        "a": FindingRule(Verdict.PASS, Remedy.NONE),
        f"a{OFTEN_SUFFIX}": FindingRule(Verdict.WARN, Remedy.INSPECT),
        "b": FindingRule(Verdict.FAIL, Remedy.REBOOT, conclusive=True),
        f"b{OFTEN_SUFFIX}": FindingRule(Verdict.WARN, Remedy.REBOOT),
        f"b{OVER_SUFFIX}": FindingRule(Verdict.PASS, Remedy.NONE),
    }


@pytest.mark.parametrize(
    ("code", "count", "ended", "suffix"),
    [
        ("a", 9, False, ""),
        ("a", 10, False, OFTEN_SUFFIX),
        ("b", 9, False, ""),
        ("b", 2, True, OVER_SUFFIX),
        ("b", 3, True, OFTEN_SUFFIX),
    ],
)
def test_only_what_would_be_listed_counts_as_often(
    tmp_path: Path, code: str, count: int, suffix: str, *, ended: bool
) -> None:
    rows = read(tmp_path, "a,pass,,inspect,10,,x,,y,", "b,fail,,reboot,3,yes,x,y,z,")

    assert rows[code].choose_suffix(count, ended=ended) == suffix
