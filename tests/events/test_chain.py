"""A line that was changed, left out or put in is named by its number."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from hpcverify.events.chain import CHAIN_START, ChainLink, compute_digest, verify_chain


def make_lines(count: int) -> list[bytes]:
    lines: list[bytes] = []
    previous = CHAIN_START.digest
    for number in range(1, count + 1):
        lines.append(msgspec.json.encode({"number": number, "previous": previous, "node": "n1"}))
        previous = compute_digest(lines[-1])
    return lines


LINES = make_lines(6)


def test_a_chain_that_is_whole_is_verified_from_its_first_to_its_last_event() -> None:
    report = verify_chain(LINES, CHAIN_START)

    assert (report.first, report.last, report.wrong) == (
        1,
        ChainLink(6, compute_digest(LINES[5])),
        0,
    )


def test_what_follows_pruned_events_is_verified_from_their_anchor() -> None:
    anchor = ChainLink(2, compute_digest(LINES[1]))

    assert verify_chain(LINES[2:], anchor).wrong == 0
    assert verify_chain(LINES[2:], ChainLink(2, "0" * 64)).wrong == 3
    assert verify_chain(LINES[3:], anchor).wrong == 3


def test_a_file_may_begin_anywhere() -> None:
    report = verify_chain(LINES[3:])

    assert (report.first, report.last.number, report.wrong) == (4, 6, 0)


@pytest.mark.parametrize(
    ("damage", "wrong"),
    [
        (lambda lines: lines.pop(2), 3),
        (lambda lines: lines.insert(3, lines[2]), 4),
        (lambda lines: lines.__setitem__(2, lines[2].replace(b"n1", b"n2")), 4),
        (lambda lines: lines.__setitem__(2, b"{}"), 3),
        (lambda lines: lines.__setitem__(2, b"\xff"), 3),
        (lambda lines: lines.reverse(), 1),
    ],
)
def test_the_first_event_that_does_not_fit_is_named(
    damage: Callable[[list[bytes]], object], wrong: int
) -> None:
    lines = list(LINES)
    damage(lines)

    assert verify_chain(lines, CHAIN_START).wrong == wrong


def test_without_events_nothing_is_wrong() -> None:
    assert verify_chain([], CHAIN_START).wrong == 0
