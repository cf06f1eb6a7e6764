"""
What an isolation found: the faulty nodes, the evidence, and what is not known.

A node is faulty only if it failed alone, or with different partners that pass with each
other. A link, a switch and a group that only fails as a whole name no node.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain

import msgspec
from msgspec import Struct

from hpcverify.errors import StoreError
from hpcverify.isolation.group_tests import (
    GroupOutcome,
    GroupPurpose,
    GroupTest,
    Members,
    name_members,
)
from hpcverify.isolation.journal import Journal
from hpcverify.isolation.judge import GroupJudgement
from hpcverify.isolation.stages import Isolation
from hpcverify.units import format_count

INNER_PARTS = "adapters, their PCIe slots and settings, and the paths to the GPUs"
OUTER_PARTS = "cable, transceiver, adapter, PCIe slot and driver settings"
UNTESTED_REASON = "too few of its tests completed, or no passing partner was left"
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


class FaultyNode(Struct, frozen=True, kw_only=True):
    """A node that spoils collectives, and the evidence."""

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
                f"fails alone, in {format_count(len(self.failed), 'test')}: its adapters, or "
                f"the paths to its GPUs; {self.failed[-1].reason}"
            )
        pairs = [record for record in self.failed if record.purpose is GroupPurpose.PAIR]
        partners = dict.fromkeys(chain.from_iterable(record.partners for record in pairs))
        how = f"; {' and '.join(self.directions)} slowly" if self.directions else ""
        return (
            f"slows or fails collectives with {format_count(len(partners), 'partner')} that pass "
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
    faulty: tuple[FaultyNode, ...] = ()
    switches: Members = ()
    """Switches that spoil what goes through them; their nodes are not the cause."""
    links: tuple[Members, ...] = ()
    """Pairs of nodes, or of switches, slow only with each other: from the first to the second."""
    between: tuple[Members, ...] = ()
    """Two switches each, where some node of the one is slow with some node of the other."""
    is_widespread: bool = False
    together: tuple[Members, ...] = ()
    intermittent: tuple[Members, ...] = ()
    untested: dict[str, str] = {}
    """Nodes, and switches, that could not be judged, and why."""
    left_out: dict[str, str] = {}
    """Nodes that were not idle when it began, and why."""
    passed: int
    """Nodes without a fault."""
    passed_nodes: Members = ()
    """Their names."""
    sent: tuple[SendRecord, ...] = ()
    """Who sent to whom; a cell of that matrix may have been tested more than once."""
    rounds: int
    tests: int
    node_minutes: float
    end_reason: str = ""
    """Why it ended before its time."""

    @property
    def is_certain(self) -> bool:
        """Whether each node is known to be faulty or not, and nothing is left open."""
        vague = [self.is_widespread, self.together, self.intermittent, self.untested]
        return not any((*vague, self.between, self.end_reason))

    @property
    def has_cause(self) -> bool:
        """Whether a cause was found: a node, a switch or a link."""
        return bool(self.faulty or self.switches or self.links)


def build_answer(
    journal: Journal, isolation: Isolation, gone: Mapping[str, str], end_reason: str = ""
) -> IsolationAnswer:
    """Build the answer from an *isolation* and its *journal*; *gone* are untestable nodes."""
    order, of_nodes, of_switches = journal.order, isolation.nodes, isolation.switches
    faulty = [
        _build_faulty(node, journal, isolation) for node in (*isolation.inside, *of_nodes.bad)
    ]
    intermittent = (*of_nodes.intermittent, *of_switches.intermittent)
    untested = {n: gone.get(n, UNTESTED_REASON) for n in of_nodes.untested}
    untested |= dict.fromkeys(of_switches.untested, "what is between it and others")
    vague = {*untested, *chain.from_iterable((*intermittent, *of_nodes.together))}
    of_dead = {n for n in order.nodes if order.switches.get(n) in of_nodes.bad_zones}
    failed = {node.node for node in faulty}
    records = [record for record in journal.rounds if record.judged]
    tested = {node for record in records for test in record.tests for node in test.members}
    known = tuple(n for n in order.nodes if n in tested - {*vague, *of_dead, *failed})
    if of_nodes.is_widespread:
        known = ()
    links: list[Members] = []
    for first, second in (*of_nodes.links, *of_switches.links):
        both = [(first, second), (second, first)]  # unless it is known which one is slow
        links += [way for way in both if way in of_nodes.ways] or both
    return IsolationAnswer(
        id=order.id,
        faulty=tuple(faulty),
        switches=tuple(dict.fromkeys((*of_nodes.bad_zones, *of_switches.bad))),
        links=tuple(links),
        between=isolation.between,
        is_widespread=of_nodes.is_widespread or of_switches.is_widespread,
        together=(*of_nodes.together, *of_switches.together),
        intermittent=intermittent,
        untested=untested,
        left_out=order.left_out,
        passed=len(known),
        passed_nodes=known,
        sent=tuple(
            SendRecord(
                sender=test.members[0],
                receiver=test.members[1],
                outcome=judgement.outcome,
                reason=judgement.reason,
            )
            for _, test, judgement in _list_judged(journal)
            if test.purpose is GroupPurpose.SEND
        ),
        rounds=len(records),
        tests=sum(len(record.tests) for record in records),
        node_minutes=round(journal.node_minutes, 1),
        end_reason=end_reason,
    )


def is_answer(text: bytes) -> bool:
    """Whether the *text* of a document is the answer of an isolation."""
    try:
        return msgspec.json.decode(text, type=_AnyDocument).passed is not None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False


class _AnyDocument(Struct, frozen=True):
    passed: int | None = None


def parse_answer(text: bytes, subject: str) -> IsolationAnswer:
    """Parse the *text* of an answer; *subject* names the file."""
    try:
        return msgspec.json.decode(text, type=IsolationAnswer)
    except msgspec.DecodeError as exc:
        raise StoreError(f"{subject} is not the result of an isolation ({exc})") from exc


def _list_judged(journal: Journal) -> Iterator[tuple[int, GroupTest, GroupJudgement]]:
    for number, record in enumerate(journal.rounds, 1):
        if record.judged:
            for test, judgement in zip(record.tests, record.judged.judgements, strict=True):
                yield number, test, judgement


def _build_faulty(node: str, journal: Journal, isolation: Isolation) -> FaultyNode:
    records: dict[GroupOutcome, list[TestRecord]] = {outcome: [] for outcome in GroupOutcome}
    for number, test, judgement in _list_judged(journal):
        if node in test.members and test.purpose is not GroupPurpose.SEND:
            record = TestRecord(
                round=number,
                purpose=test.purpose,
                partners=tuple(member for member in test.members if member != node),
                outcome=judgement.outcome,
                reason=judgement.reason,
            )
            records[judgement.outcome].append(record)
    ways = {"sends": isolation.nodes.senders, "receives": isolation.nodes.receivers}
    return FaultyNode(
        node=node,
        is_alone=node in isolation.inside,
        directions=tuple(way for way, names in ways.items() if node in names),
        failed=tuple(records[GroupOutcome.FAILED]),
        passed=tuple(records[GroupOutcome.PASSED]),
    )


def describe_answer(answer: IsolationAnswer) -> Iterator[str]:
    """Say the *answer* in lines, what matters first."""
    for faulty in answer.faulty:
        yield f"{faulty.node} {faulty.summary}"
        for outcome, records in (("failed", faulty.failed), ("passed", faulty.passed)):
            yield from (f"  {outcome}  {describe_record(r)}" for r in records[-MAX_RECORDS:])
            if len(records) > MAX_RECORDS:
                yield f"  {outcome}  and {len(records) - MAX_RECORDS} more"
        yield f"  Fix: check its {INNER_PARTS if faulty.is_alone else OUTER_PARTS}"
    yield from describe_rest(answer)


def describe_rest(answer: IsolationAnswer) -> Iterator[str]:
    """Say in lines what else the *answer* has, beside faulty nodes."""
    for switch in answer.switches:
        yield f"switch {switch} slows or fails collectives through it; its nodes are not the cause"
    for sender, receiver in answer.links:
        yield (
            f"{sender} to {receiver} is slow, though neither is slow with other nodes. Fix: check "
            "the cable and ports between them, and the route"
        )
    for first, second in answer.between:
        yield (
            f"a node of {first} and a node of {second} are slow with each other, but the pair was "
            "not found; other nodes of these switches are not slow with each other"
        )
    if answer.is_widespread:
        yield (
            "most tests fail on all nodes. Fix: check what all nodes share: versions of NCCL and "
            "drivers, settings, other traffic, the fabric"
        )
    for group in answer.together:
        yield (
            f"{name_members(group)} fail only together, so no single node is the cause. Fix: "
            "check versions, uplinks and congestion"
        )
    for group in answer.intermittent:
        yield f"{name_members(group)} failed and then passed: intermittent, not excluded"
    yield from _describe_untested(answer)
    if answer.end_reason:
        yield f"ended early: {answer.end_reason}"
    if not answer.has_cause and answer.is_certain:
        yield "no fault found: all tests pass, or pass when they are repeated"
    yield (
        f"{answer.passed} passed; {format_count(answer.tests, 'test')} in "
        f"{format_count(answer.rounds, 'round')}, {answer.node_minutes:g} node-minutes "
        f"(isolation {answer.id})"
    )


def describe_record(record: TestRecord) -> str:
    """Say when a test was, with whom, and what came of it."""
    who = f"with {name_members(record.partners)}" if record.partners else "alone"
    return f"round {record.round}, {who}: {record.reason}"


def _describe_untested(answer: IsolationAnswer) -> Iterator[str]:
    for title, nodes in (("untested", answer.untested), ("left out", answer.left_out)):
        by_reason: dict[str, list[str]] = {}
        for node, why in nodes.items():
            by_reason.setdefault(why, []).append(node)
        for why, names in by_reason.items():
            yield f"{title}: {name_members(tuple(names))}: {why}"
