"""
The breaker: when so much fails that the failures themselves are in doubt.

It asks two questions. How many nodes would be held? More than the allowance within a
window of time, or more than a share of the fleet at all, means a bad image, a driver or a
bug of ours: no node is held until a person resets the breaker. Does one check fail widely
where others pass, or on the nodes of one rollout? Then the check is the suspect, on all nodes
or on those that carry the change. No hold gets stricter then, and held nodes stay held until
they pass.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from operator import itemgetter

from msgspec import Struct

from hpcverify.fleet.evidence import Evidence
from hpcverify.fleet.ledger import Ledger
from hpcverify.fleet.rollouts import find_nodes_without, find_value_changes
from hpcverify.fleet.states import (
    FAILED_STATES,
    HOUR_S,
    Hold,
    Node,
    State,
    is_gone,
    is_suspect_between_nodes,
)
from hpcverify.plan.config import Quarantine
from hpcverify.records.spool import read_id_time
from hpcverify.records.store import Store
from hpcverify.stats import compute_fisher_tail
from hpcverify.units import UtcTime, convert_time

MIN_ALLOWANCE = 2
"""Nodes that may always be held: a share of a small cluster is less than one."""
MIN_FAILING_NODES = 3
"""Nodes that must fail a check before the check is suspected."""
MAX_CHANCE = 0.01
"""How likely it may be that the failing nodes are those of a rollout by chance."""


def compute_allowance(eligible: int, policy: Quarantine) -> int:
    """Say how many of *eligible* nodes may be newly held within a window."""
    return max(MIN_ALLOWANCE, min(math.ceil(policy.share * eligible), policy.cap))


def compute_out_limit(eligible: int, policy: Quarantine) -> int:
    """
    Say how many of *eligible* nodes may be out of service for failures at all.

    That is a share of them, and in a small fleet twice the allowance, but not more than half.
    """
    allowance = compute_allowance(eligible, policy)
    small = min(2 * allowance, eligible // 2)
    return max(allowance, small, math.ceil(policy.out_share * eligible))


def list_out(nodes: Iterable[Node], now: float) -> set[str]:
    """
    Name the *nodes* that runs took out of service: they failed, or could not be judged.

    A person holds others, and so does an admission; and one that is gone at *now* is not missed.
    """
    return {
        node.name
        for node in nodes
        if (node.state in FAILED_STATES or (node.state is State.HELD and not node.by))
        and node.desired_hold is not Hold.NONE
        and not (node.awaits_verification or is_suspect_between_nodes(node) or is_gone(node, now))
    }


def explain_trip(
    held: Collection[str],
    new: Collection[str],
    out: Collection[str],
    eligible: int,
    policy: Quarantine,
) -> str:
    """
    Say why *new* must not be held on top of those *held* lately; empty if they may be.

    *out* are all nodes that are out of service for failures.
    """
    allowed, limit = compute_allowance(eligible, policy), compute_out_limit(eligible, policy)
    total, total_out = len({*held, *new}), len({*out, *new})
    if set(new) - set(held) and total > allowed:
        return (
            f"{total} of {eligible} nodes would be newly held within "
            f"{policy.window_hours:g} h; at most {allowed} may be"
        )
    if set(new) - set(out) and total_out > limit:
        return (
            f"{total_out} of {eligible} nodes would be out of service for failures; at most "
            f"{limit} may be: return some to service, or raise quarantine.out_share"
        )
    return ""


def find_doubted_checks(
    outcomes: Mapping[str, Mapping[str, bool]], policy: Quarantine
) -> dict[str, str]:
    """
    Name the checks that fail too widely to be believed, and say how widely.

    *outcomes* maps check and node to whether the node failed the check.
    """
    doubts: dict[str, str] = {}
    for check, by_node in outcomes.items():
        failed = sum(by_node.values())
        if _fails_widely(failed, len(by_node), policy):
            doubts[check] = (
                f"{check} fails on {failed} of the {len(by_node)} nodes that ran it: "
                "suspect the check, the driver or the image"
            )
    return doubts


def predict_doubt_end(answers: Iterable[tuple[float, bool]], policy: Quarantine) -> float:
    """
    Say when a check is believed again if nothing new is found, in seconds since 1970.

    *answers*: when each node last ran the check, and whether it failed. They leave the
    window one by one.
    """
    ordered = sorted(answers)
    ran, failed = len(ordered), sum(bad for _, bad in ordered)
    window = policy.window_hours * HOUR_S
    ends = 0.0
    for at, bad in ordered:
        if not _fails_widely(failed, ran, policy):
            break
        ran, failed, ends = ran - 1, failed - bad, at + window
    return ends


def _fails_widely(failed: int, ran: int, policy: Quarantine) -> bool:
    return failed >= MIN_FAILING_NODES and failed > policy.check_share * ran


class Doubt(Struct, frozen=True, kw_only=True):
    """A check that fails too widely to be believed."""

    check: str
    why: str
    """On how many of how many nodes it fails."""
    nodes: tuple[str, ...]
    """Where it fails."""
    until: UtcTime | None
    """When the doubt ends if nothing new is found; None: with the rollout."""
    unchanged: tuple[str, ...] = ()
    """The nodes on which it fails without the change of the rollout: they are held as usual."""

    @property
    def text(self) -> str:
        """Say which check, how widely it fails, and until when that counts."""
        when = f"until {self.until:%Y-%m-%d %H:%M} UTC, or " if self.until else ""
        which = "nodes" if self.until else "nodes with the change"
        return f"{self.why}; {which} are not held for it alone {when}until it fails on fewer nodes"


def select_doubts(doubts: Mapping[str, Doubt], node: str) -> dict[str, str]:
    """Select the *doubts* that hold on *node*, each as its check and why."""
    return {check: doubt.why for check, doubt in doubts.items() if node not in doubt.unchanged}


def find_doubts(
    ledger: Ledger,
    store: Store,
    policy: Quarantine,
    now: float,
    found: Collection[Evidence] = (),
) -> list[Doubt]:
    """List the checks that are in doubt at *now*, by name; *found* is being judged."""
    since = now - policy.window_hours * HOUR_S
    recent = ledger.read_outcomes(since)
    for evidence in found:
        for check, failed in evidence.failed_by_check.items():
            recent.setdefault(check, {})[evidence.node] = failed
    doubts: list[Doubt] = []
    for check, why in find_doubted_checks(recent, policy).items():
        answers = ledger.list_answers(check, since)
        doubts.append(
            Doubt(
                check=check,
                why=why,
                nodes=tuple(sorted(node for node, failed in recent[check].items() if failed)),
                until=convert_time(
                    predict_doubt_end([(at, bad) for at, _, bad in answers], policy)
                ),
            )
        )
    failed_nodes = [node for node in ledger.list_nodes().values() if node.state in FAILED_STATES]
    failing = _list_failing(failed_nodes, recent, now)
    for doubt in doubts:
        failing.pop(doubt.check, None)
    wide = {check: at for check, at in failing.items() if len(at) >= MIN_FAILING_NODES}
    if wide:
        passed = {check: ledger.read_passes(check) for check in wide}
        runs = [(node.name, node.run) for node in failed_nodes]
        runs += [(evidence.node, evidence.run) for evidence in found if evidence.failures]
        doubts += _find_doubted_rollouts(store, wide, passed, filter(itemgetter(1), runs), policy)
    return sorted(doubts, key=lambda doubt: doubt.check)


def _find_doubted_rollouts(
    store: Store,
    failing: Mapping[str, Mapping[str, float]],
    passed: Mapping[str, Mapping[str, float]],
    runs: Iterable[tuple[str, str]],
    policy: Quarantine,
) -> Iterator[Doubt]:
    """
    Yield a doubt for each check that fails on the nodes of a rollout, and on few others.

    *runs* are nodes with the ids of the runs in which they failed, by which it is known
    whether they had the change then.
    """
    records = store.list_facts()
    changes = find_value_changes(records)
    times = [(node, read_id_time(run).timestamp()) for node, run in runs]
    for check, failed_at in failing.items():
        passed_at = {n: at for n, at in passed[check].items() if n not in failed_at}
        ran = {*passed_at, *failed_at}
        suspected: dict[tuple[str, str], str] = {}
        for change, carried in changes.items():
            fresh = {n for n, at in failed_at.items() if n in carried and carried[n].was_new(at)}
            fresh |= {n for n, at in passed_at.items() if n in carried and carried[n].was_there(at)}
            if how := explain_rollout_doubt(failed_at.keys(), fresh, ran, policy):
                suspected[change] = how
        if suspected:
            (name, value), how = next(iter(suspected.items()))
            carriers = {change: changes[change].keys() for change in suspected}
            yield Doubt(
                check=check,
                why=f"{check} fails on {how}: suspect {name} {value}, not the nodes",
                nodes=tuple(sorted(failed_at)),
                until=None,
                unchanged=tuple(sorted(find_nodes_without(carriers, records, times))),
            )


def _list_failing(
    nodes: Iterable[Node], recent: Mapping[str, Mapping[str, bool]], now: float
) -> dict[str, dict[str, float]]:
    failing: dict[str, dict[str, float]] = {}
    for check, answers in recent.items():
        for name in (name for name, failed in answers.items() if failed):
            failing.setdefault(check, {})[name] = now
    for node in nodes:
        for check in node.checks:
            failing.setdefault(check, {})[node.name] = node.since or now
    return failing


def explain_rollout_doubt(
    failing: Collection[str], fresh: Collection[str], ran: Collection[str], policy: Quarantine
) -> str:
    """
    Say on how many of the nodes with something new a check fails, if that is no chance.

    Of the nodes that *ran* it, those *fresh* have something new. Two bad nodes are believed.
    """
    bad_fresh, bad = len({*failing} & {*fresh}), len(failing)
    others, bad_others = len(ran) - len(fresh), bad - bad_fresh
    if not _fails_widely(bad_fresh, len(fresh), policy):
        return ""
    if compute_fisher_tail(bad_fresh, len(fresh), bad_others, others) >= MAX_CHANCE:
        return ""
    return f"{bad_fresh} of {len(fresh)} nodes of a rollout, and on {bad_others} of {others} others"


def describe_brakes(ledger: Ledger, store: Store, policy: Quarantine, now: float) -> Iterator[str]:
    """Yield a line for each reason why failures are not acted on now."""
    if why := ledger.read_trip_reason():
        yield f"THE BREAKER IS TRIPPED, nodes are not held for failures: {why}"
    for doubt in find_doubts(ledger, store, policy, now):
        yield f"A CHECK IS DOUBTED: {doubt.text}"
