"""
What a run makes of a node: pure, and the one place that decides.

A run counts for something only with a ticket of the controller's: it is how we know
that it was made by our own job, on that node, after what was decided before. A run
without one, of a hook or by hand, can raise suspicion and nothing more: who can write
into the spool could otherwise take other nodes out of service, or let them back in.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from hpcverify.conclusion import hard_evidence
from hpcverify.config import Site
from hpcverify.model import Cause, Maturity, Result, Run, Verdict
from hpcverify.quarantine.breaker import SPARED
from hpcverify.quarantine.ledger import Ticket
from hpcverify.quarantine.life import Hold, Node, State
from hpcverify.rounds import worst_rounds
from hpcverify.slurm.hostlist import expand

GOOD = (Verdict.PASS, Verdict.WARN)
FAILED = (State.SUSPECT, State.QUARANTINED, State.LEMON)
"""What a node is in because it failed."""
LONGEST = 900
"""Characters of a reason: it comes from a node, and is written down with each step."""
EVERY = "*"
"""As the name of a check: all of them."""


class Purpose(StrEnum):
    """What a verification is for."""

    SWEEP = "sweep"
    CONFIRM = "confirm"
    """Of a suspect."""
    RETURN = "return"
    """Of a repaired node."""
    ADMISSION = "admission"


class Failure(Struct, frozen=True):
    """A check that failed."""

    check: str
    reason: str
    hard: bool
    """Whether a rerun could not take it back."""


class Evidence(Struct, frozen=True, kw_only=True):
    """What a run says, as far as it matters here."""

    run: str
    node: str
    suite: str
    ticket: int
    """0: without one, or with one that was used before."""
    conclusive: bool
    """Whether it came to its end."""
    verdict: Verdict
    failures: tuple[Failure, ...]
    known: tuple[str, ...]
    """Checks that failed and are suppressed."""
    passed: frozenset[str]
    unjudged: tuple[tuple[Cause, str], ...]
    """Why it could not be judged, each with a sentence."""

    @property
    def full(self) -> bool:
        """Whether it is a full pass: ours, whole, and without a failure or an error."""
        return bool(self.ticket) and self.conclusive and self.verdict in GOOD

    @property
    def ran(self) -> dict[str, bool]:
        """Which checks gave an answer that counts, and whether they failed."""
        if not (self.ticket and self.conclusive):
            return {}
        failed = {f.check for f in self.failures}
        return {check: check in failed for check in (*self.passed, *failed)}


def evidence_of(run: Run, ticket: Ticket | None, site: Site, now: float) -> Evidence:
    """Distil *run*, which came in *now* (seconds since 1970) for *ticket*."""
    worst = list(worst_rounds(run.results))
    bad = [r for r in worst if r.verdict is Verdict.FAIL]
    counting = [r for r in bad if r.maturity is Maturity.STABLE]
    silenced = suppressed(run.node, site, now)
    ours = ticket is not None and not ticket.run and ticket.suite == run.suite
    return Evidence(
        run=run.id,
        node=run.node,
        suite=run.suite,
        ticket=ticket.number if ours and ticket is not None else 0,
        conclusive=run.complete,
        verdict=run.verdict,
        failures=tuple(
            Failure(r.check, r.reason, bool(_hard(r, run)))
            for r in counting
            if r.check not in silenced
        ),
        known=tuple(r.check for r in counting if r.check in silenced),
        passed=frozenset(r.check for r in worst if r.verdict in GOOD),
        unjudged=tuple(
            (r.cause, f"{r.check}: {r.reason}")
            for r in worst
            if r.verdict is Verdict.ERROR
        ),
    )


def _hard(result: Result, run: Run) -> tuple[str, ...]:
    """Gather the hard evidence of all rounds, not only of the worst one."""
    return tuple(
        text
        for each in run.results
        if each.check == result.check
        for text in hard_evidence(each, run.inventory)
    )


def suppressed(node: str, site: Site, now: float) -> set[str]:
    """Name the checks whose failure on *node* is known and not acted on, today."""
    today = datetime.fromtimestamp(now, UTC).date()
    return {
        s.check for s in site.suppress if today <= s.until and node in expand(s.nodes)
    }


def enforced(checks: Collection[str], site: Site) -> bool:
    """Whether a failure of one of *checks* takes a node out of service."""
    on = set(site.quarantine.enforce)
    return EVERY in on or not on.isdisjoint(checks)


def after(node: Node, found: Evidence, site: Site, now: float, past: int) -> Node:
    """
    Say what *node* is after *found*; *past* is how often it was quarantined lately.

    Whether it may be acted on is for the breaker to say, after this.
    """
    if not found.ticket:
        return _without_ticket(node, found, now)
    if found.ticket <= node.after or not found.conclusive:
        return node
    node = replace(node, finished=now, verdict=found.verdict.value)
    if found.failures:
        return _failed(node, found, site, now, past)
    if found.full or (found.known and not found.unjudged) or _acquits(found, node):
        return _passed(node, found, now)
    return _unjudged(node, found, site, now)


def _acquits(found: Evidence, node: Node) -> bool:
    """Whether all that made *node* a suspect passed, whatever else was not judged."""
    suspected = node.state is State.SUSPECT and bool(node.checks)
    return suspected and found.passed.issuperset(node.checks)


def _without_ticket(node: Node, found: Evidence, now: float) -> Node:
    """Suspect it, so that its turn comes first; nothing is held on such a word."""
    in_service = node.wanted is Hold.NONE
    if not (found.conclusive and found.failures and in_service):
        return node
    if node.state in (State.HEALTHY, State.UNVERIFIED):
        return _moved(node, State.SUSPECT, now, found)
    hard = {f.check for f in found.failures if f.hard}
    known = node.hard and hard.issubset(node.checks)
    return _worse(node, found) if hard and not known else node


def _worse(node: Node, found: Evidence) -> Node:
    """
    Add hard evidence to what *node* failed before, and is in service nevertheless.

    Its prolog may refuse a job for that, see `explains_refusal`.
    """
    told = _moved(node, node.state, node.since, found)
    return replace(
        told,
        reason=f"{told.reason}; {node.reason}"[:LONGEST],
        checks=tuple(dict.fromkeys((*told.checks, *node.checks))),
    )


def may_refuse(site: Site) -> tuple[str, ...]:
    """Name the checks whose hard evidence has a prolog refuse a job."""
    return tuple(c for c in site.quarantine.fail_closed if enforced([c], site))


def explains_refusal(node: Node, site: Site) -> bool:
    """Whether *node* failed what its prolog refuses a job for, acted on or not."""
    listed = not set(may_refuse(site)).isdisjoint(node.checks)
    return node.state in FAILED and node.hard and listed


def refused(node: Node, told: str, now: float) -> Node:
    """Quarantine *node* for what its prolog refused a job for, which Slurm *told*."""
    state = State.LEMON if node.lemon else State.QUARANTINED
    because, _, _ = node.reason.partition(SPARED)  # now it is
    reason = f"{told}: {because}"[:LONGEST]
    return replace(node, state=state, since=now, reason=reason, enforced=True)


def _failed(node: Node, found: Evidence, site: Site, now: float, past: int) -> Node:
    if node.state in (State.QUARANTINED, State.LEMON, State.HELD):
        if node.enforced:  # it is out of service already
            return node
        confirmed = node.state is not State.HELD
    else:
        confirmed = _is_the_same_again(node, found) or _wanted_by_person(node)
    acted_on = enforced([f.check for f in found.failures], site)
    kept = _wanted_by_person(node)  # it was out of service, and stays so
    if not (confirmed or any(f.hard for f in found.failures)):
        suspect = _moved(node, State.SUSPECT, now, found)
        return replace(suspect, enforced=acted_on)
    lemon = node.lemon or past + 1 >= site.quarantine.lemon_quarantines
    state = State.LEMON if lemon else State.QUARANTINED
    gone = _moved(node, state, now, found)
    return replace(gone, enforced=acted_on or kept, lemon=lemon)


def _is_the_same_again(node: Node, found: Evidence) -> bool:
    """Whether this confirms a suspicion: of our own, or of the same check."""
    same = not {f.check for f in found.failures}.isdisjoint(node.checks)
    return node.state is State.SUSPECT and (node.enforced or same)


def _wanted_by_person(node: Node) -> bool:
    """Whether a person has it verified, as new or repaired: it is not in service."""
    return node.state is State.VERIFYING and bool(node.by)


def _moved(node: Node, state: State, now: float, found: Evidence) -> Node:
    return replace(
        node,
        state=state,
        since=now,
        reason="; ".join(f"{f.check}: {f.reason}" for f in found.failures)[:LONGEST],
        by="",
        checks=tuple(f.check for f in found.failures),
        hard=any(f.hard for f in found.failures),
        run=found.run,
        suite=found.suite if found.ticket else node.suite,
        after=max(node.after, found.ticket),
    )


def _passed(node: Node, found: Evidence, now: float) -> Node:
    if found.full:
        node = replace(node, passed=now)
    doubt = node.state is State.SUSPECT and not node.enforced
    if not (found.passed.issuperset(node.checks) or (doubt and found.full)):
        return node  # what had failed had no turn, or is only suppressed
    told = f"passed {found.suite}"
    match node.state:
        case State.UNVERIFIED if found.full:
            node = _healthy(node, now, "")
        case State.SUSPECT:
            took_back = f"a rerun passed {', '.join(node.checks)}"
            node = replace(_healthy(node, now, took_back), flakes=node.flakes + 1)
        case State.VERIFYING if found.full and found.suite == node.suite:
            node = _returned(node, now, told)
        case State.QUARANTINED | State.LEMON if not node.enforced:
            node = _healthy(node, now, told)
        case _:
            pass
    return node


def _returned(node: Node, now: float, told: str) -> Node:
    """Let a node back that was kept for verification; a lemon waits for a person."""
    if not node.lemon:
        return _healthy(node, now, told)
    waits = f"{told}; a lemon is released by a person only"
    return replace(node, state=State.HELD, since=now, reason=waits, checks=())


def _healthy(node: Node, now: float, reason: str) -> Node:
    return replace(
        node,
        state=State.HEALTHY,
        since=now,
        reason=reason,
        by="",
        checks=(),
        enforced=False,
    )


def _unjudged(node: Node, found: Evidence, site: Site, now: float) -> Node:
    """Leave it as it is, unless the site has it held for such a cause."""
    told = [
        text for cause, text in found.unjudged if cause in site.quarantine.drain_errors
    ]
    if not told and node.kept_free:
        # Its turn brought no answer, and others wait for theirs.
        return replace(node, state=State.UNVERIFIED, since=now, enforced=False)
    if not told or node.state not in (State.HEALTHY, State.UNVERIFIED, State.SUSPECT):
        return node
    return replace(
        node,
        state=State.HELD,
        since=now,
        reason=f"could not be judged: {'; '.join(told)}"[:LONGEST],
        by="",
        enforced=True,
        run=found.run,
        after=max(node.after, found.ticket),
    )
