"""
How a verification is submitted to Slurm as a job, and how it ended.

A job is pinned to its node, has all of it, gives way to anybody and is never requeued.
Each node gets its own: an array cannot be pinned to nodes, and one job over many would be
lost with the first of them. Only collectives between nodes are one job over them all.

How a job ended is bookkeeping, never a verdict: that is in the run document alone, and no
ending of a job means that the hardware is bad.
"""

from __future__ import annotations

import math
import re
import shlex
import sys
from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol

from msgspec import Struct

from hpcverify.slurm import Job

SCRIPT_PATH = Path(__file__).with_name("sweep.sh")
SETTINGS_LINE = "# `hpcverify fleet sweep` writes the settings of this job below this line.\n"

JOB_NAME_PREFIX = "hpcverify-"

MAX_STRAGGLING_S = 90
"""After the first rank has ended, the others are: one that hangs would keep the job."""

WAIT_MINUTES = 1
"""How long the script waits for a run that is still ending."""
MARGIN_MINUTES = 4
"""On top of a suite's budget, to start and to end: the engine gives up on what hangs
long before."""

NICE = 1_000_000
"""Puts a job behind every user's; Slurm subtracts no more priority than there is."""

MAX_ARRIVAL_S = 90.0
"""How long after its job a document may appear: an NFS client may cache a directory
for 60 s (acdirmax, nfs(5))."""

CANNOT_RUN_STATUSES = frozenset((126, 127))
"""The exit status if a program may not be run, or is missing (POSIX, 2.8.2)."""


class JobSubmitter(Protocol):
    """What hands a job to Slurm."""

    def submit(self, script: Path, *options: str) -> int:
        """Submit *script* with sbatch's *options*; return the job's id."""
        ...


class _Job(Struct, frozen=True, kw_only=True):
    """What both kinds of jobs have."""

    gpus: int
    """All that a node has."""
    name: str
    minutes: int
    deadline_hours: float
    """It is given up if it cannot start by then."""
    partition: str
    reservation: str = ""
    user: str = ""
    """Who it runs as; empty: whoever submits it."""
    program: str = ""
    """The path of hpcverify on the nodes; empty: the same as here."""
    environment: Mapping[str, str] = {}
    """Variables of the run, besides those that Slurm sets."""
    options: tuple[str, ...] = ()
    """The site's own, for sbatch: see `check_option`."""


class JobSpec(_Job, frozen=True, kw_only=True):
    """One node to be verified, and how; *name* is as `build_job_name` makes it."""

    node: str
    suite: str
    token: str
    """Shows that the controller ordered this run; no other user may see it."""
    spool: str


class JobStep(Struct, frozen=True, kw_only=True):
    """One program on all nodes of a job, as a rank for each GPU."""

    arguments: tuple[str, ...]
    order: tuple[str, ...] = ()
    """The nodes in the order of their ranks; empty: as Slurm has them."""


class GroupJobSpec(_Job, frozen=True, kw_only=True):
    """Collectives between nodes, one step after the other."""

    nodes: tuple[str, ...]
    steps: tuple[JobStep, ...]


def build_job_name(ticket: int, node: str) -> str:
    """Name a job, so that it can be found even if its number was never recorded."""
    return f"{JOB_NAME_PREFIX}{ticket}-{node}"


def compute_minutes(budget: float) -> int:
    """Return the minutes that a job may take whose suite has *budget* seconds."""
    return math.ceil(budget / 60) + WAIT_MINUTES + MARGIN_MINUTES


def submit(spec: JobSpec | GroupJobSpec, slurm: JobSubmitter) -> int:
    """Submit the job of *spec*, its settings in the script, which other users cannot read."""
    with TemporaryDirectory(prefix=JOB_NAME_PREFIX) as private:
        script = Path(private, spec.name)
        script.write_text(build_script(spec), encoding="utf-8")
        return slurm.submit(script, *list_options(spec))


def build_script(spec: JobSpec | GroupJobSpec) -> str:
    """Build the job script: `SCRIPT_PATH` with the settings of this job."""
    before, after = SCRIPT_PATH.read_text(encoding="utf-8").split(SETTINGS_LINE)
    program = spec.program or str(Path(sys.executable).with_name("hpcverify"))
    exported = dict(spec.environment)
    own = {"program": program}
    if isinstance(spec, JobSpec):
        exported["HPCVERIFY_TOKEN"] = spec.token
        own |= {"suite": spec.suite, "spool": spec.spool}
    else:
        # The last step replaces the shell, as in `SCRIPT_PATH`.
        steps = [
            f'srun {shlex.join(_list_step_options(spec, step))} "$program" '
            f"{shlex.join(step.arguments)}"
            for step in spec.steps
        ]
        after = "\n".join((*steps[:-1], f"exec {steps[-1]}", ""))
    settings = [
        *(f"export {name}={shlex.quote(value)}" for name, value in exported.items()),
        *(f"{name}={shlex.quote(value)}" for name, value in own.items()),
    ]
    return "\n".join((before + SETTINGS_LINE.rstrip(), *settings, after))


def _list_step_options(spec: GroupJobSpec, step: JobStep) -> Iterator[str]:
    ranks = spec.gpus or 1
    if step.order:
        hosts = ",".join(node for node in step.order for _ in range(ranks))
        yield from (f"--nodelist={hosts}", "--distribution=arbitrary")
        yield f"--ntasks={ranks * len(step.order)}"
    else:
        yield from (f"--nodes={len(spec.nodes)}", f"--ntasks-per-node={ranks}")
    yield from ("--cpu-bind=none", "--mpi=none", "--kill-on-bad-exit=0", "--output=/dev/null")
    yield f"--wait={MAX_STRAGGLING_S}"


def list_options(spec: JobSpec | GroupJobSpec) -> Iterator[str]:
    """Yield the options for sbatch, the site's first: the last of two alike counts."""
    yield from spec.options
    yield f"--job-name={spec.name}"
    yield f"--partition={spec.partition}"
    if isinstance(spec, JobSpec):
        yield from (f"--nodelist={spec.node}", "--nodes=1", "--ntasks=1")
    else:
        ranks = spec.gpus or 1
        yield from (f"--nodelist={','.join(spec.nodes)}", f"--nodes={len(spec.nodes)}")
        yield f"--ntasks-per-node={ranks}"
    yield from ("--exclusive", "--mem=0")
    if spec.gpus:  # --exclusive alone does not give them
        yield f"--gpus-per-node={spec.gpus}"
    yield from ("--no-requeue", f"--nice={NICE}")
    yield f"--time={spec.minutes}"
    # Slurm's deadline is for the end: it gives up a job that cannot end by then.
    start_by = math.ceil(spec.deadline_hours * 3600)
    yield f"--deadline=now+{start_by + spec.minutes * 60}seconds"
    # The node's own limits, and no file that could fail to open. With any export but
    # ALL, Slurm runs a login shell first, which may hang on a home directory.
    yield from ("--propagate=NONE", "--export=ALL", "--chdir=/", "--output=/dev/null")
    if spec.reservation:
        yield f"--reservation={spec.reservation}"
    if spec.user:
        yield f"--uid={spec.user}"


OWN_OPTIONS = frozenset(
    {
        *("job-name", "partition", "nodelist", "nodes", "ntasks", "ntasks-per-node"),
        *("exclusive", "mem"),
        *("gpus-per-node", "no-requeue", "nice", "time", "deadline", "propagate"),
        *("export", "chdir", "output", "reservation", "uid"),
    }
)
"""Options that only we set: they pin a job to its node and make it give way."""
HARMFUL_OPTIONS = frozenset(
    {
        # what runs, as whom, and where
        *("wrap", "array", "gid", "get-user-env", "export-file", "container"),
        *("clusters", "exclude", "nodefile", "reboot", "delay-boot", "error", "input"),
        # less than all of a node
        *("oversubscribe", "share", "overcommit", "mem-per-cpu", "mem-per-gpu"),
        *("gpus", "gpus-per-task", "gpus-per-socket", "tres-per-task"),
        *("ntasks-per-core", "ntasks-per-socket", "ntasks-per-gpu"),
        # never, later, again, for less time, or before others
        *("hold", "begin", "dependency", "requeue", "time-min", "signal", "priority"),
        # what sbatch prints, and whether it comes back
        *("wait", "test-only", "parsable", "quiet", "verbose"),
        *("help", "usage", "version"),
    }
)
"""Options with which a verification would not run, or not of its whole node."""
OPTION_PATTERN = re.compile(r"--([a-z][a-z0-9-]*)(=.+)?", re.DOTALL)


def check_option(option: str) -> str:
    """Explain why sbatch must not get *option*, which may be abbreviated; empty if it may."""
    match = OPTION_PATTERN.fullmatch(option)
    if match is None:
        return "write it as --name=value"
    name = match[1]
    if name in ("account", "qos"):
        return f"set fleet.{name}"
    for known in sorted(OWN_OPTIONS | HARMFUL_OPTIONS):
        if known.startswith(name):
            why = "is set by hpcverify" if known in OWN_OPTIONS else "would break a verification"
            return f"--{known} {why}"
    return ""


class Ending(StrEnum):
    """How a job ended, if it did: a closed list."""

    PENDING = "pending"
    RUNNING = "running"
    ARRIVING = "arriving"
    """It ended by itself a moment ago; its document may still be on the way."""
    FINISHED = "finished"
    PREEMPTED = "preempted"
    NODE_FAIL = "node_fail"
    """The node stopped answering, or did not boot."""
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    OUT_OF_MEMORY = "out_of_memory"
    NEVER_STARTED = "never_started"
    """The node was not free before the deadline."""
    LAUNCH_FAILED = "launch_failed"
    """Slurm could not start it; it may sit in the queue, held."""
    UNDEPLOYED = "undeployed"
    """hpcverify cannot be run there."""
    FAILED = "failed"
    """It ended by itself, and left no document."""
    VANISHED = "vanished"
    """Slurm no longer knows it, and there is no document."""

    @property
    def is_over(self) -> bool:
        """Whether nothing more will come."""
        return self not in (Ending.PENDING, Ending.RUNNING, Ending.ARRIVING)


SELF_ENDED_STATES = frozenset(("COMPLETED", "FAILED"))
"""Slurm's states of a job that ended by itself, or thinks so in its grace time."""

ENDING_BY_STATE = {
    "BOOT_FAIL": Ending.NODE_FAIL,
    "CANCELLED": Ending.CANCELLED,
    "CONFIGURING": Ending.PENDING,
    "LAUNCH_FAILED": Ending.LAUNCH_FAILED,
    "NODE_FAIL": Ending.NODE_FAIL,
    "OUT_OF_MEMORY": Ending.OUT_OF_MEMORY,
    "PENDING": Ending.PENDING,
    "POWER_UP_NODE": Ending.PENDING,
    "PREEMPTED": Ending.PREEMPTED,
    "RECONFIG_FAIL": Ending.LAUNCH_FAILED,
    "REQUEUED": Ending.PENDING,
    "REQUEUE_FED": Ending.PENDING,
    "REQUEUE_HOLD": Ending.PENDING,
    "RESV_DEL_HOLD": Ending.PENDING,
    "REVOKED": Ending.CANCELLED,
    "SPECIAL_EXIT": Ending.PENDING,
    "TIMEOUT": Ending.TIMEOUT,
}
"""The others (squeue(1), JOB STATE CODES). A job in any other state is still going:
RUNNING, COMPLETING, SUSPENDED, …, and states that a later Slurm may add."""


def classify_ending(
    job: Job | None, *, document: bool, now: float, max_arrival: float = MAX_ARRIVAL_S
) -> Ending:
    """Classify the end of *job*, with a *document* or not, *now* in seconds since 1970."""
    if job is None:
        return Ending.FINISHED if document else Ending.VANISHED
    if "launch" in job.reason.lower():  # launch_failed_requeued_held, JobLaunchFailure
        return Ending.LAUNCH_FAILED
    if job.state in SELF_ENDED_STATES:
        return _classify_self_ended(job, document=document, late=now - job.end > max_arrival)
    if job.state == "DEADLINE":
        return Ending.TIMEOUT if job.start else Ending.NEVER_STARTED
    return ENDING_BY_STATE.get(job.state, Ending.RUNNING)


def _classify_self_ended(job: Job, *, document: bool, late: bool) -> Ending:
    if job.preempted:
        return Ending.PREEMPTED
    if document:
        return Ending.FINISHED
    if job.exit_status in CANNOT_RUN_STATUSES:
        return Ending.UNDEPLOYED
    return Ending.FAILED if late else Ending.ARRIVING


ENDING_TEXTS = {
    Ending.PENDING: "waits for its node",
    Ending.RUNNING: "runs",
    Ending.ARRIVING: "ended, waiting for its document",
    Ending.FINISHED: "ended, with a document",
    Ending.PREEMPTED: "gave way to a user's job",
    Ending.NODE_FAIL: "lost its node, which does not respond to Slurm",
    Ending.TIMEOUT: "was ended by Slurm at its time limit. Fix: raise the budget of the suite",
    Ending.CANCELLED: "was cancelled by a user, or because the prolog of the node failed: "
    "scontrol show node {node}",
    Ending.OUT_OF_MEMORY: "was ended because it ran out of memory",
    Ending.NEVER_STARTED: "did not start: its node was not free before the deadline",
    Ending.LAUNCH_FAILED: "could not be started by Slurm: scontrol show node {node}",
    Ending.UNDEPLOYED: "ended with exit status {status}: hpcverify cannot run on {node}. "
    "Fix: install it at the same path as here",
    Ending.FAILED: "ended with exit status {status} without a document. Fix: check that "
    "{node} can write to the spool, and see the logs in its state directory",
    Ending.VANISHED: "is no longer known to Slurm, and did not leave a document",
}


def describe_ending(ending: Ending, node: str, job: Job | None) -> str:
    """Say in words how *job* ended, and what to do about it, if anything."""
    status = 0 if job is None else job.exit_status
    name = "the job" if job is None else f"job {job.id}"
    return f"{name} {ENDING_TEXTS[ending].format(node=node, status=status)}"
