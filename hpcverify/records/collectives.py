"""
The result of collectives over ranks on several nodes: one JSON document.

Rank 0 writes it, from what all ranks left. Sizes are in bytes, times in seconds,
bandwidths in GB/s (10^9 bytes).
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from hpcverify.errors import StoreError

SECRET_VARIABLE = "HPCVERIFY_SECRET"  # noqa: S105 - where it is, not what it is
"""The variable of the secret by which ranks of a job know each other; only its user can read it."""


class RankPlace(Struct, frozen=True):
    """Where a rank ran."""

    rank: int
    node: str
    device: str
    """The id of its part, or "cpu"."""
    name: str = ""
    """The name of the part, as its driver gives it."""
    wire: float = 0.0
    """What all active RDMA ports of its node carry together in one direction, in GB/s; 0 if
    it has none."""


class CollectiveTiming(Struct, frozen=True):
    """One collective of one size: the steps as the slowest rank took them."""

    operation: str
    """The name that nccl-tests uses: all_reduce, all_gather, reduce_scatter, alltoall, broadcast,
    sendrecv."""
    size: int
    """The bytes asked for; the message has the next lower number of words that fit."""
    steps: int
    """Timed steps; each result was compared with the right one, to the bit."""
    p50: float
    p95: float
    p99: float
    algbw: float
    """The size over the time of the median step."""
    busbw: float
    """algbw by the factor of the operation (nccl-tests, doc/PERFORMANCE.md)."""


STEP = "step"
"""The steps of equal work by which stragglers are found; it stands in place of an operation."""


class RankDelay(Struct, frozen=True):
    """How a rank differs from the others in one collective of one size (medians, s)."""

    rank: int
    operation: str
    size: int
    arrival: float
    """After the first rank; clocks are compared, and *clock_error* bounds what is unknown."""
    inside: float
    """From the arrival of the last rank to its own end."""
    clock_error: float


class WrongResult(Struct, frozen=True):
    """A result that was not the right one."""

    rank: int
    operation: str
    size: int
    step: int
    elements: int
    index: int
    found: str
    expected: str


class Straggler(Struct, frozen=True):
    """A rank, or a node with all its ranks, that holds the others up."""

    rank: int
    """The rank; of a node, its first."""
    how: str
    """arrives_late, sends_slowly or receives_slowly; in training computes_slowly or
    waits_for_input."""
    seconds: float
    """Seconds of a step, beyond those of the median rank."""
    gain: float
    """The share of a step's time that all would get back if neither it nor any other straggler
    were slower than the other ranks."""
    node: str = ""
    """The node, if all of its ranks are slow: then it is reported once."""


class RankSteps(Struct, frozen=True):
    """When a rank came to each of some equal steps, and when it had the result."""

    rank: int
    arrivals: tuple[float, ...]
    """By the clock of rank 0, in seconds. Before it arrives, each rank does the same work."""
    ends: tuple[float, ...]
    clock_error: float = 0.0
    """The error of its clock against that of rank 0, at most."""


class Transfers(Struct, frozen=True):
    """How long messages of one size took from one rank to another, in seconds."""

    sender: int
    receiver: int
    times: tuple[float, ...]


class RecordedCollective(Struct, frozen=True):
    """The last collective that a rank began before it gave up, by torch's Flight Recorder."""

    rank: int
    number: int
    """From 1; all ranks begin the same ones in the same order."""
    operation: str
    is_done: bool


class OpinionRate(Struct, frozen=True):
    """What another program measures of one size."""

    size: int
    busbw: float
    """The bus bandwidth of the mean step, in place."""
    wrong: float | None
    """Wrong elements, or in old versions the largest error, which is below 1; None if it did
    not look."""


class SecondOpinion(Struct, frozen=True):
    """What another program measures of all-reduce on one node, after us. It judges nothing."""

    program: str
    node: str
    """That of rank 0, wherever the other ranks were."""
    ranks: int
    """GPUs of that node."""
    rates: tuple[OpinionRate, ...] = ()
    unable: str = ""
    """Why it measured nothing, or not all; empty if it did."""


class WireOpinion(Struct, frozen=True):
    """What ib_write_bw of perftest measures from one node to another. It judges nothing."""

    sender: str
    receiver: str
    rate: float = 0.0
    """In GB/s, through the first RDMA device of each; 0: nothing was measured."""
    unable: str = ""


class CollectiveRun(Struct, frozen=True, kw_only=True):
    """Collectives over some ranks, measured once."""

    id: str
    started: str
    ended: str
    version: str
    """The version of hpcverify."""
    job: int = 0
    """Slurm's job, 0 without one."""
    ranks: tuple[RankPlace, ...] = ()
    backend: str = ""
    """nccl or gloo."""
    libraries: dict[str, str] = {}
    """torch, and NCCL: their versions, as all ranks have them."""
    algorithm: str = ""
    """ring, tree, nvls, …; as asked for, since NCCL does not say what it took."""
    settings: dict[str, str] = {}
    """What the environment set for NCCL or gloo."""
    wire_share: float = 0.0
    """The share of all bytes that go over the network between nodes, by the algorithm; 0 if
    it is not known."""
    timings: tuple[CollectiveTiming, ...] = ()
    delays: tuple[RankDelay, ...] = ()
    wrong: tuple[WrongResult, ...] = ()
    missing: tuple[int, ...] = ()
    """Ranks that stopped answering: the others waited in vain."""
    reasons: dict[int, str] = {}
    """Why each of them is missing, as far as known."""
    recorded: tuple[RecordedCollective, ...] = ()
    """What torch recorded on the ranks that waited in vain."""
    steps: tuple[RankSteps, ...] = ()
    """Steps of a piece of work and an all-reduce, which show stragglers."""
    transfers: tuple[Transfers, ...] = ()
    """What each rank sent to some others, in turn."""
    stragglers: tuple[Straggler, ...] = ()
    unable: str = ""
    """Why nothing, or not all, could be measured; empty if it could. No rank is the cause."""
    second_opinion: SecondOpinion | None = None
    """None if nobody asked for it."""
    wire_opinions: tuple[WireOpinion, ...] = ()
    """Second opinions on pairs of nodes, if asked for."""


def parse_collective_run(text: bytes, subject: str) -> CollectiveRun:
    """
    Parse the *text* of a document; *subject* names the file.

    Raises:
        StoreError: it is something else, or incomplete.

    """
    try:
        return msgspec.json.decode(text, type=CollectiveRun)
    # For text that is not UTF-8, msgspec raises no error of its own.
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise StoreError(f"{subject} is not a document of collectives ({exc})") from exc
