"""
Which nodes to verify next: idle ones, and first those whose result is awaited.

The rest go by their risk. But every tenth place is for the node that has waited longest, and
more places as its wait nears the site's own period: no node starves, however low its risk is,
and however many others come first.

A plan is a pure function of Slurm's answer and the ledger. Only a node that is
certainly idle is chosen. A node that somebody holds, that Slurm has planned a job for,
or whose state we do not know is passed over, with the reason in plain words.
"""

from __future__ import annotations

import zlib
from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from math import ceil, inf

from msgspec import Struct
from msgspec.structs import replace

from hpcverify.fleet.states import (
    DAY_S,
    HOUR_S,
    Hold,
    Node,
    State,
    Ticket,
    compute_elapsed,
    is_gone,
    is_kept_for_fabric,
    is_suspect_between_nodes,
    is_suspect_by_bmc,
    is_watched,
)
from hpcverify.plan.config import Fleet
from hpcverify.slurm import Host
from hpcverify.slurm.idle import explain_not_idle
from hpcverify.units import format_age, format_count

LOST_RETRY_S = 600.0
"""Between verifications of a node whose job ended without a document."""
RETRY_S = HOUR_S
"""Between verifications of a node that could not be judged, or not be acted on."""

JITTER_SHARE = 0.2
"""Share of `fresh_hours` by which a node may be due sooner; otherwise all nodes that
were verified in one night would always be due together."""

WATCHED_SHARE = 0.25
"""Share of `fresh_hours` after which a node that came back lately is due again: so one that
fails a run in three is out within a week of its first failure."""

PATIENT_PLACES = 10
"""One place in this many goes to the node that has waited longest."""
PATIENT_SHARES = ((0.5, 9), (0.25, 5), (0.0, 1))
"""How many of `PATIENT_PLACES` go to the node that has waited longest, by the share of the site's
period that it has waited. So a fleet that sweeps can go through in half of the period keeps to it,
even if all nodes reach this age at once."""


class Pick(Struct, frozen=True, kw_only=True):
    """A node to verify now."""

    node: str
    gpus: int
    why: str
    risk: float = 1.0
    """Times that of an average node."""


class SweepPlan(Struct, frozen=True, kw_only=True):
    """What a sweep does, and why not more."""

    chosen: tuple[Pick, ...]
    """In the order of submission."""
    passed_over: tuple[tuple[str, str], ...]
    """Node and reason, by name."""
    due: tuple[str, ...] = ()
    """All that would be verified if there were room, in their order."""


def plan_sweep(
    hosts: Mapping[str, Host],
    nodes: Mapping[str, Node],
    busy: Collection[str],
    fleet: Fleet,
    now: float,
    *,
    only: Collection[str] = (),
    done: Collection[str] = (),
    tried: Mapping[str, Ticket] | None = None,
    risks: Mapping[str, float] | None = None,
    limit: int | None = None,
    seed: int = 0,
) -> SweepPlan:
    """
    Choose which of *hosts* to verify at *now*, seconds since 1970.

    *nodes* are what the ledger knows, *busy* those with an open ticket. With *only*,
    just these are considered, and verified even if they passed lately. Those *done* had
    their turn in this sweep; *tried* has the last verification of each node that ended,
    with or without a result. *risks* are times the risk of an average node; 1 if unknown.
    *limit* is for this sweep, on top of the site's limits. The same *seed* gives each
    node the same jitter: never change it, so that turns stay spread out.
    """
    names = sorted((set(only) or set(hosts)) - set(done))
    known = {name: nodes.get(name) or Node(name=name) for name in hosts}
    inputs = _PlanInput(
        hosts, known, frozenset(busy), fleet, now, bool(only), tried or {}, risks or {}, seed
    )
    assessed = {name: inputs.assess(name) for name in names}
    over = {name: node for name, node in assessed.items() if isinstance(node, str)}
    room = _Capacity(inputs, limit)
    chosen: list[Pick] = []
    due = [node for node in assessed.values() if isinstance(node, _DueNode)]
    ordered = list(_order_due(due, len(done) + int(now // DAY_S)))
    for candidate in ordered:
        if full := room.explain_full(candidate.host):
            over[candidate.host.name] = full
            continue
        room.take(candidate.host)
        chosen.append(
            Pick(
                node=candidate.host.name,
                gpus=candidate.host.gpus,
                why=candidate.why,
                risk=candidate.risk,
            )
        )
    return SweepPlan(
        chosen=tuple(chosen),
        passed_over=tuple(sorted(over.items())),
        due=tuple(candidate.host.name for candidate in ordered),
    )


def list_due(
    nodes: Mapping[str, Node],
    busy: Collection[str],
    fleet: Fleet,
    now: float,
    *,
    tried: Mapping[str, Ticket],
    risks: Mapping[str, float],
    seed: int,
) -> tuple[Pick, ...]:
    """
    List the *nodes* that are due, in their order: what is known without the scheduler.

    It is the plan for a moment in which all of them are idle. The arguments are those of
    `plan_sweep`.
    """
    idle = {
        name: Host(name=name, state="IDLE", partitions=(fleet.partition,))
        for name, node in nodes.items()
        if not is_gone(node, now)
    }
    room = replace(fleet, at_once=len(busy) + len(idle))
    plan = plan_sweep(idle, nodes, busy, room, now, tried=tried, risks=risks, seed=seed)
    return plan.chosen


class _DueNode(Struct, frozen=True, kw_only=True):
    """A node that is due, and what gives it its place in the order."""

    host: Host
    why: str
    rank: int
    risk: float
    waited: float
    """Seconds since it last had a place."""
    lateness: float
    """The same as a share of the site's period; 0: it has none."""

    @property
    def by_rank(self) -> tuple[int, float, float, str]:
        """Its place in an order by risk; of equal risks, the one that has waited longer."""
        return self.rank, -self.risk, -self.waited, self.host.name

    @property
    def by_wait(self) -> tuple[float, int, str]:
        """Its place in an order by how long it has waited."""
        return -self.waited, self.rank, self.host.name


def _order_due(due: Iterable[_DueNode], phase: int) -> Iterator[_DueNode]:
    """
    Yield *due* by rank and risk, but in some places the node that has waited longest.

    Nodes whose finding nobody has answered yet, rank 0, come before both. *phase* counts the
    places that were given before, and days, so that a sweep with room for a single node does
    not always choose it in the same way.
    """
    by_rank = deque(sorted(due, key=lambda each: each.by_rank))
    by_wait = deque(sorted(by_rank, key=lambda each: each.by_wait))
    taken: set[str] = set()
    for place in range(phase, phase + len(by_rank)):
        longest = _find_next(by_wait, taken)
        each = _find_next(by_rank, taken)
        count = next(count for share, count in PATIENT_SHARES if longest.lateness >= share)
        is_patient = (place + 1) * count // PATIENT_PLACES > place * count // PATIENT_PLACES
        if each.rank and is_patient and longest is not each:
            each = replace(longest, why=f"{longest.why}; has waited longest")
        taken.add(each.host.name)
        yield each


def _find_next(queue: deque[_DueNode], taken: Collection[str]) -> _DueNode:
    while queue[0].host.name in taken:
        queue.popleft()
    return queue[0]


class _PlanInput(Struct, frozen=True):
    """The input of a plan; `nodes` has one for each of the `hosts`."""

    hosts: Mapping[str, Host]
    nodes: Mapping[str, Node]
    busy: frozenset[str]
    fleet: Fleet
    now: float
    by_name: bool
    tried: Mapping[str, Ticket]
    risks: Mapping[str, float]
    seed: int

    def assess(self, name: str) -> _DueNode | str:
        """Return the node *name* as due, or the reason why it is passed over."""
        if name not in self.hosts:
            return "is not known to Slurm"
        host, node = self.hosts[name], self.nodes[name]
        if name in self.busy:
            return "is being verified"
        if why_not := (_explain_hold(node) or explain_not_idle(host, reserved=_is_reserved(node))):
            return why_not
        if self.fleet.partition not in host.partitions:
            return f"is not in partition {self.fleet.partition}, where verifications run"
        fresh = self.fleet.fresh_hours * HOUR_S
        fresh *= WATCHED_SHARE if is_watched(node, self.now) else 1
        fraction = zlib.crc32(f"{self.seed}:{name}".encode()) / 2**32
        jitter = JITTER_SHARE * fresh * fraction
        if not self.by_name and (
            why_not := _explain_fresh(node, fresh - jitter, self.now)
            or _explain_recent_try(node, self.tried.get(name), self.now)
        ):
            return why_not
        return self._rank_due(host, node, jitter)

    def _rank_due(self, host: Host, node: Node, jitter: float) -> _DueNode:
        """
        Rank *node* among those that are due.

        First come nodes with an open finding, even if the site only observes them: nothing
        else will settle it; so do nodes that somebody else put back into service after a
        finding. Once they were tried, those that have waited longest may come between. Then
        those that came back within `WATCH_S`, which fail more often than any other, and those
        that have waited for longer than the site allows. The rest go by risk. A wait ends
        with the last try, whatever came of it: otherwise a node that can never be judged, or
        whose job is always lost, would wait longest for ever.
        """
        now, risk, last = self.now, self.risks.get(host.name, 1.0), self.tried.get(host.name)
        ago = min(compute_elapsed(now, node.last_run_at), compute_elapsed(now, node.last_pass_at))
        waited = min(ago, compute_elapsed(now, last.ended)) if last else ago
        days = self.fleet.overdue_days
        known = compute_elapsed(now, node.first_seen_at)
        lateness = min(waited, known) / (days * DAY_S) if days else 0.0
        if node.owed_checks or node.state not in (State.HEALTHY, State.UNVERIFIED):
            rank = int(last is not None and last.ended >= node.since)
            why = f"{node.state}: {node.full_reason or 'a verification is due'}"
        elif is_watched(node, now):
            back = format_age(compute_elapsed(now, node.returned_at[-1]))
            rank, why = 2, f"came back {back} ago"
        else:
            rank, why = 3 if lateness > 1 else 4, _describe_wait(node, ago)
        return _DueNode(
            host=host,
            why=why,
            rank=rank,
            risk=risk,
            waited=min(waited, now) + jitter,
            lateness=lateness,
        )


def _explain_hold(node: Node) -> str:
    if node.foreign:
        return f"is held by others: {node.foreign}"
    if node.desired_hold is Hold.DRAIN:
        return f"is {node.state}: {node.full_reason}"
    if is_kept_for_fabric(node):
        return f"is {node.state}, and is tested only with other nodes: {node.full_reason}"
    return ""


def _is_reserved(node: Node) -> bool:
    return node.desired_hold is Hold.RESERVATION and bool(node.hold_id)


def _explain_fresh(node: Node, window: float, now: float) -> str:
    if node.state is State.HEALTHY and compute_elapsed(now, node.last_pass_at) < window:
        return f"passed {format_age(now - node.last_pass_at)} ago"
    recent = compute_elapsed(now, node.last_pass_at) < window
    if recent and is_suspect_between_nodes(node):
        ago = format_age(now - node.last_pass_at)
        return f"passed by itself {ago} ago, and is suspected with others: hpcverify fabric bisect"
    if recent and is_suspect_by_bmc(node) and node.last_pass_at >= node.since:
        ago = format_age(now - node.last_pass_at)
        return f"passed {ago} ago, and is suspected for what its BMC shows: hpcverify fleet bmc"
    judged = node.state in (State.QUARANTINED, State.REPEAT_OFFENDER)
    if judged and compute_elapsed(now, node.last_run_at) < window:
        return f"failed {format_age(now - node.last_run_at)} ago, which is observed only"
    return ""


def _explain_recent_try(node: Node, last: Ticket | None, now: float) -> str:
    if last is None or last.ended < node.since or is_rerun_due(node, last, now):
        return ""
    return f"was tried {format_age(now - last.ended)} ago, without a result"


def _describe_wait(node: Node, ago: float) -> str:
    if ago < inf:
        return f"last verified {format_age(ago)} ago"
    dated = node.last_run_at or node.last_pass_at
    return "last verified in the future" if dated else "never verified"


def is_overdue(node: Node, began: float, now: float, days: float) -> bool:
    """
    Whether *node* is in service, and has neither passed nor changed for *days*.

    Counted from no earlier than *began*, the start of the fleet, or than when the
    scheduler first listed the node.
    """
    calm = node.state in (State.HEALTHY, State.UNVERIFIED)
    times = (node.last_pass_at, node.since, node.first_seen_at, began)
    waited = min(compute_elapsed(now, then) for then in times)
    return calm and not node.foreign and waited > days * DAY_S


def is_rerun_due(node: Node, last: Ticket | None, now: float) -> bool:
    """
    Whether *node* was not tried since it came into its state, or only long ago.

    *last* is the ticket of its last verification that ended.
    """
    if last is None or last.number <= node.not_before_ticket:
        return True
    return compute_elapsed(now, last.ended) > (RETRY_S if last.run else LOST_RETRY_S)


class _Capacity:
    """
    How many more nodes may be taken.

    A node in our reservation is lost to users whether it is verified or not: it counts
    towards `at_once`, but not towards a partition's share.
    """

    def __init__(self, inputs: _PlanInput, limit: int | None) -> None:
        self._nodes = inputs.nodes
        self._fleet = inputs.fleet
        self._limit = limit
        self._chosen = 0
        self._at_once = len(inputs.busy)
        hosts = inputs.hosts.values()
        self._sizes = Counter(p for host in hosts for p in self._list_user_partitions(host))
        busy = (inputs.hosts[name] for name in inputs.busy & inputs.hosts.keys())
        self._taken = Counter(p for host in busy for p in self._list_lost_partitions(host))

    def explain_full(self, host: Host) -> str:
        """Say which limit *host* would break, if any."""
        if self._limit is not None and self._chosen >= self._limit:
            return f"is due, but this sweep is limited to {self._limit}"
        if self._at_once >= self._fleet.at_once:
            return f"is due, but at_once = {self._fleet.at_once} are being verified"
        for partition in self._list_lost_partitions(host):
            size = self._sizes[partition]
            allowed = max(1, ceil(self._fleet.share * size))
            if self._taken[partition] >= allowed:
                return (
                    f"is due, but only {allowed} of {format_count(size, 'node')} in {partition} "
                    "may be verified at once"
                )
        return ""

    def take(self, host: Host) -> None:
        """Count *host* as taken."""
        self._chosen += 1
        self._at_once += 1
        self._taken.update(self._list_lost_partitions(host))

    def _list_user_partitions(self, host: Host) -> Iterator[str]:
        return (p for p in host.partitions if p != self._fleet.partition)

    def _list_lost_partitions(self, host: Host) -> Iterator[str]:
        """Yield the partitions whose users lose *host* while it is verified."""
        kept = _is_reserved(self._nodes[host.name])
        return iter(()) if kept else self._list_user_partitions(host)
