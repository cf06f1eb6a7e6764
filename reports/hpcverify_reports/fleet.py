"""
The fleet in the morning: who failed and what to do, then the lists, then the map.

One page that opens anywhere; what it links to are pages of nodes, written beside it.
The lists say in words all that the map shows by signs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import groupby

from hpcverify.fleet.overview import (
    BAD,
    DAY,
    EXTERNAL,
    NEVER,
    Overview,
    Row,
    age,
    breaker,
    natural,
    rack,
    results,
    shorten,
    tally,
    weight,
    worth_a_page,
)
from hpcverify.fleet.said import Said
from hpcverify.model import Remedy, Verdict
from hpcverify_reports.faults import Fault, Sighting, group_faults, widespread
from hpcverify_reports.heat import ROWS, Block, Line, Square, blocks
from hpcverify_reports.pages import page
from hpcverify_reports.words import MARKS, NEXT, Mark, anchor, moment

RACKS = 2000
"""More nodes than these are shown by rack: a row for each would be too long to read."""
OPEN = 4
"""Racks of the map that are open from the start: the first in which a node failed."""
FAULTS = 100
"""Faults that are told; JSON has them all."""
SIGHTED = 20
"""Nodes of one fault that are told with what was found there; the host list has all."""
SHOWN, LISTED = 20, 500
"""Rows of a list that are shown at once, and with those that can be opened."""
NAMED = 8
"""Nodes that are named for what to do."""
CAUSES = 5
"""Common causes to look for that are named."""
WEEKLY = "in the last 7 days"
"""How far back runs that failed are counted."""
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
class Seen:
    """A fault on one node."""

    node: str
    page: str
    href: str
    """Of the check in the page."""
    state: str
    found: str
    seen: str


@dataclass(frozen=True, slots=True)
class Trouble:
    """One fault: on one node, which is *only*, or on several."""

    mark: Mark
    check: str
    metric: str
    only: tuple[Seen, ...]
    some: tuple[Seen, ...]
    count: int
    hosts: str
    example: Seen
    hint: tuple[str, ...]
    next: str
    more: tuple[str, ...]


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
    rest: tuple[Shown, ...]
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
class Rack:
    """A piece of the map; *open* is the attribute of one that is unfolded."""

    name: str
    summary: str
    open: str
    blocks: tuple[Block, ...]


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
    troubles: tuple[Trouble, ...]
    count: int
    more: tuple[str, ...]
    lists: tuple[Listing, ...]
    unit: str
    racks: tuple[Rack, ...]
    made: str


def render(fleet: Overview, links: Links) -> str:
    """Print *fleet* as one HTML page that links to the pages of *links*."""
    return page("fleet.html.j2", page=lay_out(fleet, links))


def lay_out(fleet: Overview, links: Links) -> Page:
    """Decide all that the page says."""
    faults = group_faults(fleet.rows)
    by_rack = len(fleet.rows) > RACKS
    racks = _by_rack(fleet.rows, links) if by_rack else _racks(fleet.rows, links)
    return Page(
        signs=tuple(MARKS.values()),
        headline=headline(fleet.rows),
        mark=MARKS[_verdict(fleet.rows)],
        lede=lede(fleet),
        tripped=(_sentence(breaker(fleet)),) if fleet.tripped else (),
        actions=tuple(_actions(fleet.rows, faults, links)),
        facts=tuple(_facts(fleet)),
        troubles=tuple(_trouble(f, fleet.made, links) for f in faults[:FAULTS]),
        count=len(faults),
        more=_more(len(faults) - FAULTS),
        lists=tuple(listing for listing in _lists(fleet, links) if listing.rows),
        unit="rack" if by_rack else "node",
        racks=racks,
        made=_moment(fleet.made),
    )


def headline(rows: Sequence[Row]) -> str:
    """Say the worst that is true; that all is well only if that is known."""
    count = len(rows)
    failed = sum(row.outcome is Verdict.FAIL for row in rows)
    unclear = sum(row.outcome is Verdict.ERROR for row in rows)
    lately = sum(bool(row.failures) for row in rows)
    unverified = sum(row.overdue for row in rows)
    both = f", {unclear} could not be judged" if unclear else ""
    told = (
        (not rows, "No node is known yet"),
        (failed, f"{failed} of {count} {_nodes(count)} failed{both}"),
        (unclear, f"{unclear} of {count} {_nodes(count)} could not be judged"),
        (lately, f"{lately} of {count} {_nodes(count)} failed in the last 7 days"),
        (unverified == count, "No node is verified"),
        (unverified, f"No node failed, but {unverified} of {count} are not verified"),
        (count == 1, "The node passed"),
    )
    return next((text for true, text in told if true), f"All {count} nodes passed")


def lede(fleet: Overview) -> str:
    """Say what else an operator has to know, in whole sentences."""
    rows = fleet.rows
    if not rows:
        return "Neither the controller nor a run has reported one."
    days = f"in the last {fleet.overdue_days:g} days"
    told = (
        _tell(
            sum(row.node.state in BAD and not row.node.enforced for row in rows),
            "failed node stays in service (observe mode)",
            "failed nodes stay in service (observe mode)",
        ),
        _tell(
            sum(row.outcome is Verdict.FAIL and row.state in AT_LARGE for row in rows),
            "failed node is in service: the controller did not order its run",
            "failed nodes are in service: the controller did not order their runs",
        ),
        _tell(
            sum(bool(row.failures) and not row.attention for row in rows),
            f"node failed {WEEKLY}, and has had no full pass since",
            f"nodes failed {WEEKLY}, and have had no full pass since",
        ),
        _tell(
            sum(row.outcome is Verdict.WARN for row in rows),
            "node has warnings",
            "nodes have warnings",
        ),
        _tell(
            sum(row.overdue for row in rows),
            f"node has had no full pass {days}",
            f"nodes have had no full pass {days}",
        ),
        _tell(
            sum(not row.known for row in rows),
            "node is not known to the controller: only runs of its own are",
            "nodes are not known to the controller: only runs of their own are",
        ),
    )
    return " ".join(filter(None, told)) or f"Each had a full pass {days}."


def _tell(count: int, one: str, many: str) -> str:
    """Make a sentence of how many there are; none if there is none."""
    return f"{count} {one if count == 1 else many}." if count else ""


def _nodes(count: int) -> str:
    return "node" if count == 1 else "nodes"


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _verdict(rows: Sequence[Row]) -> Verdict:
    """Say what the whole looks like: green only if all nodes are verified."""
    worst = max((row.outcome or Verdict.SKIP for row in rows), default=Verdict.SKIP)
    if any(row.failures for row in rows):
        worst = max(worst, Verdict.WARN)
    return max(worst, Verdict.SKIP) if any(row.overdue for row in rows) else worst


def _actions(
    rows: Sequence[Row], faults: Sequence[Fault], links: Links
) -> Iterator[Action]:
    """Say what to do: look for common causes first, then see to each node."""
    shared = widespread(faults)
    for fault in shared[:CAUSES]:
        some = [sighting.row for sighting in fault.sightings]
        yield _action(f"Look for a common cause of {fault.name}", some, links)
    if len(shared) > CAUSES:
        left = (
            f"Look for common causes of {len(shared) - CAUSES} more of the faults below"
        )
        yield Action(left, (), ())
    explained = {
        (sighting.row.node.name, check)
        for fault in shared
        for check in fault.checks
        for sighting in fault.sightings
    }
    by_remedy: dict[Remedy, list[Row]] = {}
    for row in rows:
        if row.attention and not _is_explained(row, explained):
            by_remedy.setdefault(_remedy(row), []).append(row)
    for remedy in sorted(by_remedy, key=list(Remedy).index, reverse=True):
        yield _action(NEXT[remedy].removesuffix("."), by_remedy[remedy], links)


def _is_explained(row: Row, explained: set[tuple[str, str]]) -> bool:
    """Whether all that decides on *row* may have a common cause."""
    deciding = [one.check for one in row.said if weight(one) is row.worst]
    if row.worst < Verdict.ERROR:
        deciding = [""]
    return all((row.node.name, check) in explained for check in deciding)


def _action(text: str, rows: Sequence[Row], links: Links) -> Action:
    more = len(rows) - NAMED
    return Action(
        text=text,
        nodes=tuple((row.node.name, _page(row, links)) for row in rows[:NAMED]),
        more=(f"and {more} more",) if more > 0 else (),
    )


def _remedy(row: Row) -> Remedy:
    """Choose the strongest remedy of the worst; without one, somebody has to look."""
    asked = [one.remedy for one in row.said if weight(one) is row.worst]
    if row.worst < Verdict.ERROR:
        return Remedy.RERUN
    return max(asked, key=list(Remedy).index, default=Remedy.INSPECT)


def _facts(fleet: Overview) -> Iterator[tuple[str, str]]:
    rows = fleet.rows
    passed = sum(not row.overdue for row in rows)
    flakes = sum(row.node.flakes for row in rows)
    yield "Results", results(rows) or "none"
    yield "States", tally(rows) or "none"
    days = f"{fleet.overdue_days:g} days"
    yield f"Verified in the last {days}", f"{passed} of {len(rows)} {_nodes(len(rows))}"
    yield "New in the last 24 h", _new(fleet)
    yield "Automatic draining", "paused" if fleet.tripped else "not paused"
    yield "Failures not reproduced", str(flakes)
    yield "Made", _moment(fleet.made)


def _new(fleet: Overview) -> str:
    """Name the nodes that failed since yesterday, and not in the week before that."""
    new = [row.node.name for row in fleet.rows if _is_new(row, fleet.made - DAY)]
    more = f" and {len(new) - NAMED} more" if len(new) > NAMED else ""
    return ", ".join(new[:NAMED]) + more or "none"


def _is_new(row: Row, since: float) -> bool:
    if row.node.state in BAD:
        return row.node.since >= since
    begun = (one.started.timestamp() for one in row.said if weight(one) is Verdict.FAIL)
    return row.failures <= 1 and max(begun, default=row.failed) >= since


def _racks(rows: Iterable[Row], links: Links) -> tuple[Rack, ...]:
    """Draw the map of the nodes rack by rack; racks where nothing failed are folded."""
    ordered = sorted(rows, key=lambda row: natural(row.node.name))
    checks = sorted({one.check for row in ordered for one in row.said})
    racks = groupby(ordered, key=lambda row: rack(row.node.name))
    inside = [(name, list(some)) for name, some in racks]
    few = len(ordered) <= ROWS
    return _unfold(
        Rack(
            name=name,
            summary=_summary(some),
            open="open" if few or any(row.attention for row in some) else "",
            blocks=blocks(
                (*HEADS, *checks),
                [_line(row, checks, links) for row in some],
                prefix=f"heat-{place}",
            ),
        )
        for place, (name, some) in enumerate(inside, 1)
    )


def _by_rack(rows: Iterable[Row], links: Links) -> tuple[Rack, ...]:
    """Draw the map with a row for each rack, so many racks at a time."""
    ordered = sorted(rows, key=lambda row: natural(row.node.name))
    checks = sorted({one.check for row in ordered for one in row.said})
    racks = [
        (name, list(some))
        for name, some in groupby(ordered, key=lambda row: rack(row.node.name))
    ]
    parts = [racks[start : start + ROWS] for start in range(0, len(racks), ROWS)]
    inside = [[row for _, some in part for row in some] for part in parts]
    return _unfold(
        Rack(
            name=f"{part[0][0]} to {part[-1][0]}",
            summary=_summary(some),
            open="open" if any(row.attention for row in some) else "",
            blocks=blocks(
                (*HEADS, *checks),
                [_rack(name, some, checks, links) for name, some in part],
                prefix=f"heat-{place}",
            ),
        )
        for place, (part, some) in enumerate(zip(parts, inside, strict=True), 1)
    )


def _unfold(racks: Iterable[Rack]) -> tuple[Rack, ...]:
    """Leave of the racks that are to be open only the first ones open."""
    left = OPEN
    kept: list[Rack] = []
    for one in racks:
        kept.append(one if left else replace(one, open=""))
        left -= bool(one.open) and left > 0
    return tuple(kept)


def _summary(rows: Sequence[Row]) -> str:
    return f"{len(rows)} {_nodes(len(rows))}: {results(rows)}"


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


def _trouble(fault: Fault, now: float, links: Links) -> Trouble:
    """Lay out one fault: the node that has it, or how many do and which."""
    some = tuple(_seen(one, now, links) for one in fault.sightings[:SIGHTED])
    count = len(fault.sightings)
    single = count == 1
    left = count - SIGHTED
    hint = (
        f"On {count} of {fault.ran or count} nodes: look for a common cause first, as "
        "an image, a driver, a setting, or a limit that is too strict."
    )
    return Trouble(
        mark=MARKS[fault.verdict],
        check=", ".join(fault.checks),
        metric=fault.metric,
        only=some if single else (),
        some=() if single else some,
        count=count,
        hosts=shorten(sighting.row.node.name for sighting in fault.sightings),
        example=some[0],
        hint=(hint,) if fault.common else (),
        next=NEXT[fault.remedy],
        more=_more(left),
    )


def _seen(sighting: Sighting, now: float, links: Links) -> Seen:
    row, one = sighting.row, sighting.said
    return Seen(
        node=row.node.name,
        page=_page(row, links),
        href="" if one is None else _href(one, links),
        state=", since ".join(filter(None, (row.shown, _began(row, now)))),
        found=_cut(row.why if one is None else one.reason, REASON),
        seen=_ago(row.node.finished if one is None else one.started.timestamp(), now),
    )


def _lists(fleet: Overview, links: Links) -> Iterator[Listing]:
    yield _held(fleet, links)
    yield _others(fleet, links)
    yield _lately(fleet, links)
    yield _unverified(fleet, links)
    yield _flaky(fleet, links)


def _held(fleet: Overview, links: Links) -> Listing:
    out = [r for r in fleet.rows if r.state not in (*AT_LARGE, EXTERNAL)]
    return _listing(
        "held",
        "Out of service",
        "Taken out of service by hpcverify, or only marked so in observe mode.",
        ("State", "Since", "Why", "Release requires"),
        [
            _shown(r, links, r.shown, _began(r, fleet.made), r.why, _checks(r))
            for r in out
        ],
    )


def _others(fleet: Overview, links: Links) -> Listing:
    return _listing(
        "others",
        "Held by someone else",
        "Somebody else took these out of service. hpcverify leaves them alone.",
        ("Why", "Last full pass"),
        [
            _shown(r, links, r.node.foreign, _ago(r.node.passed, fleet.made))
            for r in fleet.rows
            if r.state == EXTERNAL
        ],
    )


def _lately(fleet: Overview, links: Links) -> Listing:
    some = [r for r in fleet.rows if r.failures and not r.attention]
    return _listing(
        "lately",
        f"Failed {WEEKLY}",
        "The newest results passed, but no full pass that the controller ordered came "
        "after the failure.",
        ("Failed runs", "The last one", "State"),
        [
            _shown(r, links, str(r.failures), _ago(r.failed, fleet.made), r.shown)
            for r in sorted(some, key=lambda r: -r.failures)
        ],
    )


def _unverified(fleet: Overview, links: Links) -> Listing:
    overdue = sorted((r for r in fleet.rows if r.overdue), key=lambda r: r.node.passed)
    return _listing(
        "unverified",
        f"No full pass in the last {fleet.overdue_days:g} days",
        "A full pass is a run of all checks that the controller ordered. The longest "
        "ago comes first.",
        ("Last full pass", "State", "Newest run"),
        [
            _shown(
                r, links, _ago(r.node.passed, fleet.made), r.shown, _last(r, fleet.made)
            )
            for r in overdue
        ],
    )


def _last(row: Row, now: float) -> str:
    """Tell the newest run, and whether it was one of the controller's."""
    if row.verdict is None and not row.said:
        return "none"
    verdict = row.verdict or row.worst
    began = max(
        (one.started.timestamp() for one in row.said), default=row.node.finished
    )
    told = f"{MARKS[verdict].word}, {_ago(max(began, row.heard), now)}"
    return (
        told if row.known and row.verdict else f"{told}, not ordered by the controller"
    )


def _flaky(fleet: Overview, links: Links) -> Listing:
    taken_back = [r for r in fleet.rows if r.node.flakes]
    return _listing(
        "flaky",
        "Failures not reproduced",
        "A second run passed. Often on one node: a part may be about to fail. On many "
        "nodes: a limit may be too strict.",
        ("How often", "State"),
        [
            _shown(r, links, str(r.node.flakes), r.shown)
            for r in sorted(taken_back, key=lambda r: -r.node.flakes)
        ],
    )


def _listing(
    name: str, title: str, summary: str, columns: tuple[str, ...], rows: Sequence[Shown]
) -> Listing:
    return Listing(
        id=name,
        title=title,
        summary=summary,
        columns=columns,
        rows=tuple(rows[:SHOWN]),
        rest=tuple(rows[SHOWN:LISTED]),
        count=len(rows),
        more=_more(len(rows) - LISTED),
    )


def _shown(row: Row, links: Links, *cells: str) -> Shown:
    return Shown(
        row.node.name, _page(row, links), tuple(_cut(c, REASON) for c in cells)
    )


def _more(left: int) -> tuple[str, ...]:
    return (f"and {left} more: hpcverify report --fleet --format json",) * (left > 0)


def _checks(row: Row) -> str:
    return ", ".join(row.node.checks)


def _began(row: Row, now: float) -> str:
    """Say since when it has been in its state, if that is known."""
    return _ago(row.node.since, now) if row.node.since else ""


def _ago(when: float, now: float) -> str:
    """Print a time and how long ago it was when the page was made."""
    return f"{_moment(when)} ({age(when, now)} ago)" if when else NEVER


def _moment(when: float) -> str:
    return moment(datetime.fromtimestamp(when, UTC))


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
