"""
The fleet in the morning: who needs attention and what to do, then the whole map.

One page that opens anywhere; what it links to are pages of nodes, written beside it.
The table under the map says in words all that the map shows by signs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby

from hpcverify.fleet.overview import (
    BAD,
    EXTERNAL,
    Overview,
    Row,
    age,
    breaker,
    natural,
    rack,
    tally,
    weight,
    worth_a_page,
)
from hpcverify.fleet.said import Said
from hpcverify.model import Remedy, Verdict
from hpcverify_reports.heat import Block, Line, Square, blocks
from hpcverify_reports.pages import page
from hpcverify_reports.words import MARKS, NEXT, Mark, anchor, moment

RACKS = 2000
"""More nodes than these are shown by rack: a row for each would be too long to read."""
LISTED = 500
"""Rows of a table; JSON has them all."""
NAMED = 8
"""Nodes that are named for what to do."""
REASON = 300
"""Characters of a reason in a table; the page of the node has all of it."""
HINT = 60
"""The same in the map."""
HEADS = ("state", "")
"""The first columns of the map: what is not a check stands apart."""

Links = Mapping[tuple[str, str], str]
"""Where the page of a node's run of a suite lies: (node, suite) -> a relative URL."""
AT_LARGE = ("healthy", "unverified")
"""States in which nothing is held."""
SIGNS = {
    "lemon": Verdict.FAIL,
    "quarantined": Verdict.FAIL,
    "suspect": Verdict.WARN,
    "healthy": Verdict.PASS,
}
"""What a state is in the map; any other says nothing of the hardware."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """A check that did not pass, or a node that is bad for no check of today."""

    node: str
    page: str
    state: str
    since: str
    mark: Mark
    check: str
    href: str
    found: str
    next: str
    seen: str


@dataclass(frozen=True, slots=True)
class Shown:
    """A node in one of the lists."""

    name: str
    page: str
    cells: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Listing:
    """A section that lists nodes; *more* says where the rest is."""

    id: str
    title: str
    summary: str
    columns: tuple[str, ...]
    rows: tuple[Shown, ...]
    count: int
    more: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Action:
    """What to do, and on which nodes."""

    text: str
    nodes: tuple[tuple[str, str], ...]
    """Name and page."""
    more: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Page:
    """All that the template prints, in its order."""

    signs: tuple[Mark, ...]
    headline: str
    mark: Mark
    lede: str
    tripped: tuple[str, ...]
    actions: tuple[Action, ...]
    facts: tuple[tuple[str, str], ...]
    unit: str
    blocks: tuple[Block, ...]
    troubles: tuple[Trouble, ...]
    count: int
    more: tuple[str, ...]
    lists: tuple[Listing, ...]
    made: str


def render(fleet: Overview, links: Links) -> str:
    """Print *fleet* as one HTML page that links to the pages of *links*."""
    return page("fleet.html.j2", page=lay_out(fleet, links))


def lay_out(fleet: Overview, links: Links) -> Page:
    """Decide all that the page says."""
    troubles = [t for row in fleet.rows for t in _troubles(row, fleet.made, links)]
    by_rack = len(fleet.rows) > RACKS
    return Page(
        signs=tuple(MARKS.values()),
        headline=headline(fleet.rows),
        mark=MARKS[_verdict(fleet.rows)],
        lede=lede(fleet.rows),
        tripped=(breaker(fleet),) if fleet.tripped else (),
        actions=tuple(_actions(fleet.rows, links)),
        facts=tuple(_facts(fleet)),
        unit="rack" if by_rack else "node",
        blocks=heat(fleet.rows, links, by_rack=by_rack),
        troubles=tuple(troubles[:LISTED]),
        count=len(troubles),
        more=_more(len(troubles)),
        lists=tuple(listing for listing in _lists(fleet, links) if listing.rows),
        made=moment(datetime.fromtimestamp(fleet.made, UTC)),
    )


def headline(rows: Sequence[Row]) -> str:
    """Say how many nodes need attention."""
    bad = sum(row.attention for row in rows)
    if not rows:
        return "No node is known yet"
    if not bad:
        return f"None of {len(rows)} nodes needs attention"
    return f"{bad} of {len(rows)} nodes need{'s' * (bad == 1)} attention"


def lede(rows: Sequence[Row]) -> str:
    """Say in which states the nodes are, and what else there is to know."""
    if not rows:
        return "Neither the controller nor a run has told of one."
    overdue = sum(row.overdue for row in rows)
    observed = sum(row.node.state in BAD and not row.node.enforced for row in rows)
    warned = sum(not row.attention and row.worst is Verdict.WARN for row in rows)
    told = (
        f"{tally(rows).capitalize()}.",
        f"{observed} of those that failed {_are(observed)} only observed."
        if observed
        else "",
        f"{warned} more warn{'s' * (warned == 1)}." if warned else "",
        f"{overdue} {_have(overdue)} not passed for long." if overdue else "",
    )
    return " ".join(filter(None, told))


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


def _have(count: int) -> str:
    return "has" if count == 1 else "have"


def _verdict(rows: Sequence[Row]) -> Verdict:
    """Say what the whole looks like: the worst of what needs attention."""
    return max((_seen(row) for row in rows if row.attention), default=Verdict.PASS)


def _seen(row: Row) -> Verdict:
    bad = row.node.state in BAD
    return Verdict.FAIL if bad else max(row.worst, row.verdict or row.worst)


def _actions(rows: Sequence[Row], links: Links) -> Iterator[Action]:
    by_remedy: dict[Remedy, list[Row]] = {}
    for row in rows:
        if row.attention:
            by_remedy.setdefault(_remedy(row), []).append(row)
    for remedy in sorted(by_remedy, key=list(Remedy).index, reverse=True):
        some = by_remedy[remedy]
        more = len(some) - NAMED
        yield Action(
            text=NEXT[remedy].removesuffix("."),
            nodes=tuple((row.node.name, _page(row, links)) for row in some[:NAMED]),
            more=(f"and {more} more",) if more > 0 else (),
        )


def _remedy(row: Row) -> Remedy:
    """Choose the strongest remedy of the worst; without one, somebody has to look."""
    asked = [one.remedy for one in row.said if weight(one) is row.worst]
    if row.worst < Verdict.ERROR:
        return Remedy.RERUN
    return max(asked, key=list(Remedy).index, default=Remedy.INSPECT)


def _facts(fleet: Overview) -> Iterator[tuple[str, str]]:
    passed = sum(not row.overdue for row in fleet.rows)
    yield "Verified lately", f"{passed} of {len(fleet.rows)} nodes"
    yield "Breaker", "tripped" if fleet.tripped else "not tripped"
    flakes = sum(row.node.flakes for row in fleet.rows)
    yield "Taken back by a rerun", f"{flakes} failure{'s' * (flakes != 1)}"
    yield "Made", moment(datetime.fromtimestamp(fleet.made, UTC))


def heat(rows: Iterable[Row], links: Links, *, by_rack: bool) -> tuple[Block, ...]:
    """Draw the map, in the order of the names."""
    ordered = sorted(rows, key=lambda row: natural(row.node.name))
    checks = sorted({one.check for row in ordered for one in row.said})
    if by_rack:
        lines = [
            _rack(name, list(some), checks, links)
            for name, some in groupby(ordered, key=lambda row: rack(row.node.name))
        ]
    else:
        lines = [_line(row, checks, links) for row in ordered]
    return blocks((*HEADS, *checks), lines)


def _line(row: Row, checks: Sequence[str], links: Links) -> Line:
    said = {one.check: _square(one, links) for one in row.said}
    return Line(
        name=row.node.name,
        href=_page(row, links),
        weight=700 if row.attention else 400,
        squares=(_state(row, links), None, *(said.get(check) for check in checks)),
    )


def _state(row: Row, links: Links) -> Square:
    sign = SIGNS.get(row.state, Verdict.SKIP)
    title = f"{row.node.name}: {row.shown}"
    return Square(sign, _page(row, links), title)


def _square(one: Said, links: Links) -> Square:
    """Make the square of a result; what is in beta can do no more than warn."""
    verdict = weight(one)
    told = f"{one.node} {one.check}: {MARKS[verdict].word}"
    hint = f", {_cut(one.reason, HINT)}" if one.reason else ""
    return Square(verdict, _href(one, links), told + hint)


def _rack(name: str, rows: Sequence[Row], checks: Sequence[str], links: Links) -> Line:
    """Fold the rows of a rack into one: of each check the worst, and how many so."""
    lines = [_line(row, checks, links) for row in rows]
    columns = zip(*(line.squares for line in lines), strict=True)
    heads = (*HEADS, *checks)
    return Line(
        name=f"{name} ({len(rows)})",
        href="",
        weight=700 if any(row.attention for row in rows) else 400,
        squares=tuple(
            _worst(f"{name} {head}", column)
            for head, column in zip(heads, columns, strict=True)
        ),
    )


def _worst(subject: str, column: Sequence[Square | None]) -> Square | None:
    there = [square for square in column if square is not None]
    if not there:
        return None
    worst = max(there, key=lambda square: square.verdict)
    alike = sum(square.verdict is worst.verdict for square in there)
    word = MARKS[worst.verdict].word
    told = f"{subject}: {word} on {alike} of {len(there)}, as {worst.title}"
    return Square(worst.verdict, worst.href, told)


def _troubles(row: Row, now: float, links: Links) -> Iterator[Trouble]:
    """Yield what did not pass on a node, worst first, or else why it is bad."""
    loud = [one for one in row.said if weight(one) >= Verdict.WARN]
    for one in sorted(loud, key=weight, reverse=True):
        yield _trouble(row, now, links, one)
    if row.attention and row.worst < Verdict.ERROR:
        yield _trouble(row, now, links, None)


def _trouble(row: Row, now: float, links: Links, one: Said | None) -> Trouble:
    seen = row.node.finished if one is None else one.started.timestamp()
    text = row.why if one is None else one.reason
    remedy = _remedy(row) if one is None else one.remedy
    return Trouble(
        node=row.node.name,
        page=_page(row, links),
        state=row.shown,
        since=_since(row, now),
        mark=MARKS[_seen(row) if one is None else weight(one)],
        check="" if one is None else one.check,
        href="" if one is None else _href(one, links),
        found=_cut(text, REASON),
        next=NEXT[remedy],
        seen=f"{age(seen, now)} ago" if seen else "",
    )


def _lists(fleet: Overview, links: Links) -> Iterator[Listing]:
    yield _held(fleet, links)
    yield _others(fleet, links)
    yield _unverified(fleet, links)
    yield _flaky(fleet, links)


def _held(fleet: Overview, links: Links) -> Listing:
    out = [r for r in fleet.rows if r.state not in (*AT_LARGE, EXTERNAL)]
    return _listing(
        "held",
        "Out of service",
        "What we hold, or would hold if the site did not only observe.",
        ("State", "Since", "Why", "Must pass again"),
        [
            _shown(r, links, r.shown, _since(r, fleet.made), r.why, _checks(r))
            for r in out
        ],
    )


def _others(fleet: Overview, links: Links) -> Listing:
    return _listing(
        "others",
        "Held by others",
        "Somebody else took these out of service. They are left alone.",
        ("Why", "Last full pass"),
        [
            _shown(r, links, r.node.foreign, _ago(r.node.passed, fleet.made))
            for r in fleet.rows
            if r.state == EXTERNAL
        ],
    )


def _unverified(fleet: Overview, links: Links) -> Listing:
    overdue = sorted((r for r in fleet.rows if r.overdue), key=lambda r: r.node.passed)
    return _listing(
        "unverified",
        "Not verified for long",
        "No full pass lately, the longest first.",
        ("Last full pass", "State", "Last verdict"),
        [
            _shown(r, links, _ago(r.node.passed, fleet.made), r.shown, _word(r))
            for r in overdue
        ],
    )


def _flaky(fleet: Overview, links: Links) -> Listing:
    taken_back = [r for r in fleet.rows if r.node.flakes]
    return _listing(
        "flaky",
        "Failures that a rerun took back",
        "Often on one node: a part about to fail. On many nodes: too strict a limit.",
        ("How often", "State"),
        [
            _shown(r, links, str(r.node.flakes), r.shown)
            for r in sorted(taken_back, key=lambda r: -r.node.flakes)
        ],
    )


def _listing(
    name: str, title: str, summary: str, columns: tuple[str, ...], rows: Sequence[Shown]
) -> Listing:
    shown, count = tuple(rows[:LISTED]), len(rows)
    return Listing(name, title, summary, columns, shown, count, _more(count))


def _shown(row: Row, links: Links, *cells: str) -> Shown:
    return Shown(
        row.node.name, _page(row, links), tuple(_cut(c, REASON) for c in cells)
    )


def _more(count: int) -> tuple[str, ...]:
    left = count - LISTED
    return (f"and {left} more: hpcverify report --fleet --format json",) * (left > 0)


def _checks(row: Row) -> str:
    return ", ".join(row.node.checks)


def _word(row: Row) -> str:
    return MARKS[row.verdict].word if row.verdict else "none"


def _since(row: Row, now: float) -> str:
    return f"for {age(row.node.since, now)}" if row.node.since else ""


def _ago(when: float, now: float) -> str:
    return f"{age(when, now)} ago" if when else "never"


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"


def _page(row: Row, links: Links) -> str:
    """Say where the page of a node lies: of the run that says most of it."""
    for one in worth_a_page(row)[:1]:
        return links.get((one.node, one.suite), "")
    return ""


def _href(one: Said, links: Links) -> str:
    """Say where a check has its place in the page of its run."""
    there = links.get((one.node, one.suite))
    return f"{there}#{anchor(one.check)}" if there else ""
