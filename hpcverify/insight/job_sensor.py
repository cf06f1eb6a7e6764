"""
Jobs as a sensor: nodes against which users' jobs of the last day speak.

It makes suspects and nothing more: the next sweep verifies each node that it names first. A
pass of the node by itself clears it. Who the users are is not kept.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from statistics import median
from types import MappingProxyType

from hpcverify.errors import SlurmError
from hpcverify.fleet.controller import Controller
from hpcverify.fleet.evidence import FaultReport, build_fault
from hpcverify.fleet.states import DAY_S
from hpcverify.model import Source
from hpcverify.reliability.job_endings import MIN_USERS, JobEnding, judge_job_endings
from hpcverify.slurm.accounting import UserJob
from hpcverify.units import format_count

WINDOW_MINUTES = 24 * 60
"""How far back jobs are looked at: a nightly sweep then sees each once."""
EARLY_S = 600
"""
A job that fails within so many seconds died young.

By Alibaba's figures 73 % of the jobs that failed did so within ten minutes (Aegis, NSDI
2025, as quoted by others).
"""
MAX_NODES = 4
"""A job on more nodes says too little of any of them."""
DEAD_STATES = ("FAILED", "BOOT_FAIL", "NODE_FAIL", "OUT_OF_MEMORY")
UNCLEAR_STATES = ("CANCELLED", "PREEMPTED", "REVOKED", "REQUEUED", "RESIZING", "SUSPENDED")
"""A person or the scheduler ended such a job, if it was young."""
MAX_AVOIDED_SHARE = MAX_SHARED_SHARE = 0.05
"""Users who avoid more of the nodes than this avoid a kind of nodes. More nodes than this, and
more than two, that fail within `TOGETHER_S` have a cause in common."""
TOGETHER_S = 3600


def find_suspicions(
    jobs: Iterable[UserJob],
    avoided: Mapping[str, set[int]],
    nodes: int,
    now: float,
    passed: Mapping[str, float] = MappingProxyType({}),
) -> Iterator[FaultReport | str]:
    """
    Find the nodes, of *nodes* in all, that *jobs* speak against or users avoid.

    Jobs that ended before their node last *passed* are not held against it. Partitions are
    judged separately: programs that are being tried out die on the nodes that are there
    for it. A string says what is true of too many nodes to suspect any of them.
    """
    by_partition: defaultdict[str, list[UserJob]] = defaultdict(list)
    listed = [job for job in jobs if job.end]
    for job in listed:
        by_partition[job.partition].append(job)
    for partition, there in sorted(by_partition.items()):
        judged = judge_job_endings(
            ending
            for job in there
            for ending in _list_endings(job)
            if not ending.died or ending.at > passed.get(ending.node, 0.0)
        )
        if judged.widespread:
            yield (
                f"jobs die young on {judged.widespread} nodes of partition {partition}: "
                "look for what they share, such as a file system"
            )
        for hole in judged.black_holes:
            reason = (
                f"jobs of {hole.died} of {hole.users} users died within "
                f"{EARLY_S // 60} min, where {hole.expected:.1f} were to be expected"
            )
            yield _suspect(hole.node, "black_hole", reason, hole.last)
    yield from _find_node_failures(listed, nodes, passed)
    yield from _find_avoided(avoided, nodes, now)


def _list_endings(job: UserJob) -> Iterator[JobEnding]:
    young = job.end - job.start < EARLY_S
    if len(job.nodes) > MAX_NODES or (young and job.state in UNCLEAR_STATES):
        return
    died = young and job.state in DEAD_STATES
    yield from (JobEnding(job.user, node, died, job.end, job.start) for node in job.nodes)


def _find_node_failures(
    jobs: Iterable[UserJob], nodes: int, passed: Mapping[str, float]
) -> Iterator[FaultReport | str]:
    """
    Find the nodes that failed under a job on one node: of several, Slurm does not say which did.

    Nodes that fail together have lost something that they share, such as power or a switch.
    """
    last: dict[str, int] = {}
    for job in jobs:
        if job.state == "NODE_FAIL" and len(job.nodes) == 1:
            node = job.nodes[0]
            last[node] = max(last.get(node, 0), job.end)
    together = {
        node: sum(abs(end - other) <= TOGETHER_S for other in last.values())
        for node, end in last.items()
    }
    most = max(2, MAX_SHARED_SHARE * nodes)
    if shared := sum(count > most for count in together.values()):
        yield (
            f"Slurm ended jobs as NODE_FAIL on {shared} nodes within "
            f"{TOGETHER_S // 60} min of others: look for what they share, such as power or a switch"
        )
    for node, end in sorted(last.items()):
        if together[node] > most or end <= passed.get(node, 0.0):
            continue
        yield _suspect(node, "node_fail", "Slurm ended a job there as NODE_FAIL", end)


def _find_avoided(
    avoided: Mapping[str, set[int]], nodes: int, now: float
) -> Iterator[FaultReport | str]:
    counts = {node: len(users) for node, users in avoided.items() if len(users) >= MIN_USERS}
    if len(counts) > max(2, MAX_AVOIDED_SHARE * nodes):
        yield f"{len(counts)} nodes are avoided by {median(counts.values()):.0f} users each"
        return
    for node, count in sorted(counts.items()):
        week = now - now % (7 * DAY_S)
        reason = f"jobs of {count} users must not run there (sbatch --exclude)"
        yield _suspect(node, "avoided", reason, week)


def _suspect(node: str, code: str, reason: str, at: float) -> FaultReport:
    """Report what jobs say against *node*, the last of which ended *at* that time."""
    return FaultReport(
        node=node,
        source=Source.JOBS,
        at=at,
        key=(code,),
        faults=(build_fault(Source.JOBS, code, reason),),
        examined=frozenset({Source.JOBS}),
    )


def take_suspicions(controller: Controller) -> None:
    """
    Ask Slurm for the jobs of the last day, and suspect the nodes that they speak against.

    If its accounting does not answer, this says so, and relies on what users exclude.

    Raises:
        SlurmError: Slurm itself does not answer, or not in full.

    """
    own = controller.site.fleet.partition
    hosts = controller.slurm.list_hosts()
    avoided = controller.slurm.list_avoided_nodes()
    jobs: list[UserJob] = []
    try:
        known = controller.slurm.list_user_jobs(WINDOW_MINUTES)
        jobs = [job for job in known or () if job.partition != own]
        ours = {ticket.node for ticket in controller.ledger.list_open_tickets()}
        busy = sum(
            host.state in {"ALLOCATED", "MIXED"} and host.name not in ours
            for host in hosts.values()
        )
        if known is not None and not jobs and busy:
            controller.say(
                f"users' jobs are not looked at: sacct shows none, though some run on "
                f"{format_count(busy, 'node')}. "
                "PrivateData hides them: run hpcverify as root, or as an operator of Slurm"
            )
    except SlurmError as exc:
        controller.say(f"users' jobs are not looked at: {exc}")
    passed = {name: node.last_pass_at for name, node in controller.ledger.list_nodes().items()}
    suspicions: list[FaultReport] = []
    for suspicion in find_suspicions(jobs, avoided, len(hosts), controller.clock(), passed):
        if isinstance(suspicion, str):
            controller.say(suspicion)
        elif suspicion.node in hosts:
            suspicions.append(suspicion)
    controller.take_faults(suspicions)
