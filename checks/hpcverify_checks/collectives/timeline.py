"""
Equal steps on all ranks, and transfers from each to several others, to find slow ranks.

A step is a piece of computation, the same on all ranks, and an all-reduce, in which all wait
for the last to arrive. Then each rank sends to ranks at several distances, to one in each
round, while it receives a message: a rank that is slow to send delays all of its partners,
one that is slow to receive is late with all of them. Ranks of several nodes send to other
nodes only.

Nothing is written while it runs. Times are given by the clock of rank 0's node, which is
compared before and after.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING

from msgspec import Struct

import hpcverify.check as hv
from hpcverify.records.collectives import RankSteps, Transfers
from hpcverify.units import KIB, MIB
from hpcverify_checks.node.timing import StepClock
from hpcverify_checks.ranks.board import BoardError, open_board
from hpcverify_checks.ranks.clocks import SAME_CLOCK, ClockComparison, ClockReading
from hpcverify_checks.ranks.collective import finish
from hpcverify_checks.ranks.operations import ALL_REDUCE, begin_transfer
from hpcverify_checks.ranks.process_group import await_ranks, reduce_minimum
from hpcverify_checks.ranks.rendezvous import LostRanks, RankGroup, exchange_messages

if TYPE_CHECKING:
    import torch

STEPS_SECONDS = 5.0
"""The time for all steps, of which there are `MIN_STEPS` to `MAX_STEPS`."""
TRANSFER_SECONDS = 10.0
"""No round begins after this time. On healthy links all of them take less."""
WORK_SECONDS = 0.01
"""The computation in a step: long enough for a scheduler's slices to even out."""
PRODUCT_ROWS = {"cpu": 192, "cuda": 2048}
"""The rows of the matrices that are multiplied."""
TRIALS = 5
"""Products that are timed to choose how many make a step."""
SUM_BYTES = 64 * KIB
"""The size of the all-reduce: it measures latency, since the transfers measure the wire."""
TRANSFER_BYTES = {"cpu": MIB, "cuda": 64 * MIB}
MIN_STEPS, MAX_STEPS = 24, 200
MAX_ROUNDS, ROUNDS_IN_BLOCK = 32, 8
"""Ranks agree before each block of rounds whether there is time for it."""
MAX_DISTANCES = 4
STEPS_IN_FLIGHT = 8
ROUND_TRIPS = 24
DIGITS = 7
"""Decimal places of seconds in the document."""


class Transfer(Struct, frozen=True):
    """What a rank measured in all rounds in which it sent to the rank at one distance ahead."""

    distance: int
    begins: tuple[float, ...]
    """When it began to send."""
    ends: tuple[float, ...]
    """When it had the message of the rank as far behind."""


class Timeline(Struct, frozen=True):
    """The steps and transfers of one rank, by the clock of rank 0's node."""

    steps: RankSteps
    transfers: tuple[Transfer, ...] = ()


def measure_timeline(group: RankGroup, rank: int, node: str, device: torch.device) -> Timeline:
    """Take equal steps, and then transfers, all ranks in step."""
    nodes = [
        answer.decode(errors="replace")
        for answer in exchange_messages(group, rank, "node", node.encode())
    ]
    before = read_clock(group.folder)
    with hv.operation(f"equal steps of {group.world} ranks"):
        arrivals, ends = take_steps(group, device, STEPS_SECONDS)
    with hv.operation(f"transfers among {group.world} ranks"):
        distances = choose_distances(nodes)
        transfers = take_transfers(group, rank, device, distances, TRANSFER_SECONDS)
    after = read_clock(group.folder)
    clock = ClockComparison(before, after) if before and after else SAME_CLOCK

    def convert(times: Sequence[float]) -> tuple[float, ...]:
        return tuple(round(clock.convert(at), DIGITS) for at in times)

    return Timeline(
        RankSteps(rank, convert(arrivals), convert(ends), clock.bound_error()),
        tuple(Transfer(t.distance, convert(t.begins), convert(t.ends)) for t in transfers),
    )


def read_clock(board: str) -> ClockReading | None:
    """
    Read the clock of the board's node; None if it is a folder of this node.

    Raises:
        LostRanks: the board, which is on rank 0's node, does not answer.

    """
    try:
        trips = open_board(board).make_round_trips(ROUND_TRIPS)
    except BoardError as exc:
        raise LostRanks({0: f"was lost: {exc}"}) from exc
    return ClockReading.choose(trips) if trips else None


def choose_distances(nodes: Sequence[str]) -> list[int]:
    """
    Choose how many ranks ahead each rank sends, by the node of each rank.

    Distances are whole nodes if there are several, and come in pairs, one back to the sender.
    No two ranks send to each other in one round: gloo sends one of these messages after the
    other, which looks like a slow link. There are no distances if a rank would have only one
    partner: then it is unknown which of the two is slow.
    """
    stride = max(nodes.count(node) for node in nodes)
    if stride == len(nodes):
        stride = 1
    near = [n for n in range(stride, len(nodes), stride) if 2 * n < len(nodes)][
        : MAX_DISTANCES // 2
    ]
    return sorted({*near, *(len(nodes) - n for n in near)})


def join_transfers(timelines: Mapping[int, Timeline]) -> tuple[Transfers, ...]:
    """
    Join what both sides measured: from when both were there to the receiver's end.

    The ranks leave the meeting before it one after the other, a distant one late: a rank that
    waits for it is not slow to send.
    """
    return tuple(
        Transfers(
            sender,
            receiver,
            tuple(
                round(max(end - max(begins), 0.0), DIGITS)
                for *begins, end in zip(sent.begins, received.begins, received.ends, strict=True)
            ),
        )
        for receiver, line in sorted(timelines.items())
        for number, received in enumerate(line.transfers)
        for sender in [(receiver - received.distance) % len(timelines)]
        for sent in [timelines[sender].transfers[number]]
    )


def take_steps(
    group: RankGroup, device: torch.device, seconds: float
) -> tuple[list[float], list[float]]:
    """Compute and reduce again and again; give the times of arrivals and of ends."""
    import torch

    rows = PRODUCT_ROWS[device.type]
    factor = torch.full((rows, rows), 1 / rows, device=device)
    product = torch.empty_like(factor)
    message = torch.zeros(SUM_BYTES // 4, device=device)

    def compute(times: int) -> None:
        for _ in range(times):
            torch.mm(factor, factor, out=product)

    compute(1)
    taken = []
    for _ in range(TRIALS):
        clock = StepClock(device)
        clock.mark()
        compute(1)
        clock.mark()
        await_ranks(group, device)
        taken.append(clock.read()[-1])
    fit = max(1, int(WORK_SECONDS / max(median(taken), 1e-6)))
    products = reduce_minimum(group, fit, device)

    def run(count: int) -> list[float]:
        clock = StepClock(device)
        began = clock.mark_host_time()
        for step in range(count):
            if step % STEPS_IN_FLIGHT == 0:
                await_ranks(group, device)
            compute(products)
            clock.mark()
            finish(ALL_REDUCE.begin(message, message), device)
            clock.mark()
        await_ranks(group, device)
        return [began + seconds for seconds in clock.read()[1:]]

    start = perf_counter()
    run(TRIALS)
    fit = int(seconds * TRIALS / (perf_counter() - start))
    count = reduce_minimum(group, min(max(fit, MIN_STEPS), MAX_STEPS), device)
    marks = run(count)
    return marks[::2], marks[1::2]


def take_transfers(
    group: RankGroup, rank: int, device: torch.device, distances: Sequence[int], seconds: float
) -> list[Transfer]:
    """Send over each of *distances* in turn, in several rounds, by this rank's own clock."""
    import torch

    if not distances:
        return []
    words = TRANSFER_BYTES[device.type] // 4
    sent = torch.full((words,), rank, dtype=torch.int32, device=device)
    received, meeting = torch.empty_like(sent), torch.zeros(1, device=device)

    def run(rounds: int) -> list[float]:
        clock = StepClock(device)
        began = clock.mark_host_time()
        for _ in range(rounds):
            await_ranks(group, device)
            for distance in distances:
                finish(ALL_REDUCE.begin(meeting, meeting), device)
                clock.mark()
                finish(begin_transfer(sent, received, distance), device)
                clock.mark()
        await_ranks(group, device)
        return [began + seconds for seconds in clock.read()[1:]]

    run(1)
    start = perf_counter()
    marks: list[float] = []
    count = MAX_ROUNDS // ROUNDS_IN_BLOCK
    for block in range(count):
        marks += run(ROUNDS_IN_BLOCK)
        has_time = block + 1 < count and perf_counter() < start + seconds
        if not reduce_minimum(group, int(has_time), device):
            break
    stride = 2 * len(distances)
    return [
        Transfer(distance, tuple(marks[at::stride]), tuple(marks[at + 1 :: stride]))
        for distance, at in zip(distances, range(0, stride, 2), strict=True)
    ]
