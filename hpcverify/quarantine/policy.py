"""
What a run makes of a node: pure, and the one place that decides.

A run counts for something only with a ticket of the controller's: it is how we know
that it was made by our own job, on that node, after what was decided before. A run
without one, of a hook or by hand, can raise suspicion and nothing more: who can write
into the spool could otherwise take other nodes out of service, or let them back in.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from msgspec.structs import replace

from hpcverify.config import Site
from hpcverify.quarantine.breaker import KEPT, SPARED
from hpcverify.quarantine.evidence import Evidence, Failure, enforced, suppressed
from hpcverify.quarantine.life import (
    REPAIR,
    Hold,
    Node,
    State,
    came_back,
    needs_repair,
)

FAILED = (State.SUSPECT, State.QUARANTINED, State.LEMON)
"""What a node is in because it failed."""
LONGEST = 900
"""Characters of a reason: it comes from a node, and is written down with each step."""
WAITS = " (not judged yet: "
"""Stands in a reason before what kept a node from being judged."""
OFTEN = f" (it {REPAIR})"
"""Ends the reason of a node that fails again after that."""
HARD = "hard evidence, which no rerun takes back: "
"""Begins the reason of a node that was spared, and is not any more."""


class Purpose(StrEnum):
    """What a verification is for."""

    SWEEP = "sweep"
    CONFIRM = "confirm"
    """Of a suspect."""
    RETURN = "return"
    """Of a repaired node."""
    ADMISSION = "admission"


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
    node = _judged(node, found, site, now, past)
    return _turn_over(node, now) if node.kept_free else node


def _judged(node: Node, found: Evidence, site: Site, now: float, past: int) -> Node:
    if _is_condemned(node, site, now):
        return _condemned(node, found, site, now, past)
    if found.failures:
        return _failed(node, found, site, now, past)
    if found.clean or _acquits(found, node):
        return _passed(node, found, now)
    return _unjudged(node, found, site, now)


def _turn_over(node: Node, now: float) -> Node:
    """Let a node go whose turn brought no pass: others wait for theirs."""
    told = "had its turn, which brought no full pass"
    if node.checks:
        told += f"; not verified since: failed {', '.join(node.checks)}"
    state = State.UNVERIFIED
    return replace(node, state=state, since=now, reason=told, enforced=False)


def kept_until_verified(node: Node, now: float, last: int) -> Node:
    """
    Keep *node*, which somebody else put back into service, until it has passed.

    A pass acquits it of hard evidence as well, for it may have been repaired; *last* is
    the newest ticket, and only a later one counts.
    """
    return replace(
        node,
        state=State.SUSPECT,
        since=now,
        enforced=True,
        hard=False,
        after=max(node.after, last),
    )


def believes_no_more(node: Node, doubts: Mapping[str, str]) -> Node:
    """
    Let a suspect go whose every failed check is among the *doubts*.

    Others that failed as much are in service. It stays a suspect, and is the first to
    be verified again. Hard evidence is kept until somebody has looked into the doubt.
    """
    if node.hard or not node.checks or not doubts.keys() >= set(node.checks):
        return node
    why = "; ".join(doubts[check] for check in node.checks)
    reason = f"{_because(node)}{SPARED}{why})"
    return replace(node, enforced=False, reason=reason)


def _acquits(found: Evidence, node: Node) -> bool:
    """Whether all that made *node* a suspect is settled, whatever was not judged."""
    suspected = node.state is State.SUSPECT and bool(node.checks)
    return suspected and found.settled.issuperset(node.checks)


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


def refused(node: Node, told: str, site: Site, now: float, past: int) -> Node:
    """
    Quarantine *node* for what its prolog refused a job for, which Slurm *told*.

    *past* is how often it was quarantined lately.
    """
    reason = f"{told}: {_because(node)}"[:LONGEST]
    gone = _out(replace(node, reason=reason), site, now, past)
    return replace(gone, enforced=True)


def _because(node: Node) -> str:
    """Give the reason of *node* without what was said of not acting on it."""
    because = node.reason
    for aside in (SPARED, KEPT, WAITS, OFTEN):
        because, _, _ = because.partition(aside)
    return because.removeprefix(HARD)


def _out(node: Node, site: Site, now: float, past: int) -> Node:
    """Quarantine *node*; as a lemon, if that is once too often."""
    lemon = node.lemon or past + 1 >= site.quarantine.lemon_quarantines
    state = State.LEMON if lemon else State.QUARANTINED
    often = OFTEN if needs_repair(node, now) else ""
    because = node.reason.partition(OFTEN)[0][: LONGEST - len(often)]
    return replace(node, state=state, since=now, lemon=lemon, reason=because + often)


def _is_condemned(node: Node, site: Site, now: float) -> bool:
    """Whether only the brakes have kept hard evidence from being acted on."""
    if not (node.hard and _must_pass(node)):
        return False
    return not suppressed(node.name, site, now).issuperset(node.checks)


def _condemned(node: Node, found: Evidence, site: Site, now: float, past: int) -> Node:
    """Quarantine it at last, whatever *found* says, if the site still acts on that."""
    gone = _out(_beside(node, found, node.checks), site, now, past)
    return replace(
        gone,
        reason=f"{HARD}{gone.reason}"[:LONGEST],
        by="",
        enforced=enforced(gone.checks, site) or _wanted_by_person(node),
        after=max(node.after, found.ticket),
    )


def _beside(node: Node, found: Evidence, kept: tuple[str, ...]) -> Node:
    """Add what failed to the checks that are *kept*, and each new one to the reason."""
    new = tuple(f for f in found.failures if f.check not in node.checks)
    failed = tuple(f.check for f in found.failures)
    return replace(
        node,
        reason="; ".join((_because(node), *map(_text, new)))[:LONGEST],
        checks=tuple(dict.fromkeys((*kept, *failed))),
        run=found.run if failed else node.run,
    )


def _failed(node: Node, found: Evidence, site: Site, now: float, past: int) -> Node:
    if node.state in (State.QUARANTINED, State.LEMON, State.HELD):
        if node.enforced:  # it is out of service already
            return node
        confirmed = node.state is not State.HELD
    else:
        confirmed = _is_the_same_again(node, found) or _wanted_by_person(node)
    acted_on = enforced([f.check for f in found.failures], site)
    still = tuple(c for c in node.checks if c not in found.settled)
    if not acted_on and _is_kept_suspect(node) and enforced(still, site):
        return _beside(node, found, still)
    kept = _wanted_by_person(node)  # it was out of service, and stays so
    if not (confirmed or any(f.hard for f in found.failures)):
        suspect = _moved(node, State.SUSPECT, now, found)
        return replace(suspect, enforced=acted_on)
    gone = _out(_moved(node, node.state, now, found), site, now, past)
    return replace(gone, enforced=acted_on or kept)


def _text(failure: Failure) -> str:
    return f"{failure.check}: {failure.reason}"


def _is_the_same_again(node: Node, found: Evidence) -> bool:
    """Whether this confirms a suspicion: of our own, or of the same check."""
    same = not {f.check for f in found.failures}.isdisjoint(node.checks)
    return node.state is State.SUSPECT and (node.enforced or same)


def _wanted_by_person(node: Node) -> bool:
    """Whether a person has it verified, as new or repaired: it is not in service."""
    return node.state is State.VERIFYING and bool(node.by)


def _is_kept_suspect(node: Node) -> bool:
    """Whether it is kept out of service until it has passed what it failed."""
    return node.state is State.SUSPECT and node.enforced


def _must_pass(node: Node) -> bool:
    """Whether it is out of service, and only a verification of ours lets it back."""
    return _is_kept_suspect(node) or _wanted_by_person(node)


def _moved(node: Node, state: State, now: float, found: Evidence) -> Node:
    settled = found.settled if found.ticket else frozenset[str]()
    failed = tuple(f.check for f in found.failures)
    owed = tuple(c for c in node.owed if c not in settled.union(failed))
    told = [*map(_text, found.failures)]
    told += [f"not verified since: failed {', '.join(owed)}"] if owed else []
    return replace(
        node,
        state=state,
        since=now,
        reason="; ".join(told)[:LONGEST],
        by="",
        checks=(*failed, *owed),
        hard=any(f.hard for f in found.failures),
        run=found.run,
        suite=found.suite if found.ticket else node.suite,
        after=max(node.after, found.ticket),
    )


def _passed(node: Node, found: Evidence, now: float) -> Node:
    if found.full:
        node = replace(node, passed=now)
    doubt = node.state is State.SUSPECT and not node.enforced
    # The suite that it failed in has that check no more.
    doubt |= bool(node.owed) and found.suite == node.suite
    if not (found.settled.issuperset(node.checks) or (doubt and found.full)):
        return _unsettled(node, found, now)
    told = f"passed {found.suite}"
    if found.known:
        told += f"; suppressed: {', '.join(found.known)}"
    match node.state:
        case State.UNVERIFIED if found.full:
            node = _healthy(node, now, "")
        case State.SUSPECT:
            node = _acquitted(node, found, now, told)
        case State.VERIFYING if found.suite == node.suite and (found.full or node.by):
            node = _returned(node, found, now, told)
        case State.QUARANTINED | State.LEMON if not node.enforced:
            node = _healthy(node, now, told)
        case _:
            pass
    return node


def _acquitted(node: Node, found: Evidence, now: float, told: str) -> Node:
    """Clear a suspect, and say by what: a flake is only what a rerun took back."""
    ways = {
        "a rerun passed": found.passed,
        "suppressed:": found.known,
        "not applicable any more:": found.not_applicable,
    }
    by_way = {
        way: [check for check in node.checks if check in those]
        for way, those in ways.items()
    }
    because = "; ".join(f"{way} {', '.join(c)}" for way, c in by_way.items() if c)
    flaked = bool(by_way["a rerun passed"])
    return replace(_healthy(node, now, because or told), flakes=node.flakes + flaked)


def _unsettled(node: Node, found: Evidence, now: float) -> Node:
    """Say why a node that passed all else is not back; it waits only for an answer."""
    if not _must_pass(node) or found.suite != node.suite:
        return node
    if not found.unclear.keys().isdisjoint(node.checks):
        return _waiting(node, found)
    left = ", ".join(check for check in node.checks if check not in found.settled)
    return replace(
        node,
        state=State.HELD,
        since=now,
        reason=(
            f"passed {found.suite}, but {left}, which it had failed, had no turn in "
            "it: repair it with a suite that has them, or release it by force"
        ),
        by="",
        after=max(node.after, found.ticket),
    )


def _waiting(node: Node, found: Evidence) -> Node:
    """Say beside the reason what was not judged; another try follows by itself."""
    told = [text for _, text in found.unjudged] or [
        f"{check}: {found.unclear[check]}"
        for check in node.checks
        if check in found.unclear
    ]
    why = "; ".join(told) or "every check was skipped"
    because = node.reason.partition(WAITS)[0][: LONGEST // 2]
    return replace(node, reason=f"{because}{WAITS}{why}"[: LONGEST - 1] + ")")


def _returned(node: Node, found: Evidence, now: float, told: str) -> Node:
    """Let a node back that was kept for verification; a lemon waits for a person."""
    if not node.lemon or node.kept_free:
        back = came_back(node, now) if node.checks else node
        back = _healthy(back, now, told)
        if not found.passive:
            return back
        why = f"{told}, which loads nothing: not verified in full"
        return replace(back, state=State.UNVERIFIED, reason=why)
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
        hard=False,
        enforced=False,
    )


def _unjudged(node: Node, found: Evidence, site: Site, now: float) -> Node:
    """Leave it as it is, unless the site has it held for such a cause."""
    told = [
        text for cause, text in found.unjudged if cause in site.quarantine.drain_errors
    ]
    if not told or node.state not in (State.HEALTHY, State.UNVERIFIED, State.SUSPECT):
        return _waiting(node, found) if _must_pass(node) else node
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
