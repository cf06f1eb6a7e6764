"""
The life of a node: one table of all transitions, and the one place that makes them.

Each function here is an event: a run, a person's decision, somebody else's change to
our hold, or a brake on all of that. It returns the node as it is then. `_enter` looks
the new state up in `TRANSITIONS`; nothing else sets one. docs/explanation/design.md shows the same
table.

A run counts only with a ticket of the controller: that is how we know that our own job
made it, on that node, after the last decision. A run without one, by a hook or by hand,
can raise suspicion and nothing more, and so can any other source of faults. Otherwise anyone
who can write to the spool could take other nodes out of service, or let them back in.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from hpcverify.errors import ActionError
from hpcverify.fleet.evidence import Evidence, is_enforced, list_suppressed_checks
from hpcverify.fleet.states import (
    DAY_S,
    FAILED_STATES,
    HOLD_BY_STATE,
    Caveat,
    Hold,
    Node,
    NodeChange,
    State,
    add_return,
    awaits_batch,
    is_suspect_between_nodes,
    is_suspect_by_bmc,
)
from hpcverify.model import COLLECTIVES_CHECK, FABRIC_SUITE, Source
from hpcverify.plan.config import Site
from hpcverify.records.spool import MAX_CHECKS
from hpcverify.summary.verdict import MAX_REASON_CHARACTERS, join_lines, shorten
from hpcverify.units import format_count


class Purpose(StrEnum):
    """What a verification is for."""

    SWEEP = "sweep"
    CONFIRM = "confirm"
    """The next run of a suspect."""
    RETURN = "return"
    """The run of a repaired node."""
    ADMISSION = "admission"


class NodeEvent(StrEnum):
    """What can happen to a node, in the words of docs/explanation/design.md."""

    FAILURE = "fails a check; a suspect still in service: another one than before"
    UNORDERED_FAILURE = (
        "fails a check in a run that the controller did not order; or passes, but what its BMC "
        "showed was not in the run"
    )
    CONFIRMED_FAILURE = (
        "a suspect fails again (reserved: any check, in service: the same one), or a check fails "
        "for the third time within `repeat_days`, or conclusive evidence, or its prolog refused a "
        "job"
    )
    REPEATED_FAILURE = "the same, quarantined too often before"
    PASS = "passes what it failed (three times if it failed that twice lately), or a whole suite"  # noqa: S105 - a verdict
    PASSIVE_PASS = "new or repaired, passes a suite that does not load the node"  # noqa: S105 - a verdict
    UNDECIDED = "passes, but a check that it failed did not run, or it is a repeat offender"
    UNJUDGED = "could not be judged, for a cause in `drain_errors`"
    SPARED = "the breaker is tripped, its checks are in doubt, or its verification gave no answer"
    EVIDENCE = "conclusive evidence in a run that the controller did not order, for one rerun"
    RESET = "`hpcverify fleet breaker reset`: findings that were not acted on no longer count"
    OVERDUE = "has not passed for `overdue_days`"
    VERIFICATION_END = "the verification of an overdue node ends without a pass"
    HOLD = "`hpcverify nodes hold`"
    RELEASE = "`hpcverify nodes release`"
    REPAIR = "`hpcverify nodes repaired`"
    ADMISSION = "`hpcverify nodes admit`"
    ADOPTED_DRAIN = "`hpcverify nodes adopt`: a drain of ours"
    ADOPTED_RESERVATION = "`hpcverify nodes adopt`: a reservation of ours"
    LOST_HOLD = "somebody else lifts or takes over our hold"
    OWED_RETURN = "somebody else puts it back unverified, with `verify_returned`"


class Effect(StrEnum):
    """Whether a node is held as its new state says."""

    HELD = "as the new state says"
    SITE = "the same, if the site enforces the check"
    FREE = "not held"


class StateRule(Struct, frozen=True):
    """What an event does to a node that is in one of the states *before*."""

    before: frozenset[State]
    after: State | None
    """None: the state stays."""
    effect: Effect


ALL_STATES = frozenset(State)
IN_SERVICE_STATES = frozenset(s for s, hold in HOLD_BY_STATE.items() if hold is Hold.NONE)
DRAINED_STATES = frozenset(s for s, hold in HOLD_BY_STATE.items() if hold is Hold.DRAIN)
RESERVED_STATES = frozenset({State.SUSPECT, State.VERIFYING})
MAX_FAILURES = 3
"""Failures of one check within `repeat_days` that quarantine a node, whatever it passes between."""
PASSES_AFTER_FLAKE = 3
"""Reruns that a suspect must pass one after another if the check failed before."""

TRANSITIONS = {
    NodeEvent.FAILURE: StateRule(
        ALL_STATES - {State.QUARANTINED, State.REPEAT_OFFENDER}, State.SUSPECT, Effect.SITE
    ),
    NodeEvent.UNORDERED_FAILURE: StateRule(IN_SERVICE_STATES, State.SUSPECT, Effect.FREE),
    NodeEvent.CONFIRMED_FAILURE: StateRule(ALL_STATES, State.QUARANTINED, Effect.SITE),
    NodeEvent.REPEATED_FAILURE: StateRule(ALL_STATES, State.REPEAT_OFFENDER, Effect.SITE),
    NodeEvent.PASS: StateRule(ALL_STATES - {State.HEALTHY, State.HELD}, State.HEALTHY, Effect.FREE),
    NodeEvent.PASSIVE_PASS: StateRule(frozenset({State.VERIFYING}), State.UNVERIFIED, Effect.FREE),
    NodeEvent.UNDECIDED: StateRule(RESERVED_STATES, State.HELD, Effect.HELD),
    NodeEvent.UNJUDGED: StateRule(IN_SERVICE_STATES | {State.SUSPECT}, State.HELD, Effect.HELD),
    NodeEvent.SPARED: StateRule(FAILED_STATES, None, Effect.FREE),
    NodeEvent.EVIDENCE: StateRule(frozenset({State.SUSPECT}), State.SUSPECT, Effect.HELD),
    NodeEvent.RESET: StateRule(FAILED_STATES, State.SUSPECT, Effect.FREE),
    NodeEvent.OVERDUE: StateRule(IN_SERVICE_STATES, State.VERIFYING, Effect.HELD),
    NodeEvent.VERIFICATION_END: StateRule(
        frozenset({State.VERIFYING}), State.UNVERIFIED, Effect.FREE
    ),
    NodeEvent.HOLD: StateRule(ALL_STATES, State.HELD, Effect.HELD),
    NodeEvent.RELEASE: StateRule(ALL_STATES - IN_SERVICE_STATES, State.UNVERIFIED, Effect.FREE),
    NodeEvent.REPAIR: StateRule(DRAINED_STATES, State.VERIFYING, Effect.HELD),
    NodeEvent.ADMISSION: StateRule(ALL_STATES, State.VERIFYING, Effect.HELD),
    NodeEvent.ADOPTED_DRAIN: StateRule(ALL_STATES, State.QUARANTINED, Effect.HELD),
    NodeEvent.ADOPTED_RESERVATION: StateRule(ALL_STATES, State.VERIFYING, Effect.HELD),
    NodeEvent.LOST_HOLD: StateRule(ALL_STATES - IN_SERVICE_STATES, State.UNVERIFIED, Effect.FREE),
    NodeEvent.OWED_RETURN: StateRule(frozenset({State.UNVERIFIED}), State.SUSPECT, Effect.HELD),
}


def _enter(
    node: Node, event: NodeEvent, now: float, *, enforced: bool = False, **changes: Any
) -> Node:
    """
    Return *node* after *event*; *enforced* is what the site says, where that matters.

    Raises:
        ValueError: the table has no such transition, which is a bug.

    """
    rule = TRANSITIONS[event]
    if node.state not in rule.before:
        raise ValueError(f"{node.name} is {node.state}: not for the event {event.name}")
    entered: dict[str, Any] = {
        "state": rule.after or node.state,
        "since": now,
        "enforced": rule.effect is Effect.HELD or (rule.effect is Effect.SITE and enforced),
        "caveat": Caveat.NONE,
        "caveat_why": "",
        "batch": "",
        "passes": 0,
    }
    return replace(node, **(entered | changes))


# -- what a run found


def apply_evidence(node: Node, found: Evidence, site: Site, now: float, past: int) -> Node:
    """
    Return *node* after *found*; *past* is how often it was quarantined lately.

    `restrain_hold` then decides whether a brake keeps that from being acted on.
    """
    if not found.ticket:
        judge = _judge_bmc if found.source is Source.BMC else _judge_without_ticket
        return judge(node, found, now)
    if found.ticket <= node.not_before_ticket or not found.complete:
        return node
    if node.caveat is Caveat.VERIFICATION:  # it is judged as the suspect in service that it was
        node = end_verification(node, "its verification gave no answer", now)
    node = replace(node, last_run_at=now, verdict=found.verdict.value)
    node = _count_failures(_drop_seen_failures(node, found), found, site, now)
    node = _judge(node, found, site, now, past)
    if node.is_reserved_overdue:
        owed = f"; not verified since: failed {', '.join(node.checks)}" if node.checks else ""
        node = end_verification(node, f"was verified without a full pass{owed}", now)
    return _recall_bmc_failures(node, now)


def _count_failures(node: Node, found: Evidence, site: Site, now: float) -> Node:
    since = now - site.quarantine.repeat_days * DAY_S
    of_node = found.source is not Source.FABRIC
    failed = found.failures if of_node else ()
    times = dict(node.failures)
    for check in failed:
        times[check] = (*times.pop(check, ()), now)
    lately = {
        check: tuple(at for at in ats if since < at <= now)[-MAX_FAILURES:]
        for check, ats in list(times.items())[-MAX_CHECKS:]
    }
    return replace(node, failures={check: ats for check, ats in lately.items() if ats})


def _judge(node: Node, found: Evidence, site: Site, now: float, past: int) -> Node:
    if _has_pending_evidence(node, site, now) or _still_stands(node, found, site, now):
        return _quarantine_on_conclusive_evidence(node, found, site, now, past)
    if found.failures:
        return _handle_failure(node, found, site, now, past)
    suspected = node.state is State.SUSPECT and bool(node.checks)
    if found.is_clean or (suspected and found.cleared_checks.issuperset(node.checks)):
        return _handle_pass(node, found, now)
    return _handle_not_judged(node, found, site, now)


def _judge_without_ticket(node: Node, found: Evidence, now: float) -> Node:
    """Make it a suspect, to be verified first; without a ticket nothing is held."""
    in_service = node.desired_hold is Hold.NONE
    if not (found.complete and found.failures and in_service):
        return node
    failure = _describe_failures(node, found)
    if node.state in IN_SERVICE_STATES:
        return _enter(node, NodeEvent.UNORDERED_FAILURE, now, **failure)
    conclusive = {check for check, is_conclusive in found.failures.items() if is_conclusive}
    if not conclusive or (node.conclusive and conclusive.issubset(node.checks)):
        return node
    if len(node.checks) > MAX_CHECKS:  # no honest node has more in all its runs together
        return node
    # Beside what it failed before: its prolog may refuse a job, see `explains_refusal`.
    failed = replace(node, **failure)
    return replace(
        failed,
        reason=join_lines((failed.reason, node.reason)),
        checks=tuple(dict.fromkeys((*failed.checks, *node.checks))),
    )


def _judge_bmc(node: Node, found: Evidence, now: float) -> Node:
    """
    Keep what a BMC shows, whatever the node is now; make it a suspect if it is in service.

    What an earlier round showed, and this one does not, is over. If the node has passed all
    else since, it is healthy.
    """
    if not found.complete:
        return node
    was_alone = is_suspect_by_bmc(node)
    node = _drop_seen_failures(node, found)
    if found.failures:
        failures = {
            check: join_lines(d.sentence for d in found.diagnoses if check in d.checks)
            for check in found.failures
        }
        node = replace(node, bmc_failures=node.bmc_failures | failures)
        return _judge_without_ticket(node, found, now)
    is_over = was_alone and node.bmc_failures.keys().isdisjoint(node.checks)
    if not is_over or node.last_pass_at < node.since:
        return node
    return _make_healthy(node, now, f"its BMC no longer shows it: {', '.join(node.checks)}")


def _drop_seen_failures(node: Node, found: Evidence) -> Node:
    """Drop what a BMC showed, where *found* has seen for itself; a skipped check saw nothing."""
    seen = found.passed_checks.union(found.suppressed_checks, found.failures)
    left = {check: why for check, why in node.bmc_failures.items() if check not in seen}
    return replace(node, bmc_failures=left)


def _recall_bmc_failures(node: Node, now: float) -> Node:
    """Make *node* a suspect again if it has passed, but for what its BMC showed."""
    if node.state not in IN_SERVICE_STATES or node.owed_checks or not node.bmc_failures:
        return node
    reasons = (f"{check}: {why}" for check, why in node.bmc_failures.items())
    return _enter(
        node,
        NodeEvent.UNORDERED_FAILURE,
        now,
        reason=join_lines(reasons),
        by="",
        checks=tuple(node.bmc_failures),
        conclusive=False,
    )


def _quarantine(
    node: Node, site: Site, now: float, past: int, *, enforced: bool, **changes: Any
) -> Node:
    repeated = node.repeat_offender or past + 1 >= site.quarantine.repeat_quarantines
    event = NodeEvent.REPEATED_FAILURE if repeated else NodeEvent.CONFIRMED_FAILURE
    return _enter(node, event, now, enforced=enforced, repeat_offender=repeated, **changes)


def _has_pending_evidence(node: Node, site: Site, now: float) -> bool:
    """Whether only the brakes have kept conclusive evidence from being acted on."""
    if not (node.conclusive and _must_pass(node)):
        return False
    return not list_suppressed_checks(node.name, site, now).issuperset(node.checks)


def _still_stands(node: Node, found: Evidence, site: Site, now: float) -> bool:
    """
    Whether a run of ours bears out conclusive evidence that a hook has found.

    What is read once, such as a line of the kernel log, the hook has read: in our run that
    check can only say that it stands.
    """
    unresolved = found.unresolved_checks.difference(list_suppressed_checks(node.name, site, now))
    suspected = node.state is State.SUSPECT and node.conclusive
    return suspected and not unresolved.isdisjoint(node.checks)


def _quarantine_on_conclusive_evidence(
    node: Node, found: Evidence, site: Site, now: float, past: int
) -> Node:
    """Quarantine it now, whatever *found* says, if the site still enforces the check."""
    failed = _add_failures(node, found, node.checks)
    return _quarantine(
        failed,
        site,
        now,
        past,
        enforced=is_enforced(failed.checks, site) or _is_requested_by_person(node),
        by="",
        not_before_ticket=max(node.not_before_ticket, found.ticket),
        caveat=Caveat.CONCLUSIVE,
    )


def _add_failures(node: Node, found: Evidence, kept: tuple[str, ...]) -> Node:
    failed = tuple(found.failures)
    return replace(
        node,
        reason=join_lines((node.reason, *found.list_reasons(known=node.checks))),
        caveat=Caveat.NONE,
        caveat_why="",
        checks=tuple(dict.fromkeys((*kept, *failed))),
        run=found.run if failed else node.run,
    )


def _handle_failure(node: Node, found: Evidence, site: Site, now: float, past: int) -> Node:
    kept = _is_requested_by_person(node)  # it was out of service, and stays so
    if node.state in DRAINED_STATES:
        if node.enforced:  # it is out of service already
            return node
        confirmed = node.state is not State.HELD
    else:
        often = any(len(node.failures.get(check, ())) >= MAX_FAILURES for check in found.failures)
        # A suspicion is confirmed by any failure if we hold the node for it, else by the same.
        same = not found.failures.keys().isdisjoint(node.checks)
        confirmed = often or (node.state is State.SUSPECT and (node.enforced or same))
        confirmed |= kept and found.source is not Source.FABRIC
    acted_on = is_enforced(found.failures, site)
    still = tuple(c for c in node.checks if c not in found.cleared_checks)
    if not acted_on and _is_kept_suspect(node) and is_enforced(still, site):
        return _add_failures(node, found, still)
    failure = _describe_failures(node, found)
    if not (confirmed or any(found.failures.values())):
        return _enter(node, NodeEvent.FAILURE, now, enforced=acted_on or kept, **failure)
    return _quarantine(node, site, now, past, enforced=acted_on or kept, **failure)


def _is_requested_by_person(node: Node) -> bool:
    return node.state is State.VERIFYING and bool(node.by)


def _is_kept_suspect(node: Node) -> bool:
    """Whether it is out of service until it has passed what it failed."""
    return node.state is State.SUSPECT and node.enforced


def _must_pass(node: Node) -> bool:
    """Whether it is out of service, and only a verification of ours lets it back."""
    return _is_kept_suspect(node) or _is_requested_by_person(node)


def _describe_failures(node: Node, found: Evidence) -> dict[str, Any]:
    cleared = found.cleared_checks if found.ticket else frozenset[str]()
    failed = tuple(found.failures)
    owed = tuple(c for c in node.owed_checks if c not in cleared.union(failed))
    reasons = found.list_reasons()
    reasons += [f"not verified since: failed {', '.join(owed)}"] if owed else []
    return {
        "reason": join_lines(reasons),
        "by": "",
        "checks": (*failed, *owed),
        "conclusive": any(found.failures.values()),
        "run": found.run,
        "suite": found.suite if found.ticket or found.source is Source.FABRIC else node.suite,
        "not_before_ticket": max(node.not_before_ticket, found.ticket),
    }


def _handle_pass(node: Node, found: Evidence, now: float) -> Node:
    if found.is_full_pass:
        node = replace(node, last_pass_at=now)
    doubt = node.state is State.SUSPECT and not node.enforced
    # The suite that it failed in no longer has that check, or a person trusts it with others.
    doubt |= bool(node.owed_checks) and node.suite in (found.suite, FABRIC_SUITE)
    cleared = found.cleared_checks.issuperset(node.checks) or (doubt and found.is_full_pass)
    # By itself it cannot show that it is well with others.
    cleared &= not is_suspect_between_nodes(node) or found.source is Source.FABRIC
    cleared &= node.bmc_failures.keys().isdisjoint(node.checks)  # see `_drop_seen_failures`
    if not cleared:
        return _handle_partial_pass(node, found, now)
    reason = f"passed {found.suite}"
    if found.suppressed_checks:
        reason += f"; suppressed: {', '.join(found.suppressed_checks)}"
    match node.state:
        case State.UNVERIFIED if found.is_full_pass:
            return _make_healthy(node, now, "")
        case State.SUSPECT:
            return _clear_suspect(node, found, now, reason)
        case State.VERIFYING if found.suite == node.suite and (found.is_full_pass or node.by):
            return _return_to_service(node, found, now, reason)
        case State.QUARANTINED | State.REPEAT_OFFENDER if not node.enforced:
            return _make_healthy(node, now, reason)
        case _:
            return node


def _clear_suspect(node: Node, found: Evidence, now: float, reason: str) -> Node:
    """Clear a suspect once it has passed often enough; it is a flake only if a rerun passed."""
    passes = node.passes + 1
    again = any(len(node.failures.get(check, ())) > 1 for check in node.checks)
    if again and passes < PASSES_AFTER_FLAKE:
        return replace(
            node,
            passes=passes,
            not_before_ticket=found.ticket,  # the next rerun is due at once
            caveat=Caveat.WAITS,
            caveat_why=f"passed {passes} of {PASSES_AFTER_FLAKE} reruns: it failed before",
        )
    ways = {
        "a rerun passed": found.passed_checks,
        "suppressed:": found.suppressed_checks,
        "no longer applicable:": found.not_applicable,
    }
    by_way = {
        way: [check for check in node.checks if check in those] for way, those in ways.items()
    }
    because = "; ".join(f"{way} {', '.join(c)}" for way, c in by_way.items() if c)
    cleared = _make_healthy(node, now, because or reason)
    if not by_way["a rerun passed"]:
        return cleared
    return replace(add_return(cleared, now), flakes=node.flakes + 1)


def _handle_partial_pass(node: Node, found: Evidence, now: float) -> Node:
    """Hold a node whose failed checks were not in the run; wait if they gave no answer."""
    if is_suspect_by_bmc(node):
        unseen = ", ".join(node.checks)
        why = f"it passed {found.suite}, which does not see {unseen}; hpcverify fleet bmc does"
        return replace(node, caveat=Caveat.WAITS, caveat_why=why)
    if not _must_pass(node) or found.suite != node.suite:
        return node
    if not found.unanswered_checks.keys().isdisjoint(node.checks):
        return _note_not_judged(node, found)
    left = ", ".join(check for check in node.checks if check not in found.cleared_checks)
    return _enter(
        node,
        NodeEvent.UNDECIDED,
        now,
        reason=(
            f"passed {found.suite}, which does not include {left}, which it had failed: "
            "repair it with a suite that does, or release it by force"
        ),
        by="",
        not_before_ticket=max(node.not_before_ticket, found.ticket),
    )


def _note_not_judged(node: Node, found: Evidence) -> Node:
    causes = [text for _, text in found.unjudged] or [
        f"{check}: {found.unanswered_checks[check]}"
        for check in node.checks
        if check in found.unanswered_checks
    ]
    why = "; ".join(causes) or "every check was skipped"
    return replace(node, caveat=Caveat.WAITS, caveat_why=shorten(why, MAX_REASON_CHARACTERS))


def _return_to_service(node: Node, found: Evidence, now: float, reason: str) -> Node:
    if node.repeat_offender and not node.is_reserved_overdue:
        waits = f"{reason}; only a person releases a repeat offender"
        return _enter(node, NodeEvent.UNDECIDED, now, reason=waits, checks=())
    back = add_return(node, now) if node.checks else node
    if node.batch and not (found.passive or awaits_batch(node)):
        waits = f"{reason}; to be tested with the others of {node.batch}"
        return replace(back, suite=FABRIC_SUITE, reason=waits, checks=(), conclusive=False)
    if not found.passive:
        return _make_healthy(back, now, reason)
    why = f"{reason}, which does not load the node: not fully verified"
    return _make_healthy(back, now, why, NodeEvent.PASSIVE_PASS)


def _make_healthy(node: Node, now: float, reason: str, event: NodeEvent = NodeEvent.PASS) -> Node:
    return _enter(node, event, now, reason=reason, by="", checks=(), conclusive=False)


def _handle_not_judged(node: Node, found: Evidence, site: Site, now: float) -> Node:
    """Leave it as it is, unless the site holds nodes for such a cause."""
    causes = [text for cause, text in found.unjudged if cause in site.quarantine.drain_errors]
    if not causes or node.state not in TRANSITIONS[NodeEvent.UNJUDGED].before:
        return _note_not_judged(node, found) if _must_pass(node) else node
    return _enter(
        node,
        NodeEvent.UNJUDGED,
        now,
        reason=shorten(f"could not be judged: {'; '.join(causes)}", MAX_REASON_CHARACTERS),
        by="",
        run=found.run,
        not_before_ticket=max(node.not_before_ticket, found.ticket),
    )


# -- a prolog refused a job


def list_refusing_checks(site: Site) -> tuple[str, ...]:
    """Name the checks whose conclusive evidence makes a prolog refuse a job."""
    return tuple(c for c in site.quarantine.fail_closed if is_enforced([c], site))


def explains_refusal(node: Node, site: Site) -> bool:
    """Whether *node* failed a check that makes its prolog refuse jobs."""
    listed = not set(list_refusing_checks(site)).isdisjoint(node.checks)
    return node.state in FAILED_STATES and node.conclusive and listed


def has_unanswered_evidence(node: Node, site: Site) -> bool:
    """Whether *node* is in service with conclusive evidence that a verification could see."""
    suspect = node.state is State.SUSPECT and node.desired_hold is Hold.NONE and node.conclusive
    seen = not (is_suspect_between_nodes(node) or is_suspect_by_bmc(node))
    return suspect and seen and is_enforced(node.checks, site)


def quarantine_refused(node: Node, slurm_reason: str, site: Site, now: float, past: int) -> Node:
    """
    Quarantine *node* for the failure that made its prolog refuse a job.

    *slurm_reason* is that of Slurm's own drain; *past* is how often the node was
    quarantined lately.
    """
    reason = shorten(f"{slurm_reason}: {node.reason}", MAX_REASON_CHARACTERS)
    return _quarantine(node, site, now, past, enforced=True, reason=reason)


# -- the brakes


def restrain_hold(before: Node, after: Node, why: str) -> Node:
    """
    Return *after* held no harder than *before*, since *why* forbids it.

    A node in service stays there and shows what was found; it does not become held,
    which no failure causes. A node in our reservation stays there until it passes,
    fails with no brake on, or is released because the check is doubted
    (`release_if_doubted`). Its `not_before_ticket` stays too, or another rerun would be
    due at once. Conclusive evidence stays so.
    """
    after = replace(after, failures=before.failures)  # what is not believed does not count
    held = Hold.NONE if before.caveat is Caveat.VERIFICATION else before.desired_hold
    if after.desired_hold.strength <= held.strength:
        return after
    free = held is Hold.NONE
    if free and after.state in FAILED_STATES:
        return _spare(after, why)
    if before.is_reserved_overdue:
        before = _enter(before, NodeEvent.FAILURE, before.since, enforced=True)
    return replace(
        before,
        reason=after.reason,
        caveat=Caveat.SPARED if free else Caveat.NOT_TIGHTENED,
        caveat_why=why,
        checks=tuple(dict.fromkeys((*before.checks, *after.checks))),
        conclusive=before.conclusive or after.conclusive,
        run=after.run,
        last_run_at=after.last_run_at,
        verdict=after.verdict,
    )


def release_if_doubted(node: Node, doubts: Mapping[str, str]) -> Node:
    """
    Release a suspect whose failed checks are all among the *doubts*.

    Other nodes that failed the same are in service. It stays a suspect, to be verified
    first. Conclusive evidence is kept until somebody has looked into the doubt. A node that an
    admission named was not in service before, and stays out.
    """
    if (
        is_suspect_between_nodes(node)
        or (node.conclusive and not node.awaits_verification)
        or not node.checks
        or not doubts.keys() >= set(node.checks)
    ):
        return node
    believed = {check: at for check, at in node.failures.items() if check not in doubts}
    spared = _spare(node, "; ".join(doubts[check] for check in node.checks))
    return replace(spared, failures=believed)


def _spare(node: Node, why: str) -> Node:
    return _enter(node, NodeEvent.SPARED, node.since, caveat=Caveat.SPARED, caveat_why=why)


def forget_evidence(node: Node, now: float) -> Node:
    """
    Return *node* as a reset of the breaker at *now* leaves it.

    What was found before counts no more, unless the node was drained for it. One that was
    spared stays a suspect without failed checks: two new failures quarantine it.
    """
    if node.desired_hold is Hold.DRAIN:
        return node
    left = replace(node, conclusive=False, failures={})
    if node.caveat is not Caveat.SPARED or node.state not in FAILED_STATES:
        return left
    return _enter(
        left,
        NodeEvent.RESET,
        now,
        checks=(),
        repeat_offender=node.repeat_offender and node.state is State.SUSPECT,
    )


# -- nodes that are reserved for a verification


def reserve_for_evidence(node: Node, last: int) -> Node:
    """
    Reserve a suspect in service, for which a run that nobody ordered has conclusive evidence.

    Such a run may be forged: the node is verified once, and only that can hold it. Only a
    ticket after *last* counts.
    """
    after = max(node.not_before_ticket, last)
    return _enter(
        node, NodeEvent.EVIDENCE, node.since, caveat=Caveat.VERIFICATION, not_before_ticket=after
    )


def reserve_overdue(node: Node, suite: str, days: float, now: float, last: int) -> Node:
    """
    Reserve *node*, which has not passed for *days*, until it is verified.

    It runs *suite*, or the one that it failed in; only a ticket after *last* counts.
    """
    return _enter(
        node,
        NodeEvent.OVERDUE,
        now,
        reason=f"has not passed for {format_count(days, 'day')}: reserved until it is verified",
        suite=(_drop_fabric(node).suite or suite) if node.owed_checks else suite,
        not_before_ticket=last,
    )


def end_verification(node: Node, reason: str, now: float) -> Node:
    """Release a node whose verification gave no pass: others wait for theirs."""
    if node.caveat is Caveat.VERIFICATION:
        return _spare(node, reason)
    return _enter(node, NodeEvent.VERIFICATION_END, now, reason=reason)


# -- what somebody else did


def give_up_hold(node: Node, foreign: str) -> Node:
    """Give up *node*, whose hold somebody else lifted, or took over for *foreign*."""
    was = f"it was {node.state}: {node.full_reason}"
    how = f"somebody else took it over ({foreign})" if foreign else "somebody else released it"
    lost: dict[str, Any] = {"reason": f"{how}; {was}", "by": "", "hold_id": "", "foreign": foreign}
    node = _enter(node, NodeEvent.LOST_HOLD, node.since, **lost)
    return explain_return(node, was) if node.owed_checks and not foreign else node


def explain_return(node: Node, was: str) -> Node:
    """Give *node* the reason that it is back unverified; *was* describes it before."""
    failed = f"not verified since: failed {', '.join(node.owed_checks)}"
    return replace(node, reason=f"returned to service by somebody else, {failed}; {was}")


def keep_until_verified(node: Node, now: float, last: int) -> Node:
    """
    Reserve *node*, which somebody else put back into service, until it has passed.

    A pass clears conclusive evidence too, since it may have been repaired. Only a ticket
    after *last* counts.
    """
    after = max(node.not_before_ticket, last)
    return _enter(node, NodeEvent.OWED_RETURN, now, conclusive=False, not_before_ticket=after)


# -- what a person decides


class Decision(Struct, frozen=True, kw_only=True):
    """Who decided, why and when; only a run with a later ticket counts."""

    by: str
    reason: str
    at: float
    last_ticket: int


def hold(node: Node, decision: Decision) -> NodeChange:
    """
    Take *node* out of service; what its BMC showed is as true as before.

    Raises:
        ActionError: it is held already.

    """
    if node.desired_hold is Hold.DRAIN:
        raise ActionError(f"{node.name} is held already: {node.full_reason}")
    return _decide(node, NodeEvent.HOLD, decision, "hold", bmc_failures=node.bmc_failures)


def release(node: Node, decision: Decision, *, force: bool = False) -> NodeChange:
    """
    Put *node* back into service; with *force* even if it has not passed.

    Raises:
        ActionError: it is in service, or has not passed what it failed.

    """
    checks = dict.fromkeys((*node.checks, *node.bmc_failures))
    failed = checks or node.state in (State.QUARANTINED, State.REPEAT_OFFENDER)
    if not node.enforced:
        raise ActionError(f"{node.name} is {node.state}, not out of service")
    if failed and not force:
        raise ActionError(
            f"{node.name} has not passed {', '.join(checks)} since it failed: "
            f"hpcverify nodes repaired {node.name} --reason … verifies and releases it"
        )
    if failed or node.repeat_offender:
        node = add_return(node, decision.at)
    what = "release by force" if failed else "release"
    return _decide(
        node, NodeEvent.RELEASE, decision, what, repeat_offender=False, conclusive=False, checks=()
    )


def repair(node: Node, decision: Decision, *, suite: str | None, default: str) -> NodeChange:
    """
    Have *node*, which was repaired, pass *suite* before it goes back into service.

    If None, that is the suite that it failed in, or else *default*.

    Raises:
        ActionError: it is not out of service.

    """
    if node.desired_hold is not Hold.DRAIN:
        raise ActionError(
            f"{node.name} is {node.state}, not out of service: nothing to repair; to "
            f"verify it now: hpcverify fleet sweep {node.name}"
        )
    node = _drop_fabric(node)
    suite = suite or node.suite or default
    return _decide(node, NodeEvent.REPAIR, decision, "repair", conclusive=False, suite=suite)


def admit(node: Node, decision: Decision, *, suite: str, batch: str = "") -> NodeChange:
    """
    Have *node*, which is new, pass *suite* before any job runs on it.

    Then it is to be tested with the other nodes of *batch*, if that names any.

    Raises:
        ActionError: it is out of service, and may need a repair.

    """
    if node.desired_hold is Hold.DRAIN:
        raise ActionError(
            f"{node.name} is {node.state}: hpcverify nodes repaired {node.name} --reason …"
        )
    node = _drop_fabric(node)
    own = {"conclusive": False, "run": "", "suite": suite, "batch": batch}
    return _decide(node, NodeEvent.ADMISSION, decision, "admit", **own)


def admit_untested(node: Node, why: str, now: float) -> NodeChange:
    """Admit *node*, which has passed by itself; *why* says why no more is known of it."""
    reason = f"passed by itself; not tested with its batch: {why}"
    healthy = _make_healthy(node, now, shorten(reason, MAX_REASON_CHARACTERS))
    return NodeChange(node=healthy, what=healthy.state.value, detail=healthy.reason)


def _drop_fabric(node: Node) -> Node:
    """
    Drop what *node* did to collectives with others.

    No suite that it runs by itself could show that it is well now; the word of a person
    must do.
    """
    if node.suite != FABRIC_SUITE:
        return node
    left = tuple(check for check in node.checks if check != COLLECTIVES_CHECK)
    return replace(node, suite="", checks=left)


def _decide(
    node: Node, event: NodeEvent, decision: Decision, what: str, **changes: Any
) -> NodeChange:
    # What its BMC showed, no run on a node without IPMI could clear: the word of a person must do.
    own: dict[str, Any] = {
        "reason": decision.reason,
        "by": decision.by,
        "not_before_ticket": decision.last_ticket,
        "checks": tuple(check for check in node.checks if check not in node.bmc_failures),
        "bmc_failures": {},
        "failures": {},
    }
    decided = _enter(node, event, decision.at, **(own | changes))
    return NodeChange(node=decided, what=what, detail=decision.reason)


def adopt_drain(
    node: Node, decision: Decision, hold_id: str, reason: str, failed: tuple[str, ...]
) -> Node:
    """Take back the drain *hold_id* of *node*, of which only its *reason* is left."""
    own = {"reason": reason, "by": "", "checks": failed}
    return _adopt(node, NodeEvent.ADOPTED_DRAIN, decision, hold_id, own)


def adopt_reservation(node: Node, decision: Decision, hold_id: str, suite: str) -> Node:
    """Take back our reservation of *node*, and have it pass *suite* there."""
    own = {"reason": decision.reason, "by": decision.by, "suite": suite}
    return _adopt(node, NodeEvent.ADOPTED_RESERVATION, decision, hold_id, own)


def _adopt(
    node: Node, event: NodeEvent, decision: Decision, hold_id: str, own: dict[str, Any]
) -> Node:
    last = decision.last_ticket
    common: dict[str, Any] = {
        "conclusive": False,
        "run": "",
        "foreign": "",
        "not_before_ticket": last,
    }
    return _enter(node, event, decision.at, **common, hold_id=hold_id, **own)
