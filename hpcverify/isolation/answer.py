"""
What an isolation says: who is to blame, on what evidence, and what is not known.

A node is accused only if it failed alone, or with different partners that pass with each
other. A link, a switch and a group that only fails as a whole name no node.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

import msgspec
from msgspec import Struct

from hpcverify.errors import StoreError
from hpcverify.isolation.group_tests import GroupOutcome, GroupPurpose, Members
from hpcverify.isolation.journal import Journal
from hpcverify.isolation.partly import PartlySlow
from hpcverify.isolation.runner import count_node_minutes, name_members
from hpcverify.isolation.stages import Isolation
from hpcverify.units import format_count

INNER_PARTS = "adapters, their PCIe slots and settings, and what is between them and the GPUs"
OUTER_PARTS = "cable, transceiver, adapter, PCIe slot and driver settings"
UNTESTED_REASON = "too few of its tests came to an end, or no partner was left that passes"
MAX_RECORDS = 12
"""Tests that are listed for a node; the others are counted."""


class TestRecord(Struct, frozen=True, kw_only=True):
    """A test that says something of a node."""

    __test__ = False
    round: int
    purpose: GroupPurpose
    partners: Members
    outcome: GroupOutcome
    reason: str


class AccusedNode(Struct, frozen=True, kw_only=True):
    """A node that is to blame, and the evidence."""

    node: str
    is_alone: bool
    """Whether it fails without any other node."""
    directions: tuple[str, ...] = ()
    """Whether it sends or receives slowly, if that is known."""
    failed: tuple[TestRecord, ...]
    passed: tuple[TestRecord, ...]

    @property
    def summary(self) -> str:
        """Say in one sentence what is wrong with it."""
        if self.is_alone:
            return (
                f"fails alone, in {format_count(len(self.failed), 'test')}: its own adapters, "
                f"or what is between them and its GPUs; {self.failed[-1].reason}"
            )
        pairs = [one for one in self.failed if one.purpose is GroupPurpose.PAIR]
        partners = dict.fromkeys(chain.from_iterable(one.partners for one in pairs))
        how = f"; it {' and '.join(self.directions)} slowly" if self.directions else ""
        return (
            f"spoils collectives with {format_count(len(partners), 'partner')} that pass "
            f"without it ({name_members(tuple(partners))}){how}; {pairs[-1].reason}"
        )


class SendRecord(Struct, frozen=True, kw_only=True):
    """A test in which one node sent to another."""

    sender: str
    receiver: str
    outcome: GroupOutcome
    reason: str


class IsolationAnswer(Struct, frozen=True, kw_only=True):
    """What an isolation found; in the order of an operator's questions."""

    id: str
    accused: tuple[AccusedNode, ...] = ()
    switches: Members = ()
    """Switches that spoil what goes through them; no node is to blame for it."""
    links: tuple[Members, ...] = ()
    """Pairs of nodes, or of switches, slow only with each other: from the first to the second."""
    is_widespread: bool = False
    together: tuple[Members, ...] = ()
    intermittent: tuple[Members, ...] = ()
    partly: tuple[PartlySlow, ...] = ()
    """Nodes that are slow with some partners each time, and well with others: not accused."""
    misfits: Members = ()
    """Nodes that fail with all others, and pass with each other: not accused."""
    untested: dict[str, str] = {}
    """Nodes, and switches, of which nothing can be said, and why."""
    left_out: dict[str, str] = {}
    """Nodes that were not idle when it began, and why."""
    cleared: int
    """Nodes that are not to blame."""
    cleared_nodes: Members = ()
    """Who they are."""
    sent: tuple[SendRecord, ...] = ()
    """Who sent to whom; a cell of that matrix may have been tested more than once."""
    rounds: int
    tests: int
    node_minutes: float
    end_reason: str = ""
    """Why it ended before its time."""

    @property
    def is_certain(self) -> bool:
        """Whether each node was either accused or cleared, and nothing is left open."""
        vague = [self.is_widespread, self.together, self.intermittent, self.untested]
        vague += [self.partly, self.misfits]
        return not any(vague) and not self.end_reason

    @property
    def has_culprit(self) -> bool:
        """Whether something is to blame: a node, a switch or a link."""
        return bool(self.accused or self.switches or self.links)


def build_answer(
    journal: Journal, found: Isolation, gone: Mapping[str, str], end_reason: str = ""
) -> IsolationAnswer:
    """
    Build the answer from what was *found*, and the tests in the *journal*.

    *gone* says why nodes could not be tested any more, *end_reason* why all of it ended
    before its time.
    """
    order = journal.order
    of_switches = {n for n in order.nodes if order.switches.get(n) in found.matrix.switches}
    bad = [node for node in found.nodes.bad if node not in of_switches]
    accused = [_accuse(node, journal, found, is_alone=True) for node in found.inside]
    accused += [_accuse(node, journal, found, is_alone=False) for node in bad]
    untested = {n: gone.get(n, UNTESTED_REASON) for n in found.nodes.untested}
    untested |= dict.fromkeys(found.switches.untested, "what is between it and others")
    doubted = {n for group in _list_intermittent(found) for n in group}
    doubted |= {*found.misfits, *(one.node for one in found.partly)}
    vague = {*untested, *doubted, *chain.from_iterable(found.nodes.together)}
    of_dead = {n for n in order.nodes if order.switches.get(n) in found.nodes.bad_zones}
    blamed = {one.node for one in accused}
    records = [record for record in journal.rounds if record.judged]
    tested = {node for record in records for test in record.tests for node in test.members}
    known = tuple(n for n in order.nodes if n in tested - {*vague, *of_dead, *blamed})
    if found.nodes.is_widespread:
        known = ()
    return IsolationAnswer(
        id=order.id,
        accused=tuple(accused),
        switches=tuple(
            dict.fromkeys((*found.nodes.bad_zones, *found.switches.bad, *found.matrix.switches))
        ),
        links=tuple(_list_links(found)),
        is_widespread=found.nodes.is_widespread or found.switches.is_widespread,
        together=(*found.nodes.together, *found.switches.together),
        intermittent=tuple(_list_intermittent(found)),
        partly=found.partly,
        misfits=found.misfits,
        untested=untested,
        left_out=order.left_out,
        cleared=len(known),
        cleared_nodes=known,
        sent=tuple(_list_sent(journal)),
        rounds=len(records),
        tests=sum(len(record.tests) for record in records),
        node_minutes=round(count_node_minutes(journal), 1),
        end_reason=end_reason,
    )


def is_answer(text: bytes) -> bool:
    """Whether the *text* of a document is the answer of an isolation."""
    try:
        return msgspec.json.decode(text, type=_AnyDocument).cleared is not None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False


class _AnyDocument(Struct, frozen=True):
    cleared: int | None = None


def parse_answer(text: bytes, subject: str) -> IsolationAnswer:
    """
    Parse the *text* of an answer; *subject* names the file.

    Raises:
        StoreError: it is incomplete.

    """
    try:
        return msgspec.json.decode(text, type=IsolationAnswer)
    except msgspec.DecodeError as exc:
        raise StoreError(f"{subject} is not the answer of an isolation ({exc})") from exc


def _list_sent(journal: Journal) -> Iterator[SendRecord]:
    for record in journal.rounds:
        judged = record.judged.judgements if record.judged else ()
        for test, judgement in zip(record.tests, judged, strict=bool(judged)):
            if test.purpose is GroupPurpose.SEND:
                sender, receiver = test.members
                yield SendRecord(
                    sender=sender,
                    receiver=receiver,
                    outcome=judgement.outcome,
                    reason=judgement.reason,
                )


def _accuse(node: str, journal: Journal, found: Isolation, *, is_alone: bool) -> AccusedNode:
    records = [
        one
        for one in _list_records(node, journal)
        if one.outcome is not GroupOutcome.UNKNOWN and one.purpose is not GroupPurpose.SEND
    ]
    ways = {"sends": found.matrix.senders, "receives": found.matrix.receivers}
    return AccusedNode(
        node=node,
        is_alone=is_alone,
        directions=tuple(way for way, names in ways.items() if node in names),
        failed=tuple(one for one in records if one.outcome is GroupOutcome.FAILED),
        passed=tuple(one for one in records if one.outcome is GroupOutcome.PASSED),
    )


def _list_records(node: str, journal: Journal) -> Iterator[TestRecord]:
    for number, record in enumerate(journal.rounds, 1):
        judged = record.judged.judgements if record.judged else ()
        for test, judgement in zip(record.tests, judged, strict=bool(judged)):
            if node in test.members:
                yield TestRecord(
                    round=number,
                    purpose=test.purpose,
                    partners=tuple(one for one in test.members if one != node),
                    outcome=judgement.outcome,
                    reason=judgement.reason,
                )


def _list_links(found: Isolation) -> Iterator[Members]:
    """List links in each direction that is known to be slow; in both if neither is."""
    measured = set(found.matrix.links)
    for one, other in (*found.nodes.links, *found.switches.links):
        known = [way for way in ((one, other), (other, one)) if way in measured]
        yield from known or [(one, other), (other, one)]
        measured.difference_update(known)
    yield from sorted(measured)


def _list_intermittent(found: Isolation) -> Iterator[Members]:
    yield from (*found.nodes.intermittent, *found.switches.intermittent)
    blamed = {*found.nodes.bad, *found.misfits, *chain.from_iterable(found.nodes.links)}
    odd = {*found.matrix.senders, *found.matrix.receivers} - blamed
    yield from ((node,) for node in sorted(odd))
    yield from found.matrix.flaky


def describe_answer(answer: IsolationAnswer) -> Iterator[str]:
    """Say the *answer* in lines, what matters first."""
    for one in answer.accused:
        yield f"{one.node} {one.summary}"
        yield from (f"  failed  {line}" for line in _describe_records(one.failed))
        yield from (f"  passed  {line}" for line in _describe_records(one.passed))
        yield f"  look at its {INNER_PARTS if one.is_alone else OUTER_PARTS}"
    yield from describe_rest(answer)


def describe_rest(answer: IsolationAnswer) -> Iterator[str]:
    """Say in lines what the *answer* says besides of nodes that are to blame."""
    for switch in answer.switches:
        yield f"switch {switch} spoils what goes through it; none of its nodes is the cause"
    for sender, receiver in answer.links:
        yield (
            f"from {sender} to {receiver} it is slow, and neither is slow with others: "
            "the cable or ports between them, or the route"
        )
    if answer.is_widespread:
        yield (
            "most tests fail, whichever nodes take part, so no single node is the cause; look for "
            "what all share: versions of NCCL and drivers, settings, other traffic, the fabric"
        )
    for group in answer.together:
        yield (
            f"{name_members(group)} fail only together, and no smaller group does, so no single "
            "node is the cause; look at versions, and at what only many load: uplinks, congestion"
        )
    if answer.misfits:
        yield (
            f"{name_members(answer.misfits)} fail with all others, and pass with each other: look "
            "for what they share and others have not: a version, a setting, a switch"
        )
    for one in answer.partly:
        yield (
            f"{one.node} is slow with {name_members(one.slow_with)} each time, and well with "
            f"{name_members(one.well_with)}: one of several adapters or paths"
        )
    for group in answer.intermittent:
        yield f"{name_members(group)} failed and then passed: intermittent, not excluded"
    yield from _describe_untested(answer)
    if answer.end_reason:
        yield f"ended before its time: {answer.end_reason}"
    if not answer.has_culprit and answer.is_certain:
        yield "no cause found: all tests pass, or pass when they are repeated"
    yield (
        f"{answer.cleared} cleared; {format_count(answer.tests, 'test')} in "
        f"{format_count(answer.rounds, 'round')}, {answer.node_minutes:g} node-minutes "
        f"(isolation {answer.id})"
    )


def _describe_untested(answer: IsolationAnswer) -> Iterator[str]:
    for title, nodes in (("untested", answer.untested), ("left out", answer.left_out)):
        by_reason: dict[str, list[str]] = {}
        for node, why in nodes.items():
            by_reason.setdefault(why, []).append(node)
        for why, names in by_reason.items():
            yield f"{title}: {name_members(tuple(names))}: {why}"


def _describe_records(records: Sequence[TestRecord]) -> Iterator[str]:
    yield from map(describe_record, records[-MAX_RECORDS:])
    if len(records) > MAX_RECORDS:
        yield f"and {len(records) - MAX_RECORDS} more"


def describe_record(record: TestRecord) -> str:
    """Say when a test was, with whom, and what came of it."""
    who = f"with {name_members(record.partners)}" if record.partners else "alone"
    return f"round {record.round}, {who}: {record.reason}"
