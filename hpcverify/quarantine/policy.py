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
from hpcverify.quarantine.breaker import HELD_NO_HARDER_PREFIX, NOT_ACTED_ON_PREFIX
from hpcverify.quarantine.evidence import Evidence, Failure, is_enforced, list_suppressed_checks
from hpcverify.quarantine.life import REPAIR_ADVICE, Hold, Node, State, add_return, needs_repair

FAILED_STATES = (State.SUSPECT, State.QUARANTINED, State.LEMON)
"""What a node is in because it failed."""
MAX_REASON_CHARS = 900
"""Characters of a reason: it comes from a node, and is written down with each step."""
NOT_JUDGED_PREFIX = " (not judged yet: "
"""Stands in a reason before what kept a node from being judged."""
REPEAT_SUFFIX = f" (it {REPAIR_ADVICE})"
"""Ends the reason of a node that fails again after that."""
HARD_EVIDENCE_PREFIX = "hard evidence, which no rerun takes back: "
"""Begins the reason of a node that was spared, and is not any more."""


class Purpose(StrEnum):
    """What a verification is for."""

    SWEEP = "sweep"
    CONFIRM = "confirm"
    """Of a suspect."""
    RETURN = "return"
    """Of a repaired node."""
    ADMISSION = "admission"


def apply_evidence(node: Node, found: Evidence, site: Site, now: float, past: int) -> Node:
    """
    Say what *node* is after *found*; *past* is how often it was quarantined lately.

    Whether it may be acted on is for the breaker to say, after this.
    """
    if not found.ticket:
        return _judge_without_ticket(node, found, now)
    if found.ticket <= node.not_before_ticket or not found.conclusive:
        return node
    node = replace(node, last_run_at=now, verdict=found.verdict.value)
    node = _judge(node, found, site, now, past)
    return _end_turn(node, now) if node.is_reserved_overdue else node


def _judge(node: Node, found: Evidence, site: Site, now: float, past: int) -> Node:
    if _has_pending_hard_evidence(node, site, now):
        return _quarantine_on_hard_evidence(node, found, site, now, past)
    if found.failures:
        return _handle_failure(node, found, site, now, past)
    if found.is_clean or _clears(found, node):
        return _handle_pass(node, found, now)
    return _handle_not_judged(node, found, site, now)


def _end_turn(node: Node, now: float) -> Node:
    """Let a node go whose turn brought no pass: others wait for theirs."""
    told = "had its turn, which brought no full pass"
    if node.checks:
        told += f"; not verified since: failed {', '.join(node.checks)}"
    state = State.UNVERIFIED
    return replace(node, state=state, since=now, reason=told, enforced=False)


def keep_until_verified(node: Node, now: float, last: int) -> Node:
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
        not_before_ticket=max(node.not_before_ticket, last),
    )


def release_if_doubted(node: Node, doubts: Mapping[str, str]) -> Node:
    """
    Let a suspect go whose every failed check is among the *doubts*.

    Others that failed as much are in service. It stays a suspect, and is the first to
    be verified again. Hard evidence is kept until somebody has looked into the doubt.
    """
    if node.hard or not node.checks or not doubts.keys() >= set(node.checks):
        return node
    why = "; ".join(doubts[check] for check in node.checks)
    reason = f"{_strip_asides(node)}{NOT_ACTED_ON_PREFIX}{why})"
    return replace(node, enforced=False, reason=reason)


def _clears(found: Evidence, node: Node) -> bool:
    """Whether all that made *node* a suspect is settled, whatever was not judged."""
    suspected = node.state is State.SUSPECT and bool(node.checks)
    return suspected and found.settled_checks.issuperset(node.checks)


def _judge_without_ticket(node: Node, found: Evidence, now: float) -> Node:
    """Suspect it, so that its turn comes first; nothing is held on such a word."""
    in_service = node.desired_hold is Hold.NONE
    if not (found.conclusive and found.failures and in_service):
        return node
    if node.state in (State.HEALTHY, State.UNVERIFIED):
        return _move(node, State.SUSPECT, now, found)
    hard = {f.check for f in found.failures if f.hard}
    known = node.hard and hard.issubset(node.checks)
    return _add_hard_evidence(node, found) if hard and not known else node


def _add_hard_evidence(node: Node, found: Evidence) -> Node:
    """
    Add hard evidence to what *node* failed before, and is in service nevertheless.

    Its prolog may refuse a job for that, see `explains_refusal`.
    """
    told = _move(node, node.state, node.since, found)
    return replace(
        told,
        reason=f"{told.reason}; {node.reason}"[:MAX_REASON_CHARS],
        checks=tuple(dict.fromkeys((*told.checks, *node.checks))),
    )


def list_refusing_checks(site: Site) -> tuple[str, ...]:
    """Name the checks whose hard evidence has a prolog refuse a job."""
    return tuple(c for c in site.quarantine.fail_closed if is_enforced([c], site))


def explains_refusal(node: Node, site: Site) -> bool:
    """Whether *node* failed what its prolog refuses a job for, acted on or not."""
    listed = not set(list_refusing_checks(site)).isdisjoint(node.checks)
    return node.state in FAILED_STATES and node.hard and listed


def quarantine_refused(node: Node, told: str, site: Site, now: float, past: int) -> Node:
    """
    Quarantine *node* for what its prolog refused a job for, which Slurm *told*.

    *past* is how often it was quarantined lately.
    """
    reason = f"{told}: {_strip_asides(node)}"[:MAX_REASON_CHARS]
    gone = _quarantine(replace(node, reason=reason), site, now, past)
    return replace(gone, enforced=True)


def _strip_asides(node: Node) -> str:
    """Give the reason of *node* without what was said of not acting on it."""
    because = node.reason
    for aside in (NOT_ACTED_ON_PREFIX, HELD_NO_HARDER_PREFIX, NOT_JUDGED_PREFIX, REPEAT_SUFFIX):
        because, _, _ = because.partition(aside)
    return because.removeprefix(HARD_EVIDENCE_PREFIX)


def _quarantine(node: Node, site: Site, now: float, past: int) -> Node:
    """Quarantine *node*; as a lemon, if that is once too often."""
    lemon = node.lemon or past + 1 >= site.quarantine.lemon_quarantines
    state = State.LEMON if lemon else State.QUARANTINED
    often = REPEAT_SUFFIX if needs_repair(node, now) else ""
    because = node.reason.partition(REPEAT_SUFFIX)[0][: MAX_REASON_CHARS - len(often)]
    return replace(node, state=state, since=now, lemon=lemon, reason=because + often)


def _has_pending_hard_evidence(node: Node, site: Site, now: float) -> bool:
    """Whether only the brakes have kept hard evidence from being acted on."""
    if not (node.hard and _must_pass(node)):
        return False
    return not list_suppressed_checks(node.name, site, now).issuperset(node.checks)


def _quarantine_on_hard_evidence(
    node: Node, found: Evidence, site: Site, now: float, past: int
) -> Node:
    """Quarantine it at last, whatever *found* says, if the site still acts on that."""
    gone = _quarantine(_add_failures(node, found, node.checks), site, now, past)
    return replace(
        gone,
        reason=f"{HARD_EVIDENCE_PREFIX}{gone.reason}"[:MAX_REASON_CHARS],
        by="",
        enforced=is_enforced(gone.checks, site) or _is_requested_by_person(node),
        not_before_ticket=max(node.not_before_ticket, found.ticket),
    )


def _add_failures(node: Node, found: Evidence, kept: tuple[str, ...]) -> Node:
    """Add what failed to the checks that are *kept*, and each new one to the reason."""
    new = tuple(f for f in found.failures if f.check not in node.checks)
    failed = tuple(f.check for f in found.failures)
    return replace(
        node,
        reason="; ".join((_strip_asides(node), *map(_format_failure, new)))[:MAX_REASON_CHARS],
        checks=tuple(dict.fromkeys((*kept, *failed))),
        run=found.run if failed else node.run,
    )


def _handle_failure(node: Node, found: Evidence, site: Site, now: float, past: int) -> Node:
    if node.state in (State.QUARANTINED, State.LEMON, State.HELD):
        if node.enforced:  # it is out of service already
            return node
        confirmed = node.state is not State.HELD
    else:
        confirmed = _confirms_suspicion(node, found) or _is_requested_by_person(node)
    acted_on = is_enforced([f.check for f in found.failures], site)
    still = tuple(c for c in node.checks if c not in found.settled_checks)
    if not acted_on and _is_kept_suspect(node) and is_enforced(still, site):
        return _add_failures(node, found, still)
    kept = _is_requested_by_person(node)  # it was out of service, and stays so
    if not (confirmed or any(f.hard for f in found.failures)):
        suspect = _move(node, State.SUSPECT, now, found)
        return replace(suspect, enforced=acted_on)
    gone = _quarantine(_move(node, node.state, now, found), site, now, past)
    return replace(gone, enforced=acted_on or kept)


def _format_failure(failure: Failure) -> str:
    return f"{failure.check}: {failure.reason}"


def _confirms_suspicion(node: Node, found: Evidence) -> bool:
    """Whether this confirms a suspicion: of our own, or of the same check."""
    same = not {f.check for f in found.failures}.isdisjoint(node.checks)
    return node.state is State.SUSPECT and (node.enforced or same)


def _is_requested_by_person(node: Node) -> bool:
    """Whether a person has it verified, as new or repaired: it is not in service."""
    return node.state is State.VERIFYING and bool(node.by)


def _is_kept_suspect(node: Node) -> bool:
    """Whether it is kept out of service until it has passed what it failed."""
    return node.state is State.SUSPECT and node.enforced


def _must_pass(node: Node) -> bool:
    """Whether it is out of service, and only a verification of ours lets it back."""
    return _is_kept_suspect(node) or _is_requested_by_person(node)


def _move(node: Node, state: State, now: float, found: Evidence) -> Node:
    settled = found.settled_checks if found.ticket else frozenset[str]()
    failed = tuple(f.check for f in found.failures)
    owed = tuple(c for c in node.owed_checks if c not in settled.union(failed))
    told = [*map(_format_failure, found.failures)]
    told += [f"not verified since: failed {', '.join(owed)}"] if owed else []
    return replace(
        node,
        state=state,
        since=now,
        reason="; ".join(told)[:MAX_REASON_CHARS],
        by="",
        checks=(*failed, *owed),
        hard=any(f.hard for f in found.failures),
        run=found.run,
        suite=found.suite if found.ticket else node.suite,
        not_before_ticket=max(node.not_before_ticket, found.ticket),
    )


def _handle_pass(node: Node, found: Evidence, now: float) -> Node:
    if found.is_full_pass:
        node = replace(node, last_pass_at=now)
    doubt = node.state is State.SUSPECT and not node.enforced
    # The suite that it failed in has that check no more.
    doubt |= bool(node.owed_checks) and found.suite == node.suite
    if not (found.settled_checks.issuperset(node.checks) or (doubt and found.is_full_pass)):
        return _handle_unsettled_pass(node, found, now)
    told = f"passed {found.suite}"
    if found.suppressed_checks:
        told += f"; suppressed: {', '.join(found.suppressed_checks)}"
    match node.state:
        case State.UNVERIFIED if found.is_full_pass:
            node = _make_healthy(node, now, "")
        case State.SUSPECT:
            node = _clear_suspect(node, found, now, told)
        case State.VERIFYING if found.suite == node.suite and (found.is_full_pass or node.by):
            node = _return_to_service(node, found, now, told)
        case State.QUARANTINED | State.LEMON if not node.enforced:
            node = _make_healthy(node, now, told)
        case _:
            pass
    return node


def _clear_suspect(node: Node, found: Evidence, now: float, told: str) -> Node:
    """Clear a suspect, and say by what: a flake is only what a rerun took back."""
    ways = {
        "a rerun passed": found.passed_checks,
        "suppressed:": found.suppressed_checks,
        "not applicable any more:": found.not_applicable,
    }
    by_way = {
        way: [check for check in node.checks if check in those] for way, those in ways.items()
    }
    because = "; ".join(f"{way} {', '.join(c)}" for way, c in by_way.items() if c)
    flaked = bool(by_way["a rerun passed"])
    return replace(_make_healthy(node, now, because or told), flakes=node.flakes + flaked)


def _handle_unsettled_pass(node: Node, found: Evidence, now: float) -> Node:
    """Say why a node that passed all else is not back; it waits only for an answer."""
    if not _must_pass(node) or found.suite != node.suite:
        return node
    if not found.unanswered_checks.keys().isdisjoint(node.checks):
        return _note_not_judged(node, found)
    left = ", ".join(check for check in node.checks if check not in found.settled_checks)
    return replace(
        node,
        state=State.HELD,
        since=now,
        reason=(
            f"passed {found.suite}, but {left}, which it had failed, had no turn in "
            "it: repair it with a suite that has them, or release it by force"
        ),
        by="",
        not_before_ticket=max(node.not_before_ticket, found.ticket),
    )


def _note_not_judged(node: Node, found: Evidence) -> Node:
    """Say beside the reason what was not judged; another try follows by itself."""
    told = [text for _, text in found.unjudged] or [
        f"{check}: {found.unanswered_checks[check]}"
        for check in node.checks
        if check in found.unanswered_checks
    ]
    why = "; ".join(told) or "every check was skipped"
    because = node.reason.partition(NOT_JUDGED_PREFIX)[0][: MAX_REASON_CHARS // 2]
    return replace(node, reason=f"{because}{NOT_JUDGED_PREFIX}{why}"[: MAX_REASON_CHARS - 1] + ")")


def _return_to_service(node: Node, found: Evidence, now: float, told: str) -> Node:
    """Let a node back that was kept for verification; a lemon waits for a person."""
    if not node.lemon or node.is_reserved_overdue:
        back = add_return(node, now) if node.checks else node
        back = _make_healthy(back, now, told)
        if not found.passive:
            return back
        why = f"{told}, which loads nothing: not verified in full"
        return replace(back, state=State.UNVERIFIED, reason=why)
    waits = f"{told}; a lemon is released by a person only"
    return replace(node, state=State.HELD, since=now, reason=waits, checks=())


def _make_healthy(node: Node, now: float, reason: str) -> Node:
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


def _handle_not_judged(node: Node, found: Evidence, site: Site, now: float) -> Node:
    """Leave it as it is, unless the site has it held for such a cause."""
    told = [text for cause, text in found.unjudged if cause in site.quarantine.drain_errors]
    if not told or node.state not in (State.HEALTHY, State.UNVERIFIED, State.SUSPECT):
        return _note_not_judged(node, found) if _must_pass(node) else node
    return replace(
        node,
        state=State.HELD,
        since=now,
        reason=f"could not be judged: {'; '.join(told)}"[:MAX_REASON_CHARS],
        by="",
        enforced=True,
        run=found.run,
        not_before_ticket=max(node.not_before_ticket, found.ticket),
    )
