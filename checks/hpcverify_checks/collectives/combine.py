"""One document of all that the ranks measured."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from typing import TypeVar

import msgspec
from msgspec import Struct

from hpcverify.records.collectives import CollectiveRun, RankPlace, RecordedCollective, WrongResult
from hpcverify_checks.collectives.recorder import describe_records
from hpcverify_checks.collectives.timeline import Timeline
from hpcverify_checks.ranks.board import describe_unreadable
from hpcverify_checks.ranks.collective import StepTimes, compute_timing
from hpcverify_checks.ranks.operations import OPERATIONS

REPORT = "report"
TIMELINE = "timeline"
RING, AUTO = "ring", "auto"
"""The algorithm of NCCL: rings, or its own choice."""
Shaped = TypeVar("Shaped", StepTimes, Timeline)


def times_topic(number: int) -> str:
    """Name the messages about operation and size *number* of a job."""
    return f"times.{number}."


class RankReport(Struct, frozen=True, kw_only=True):
    """The last message of a rank."""

    place: RankPlace
    backend: str = ""
    libraries: dict[str, str] = {}
    settings: dict[str, str] = {}
    lost: dict[int, str] = {}
    """The ranks for which it waited in vain, and what it knows of them."""
    unable: str = ""
    """Why it ended early, if that was not because of another rank."""
    recorded: RecordedCollective | None = None
    """Where it was when it stopped waiting."""


def split_misfits(messages: Mapping[int, Shaped]) -> tuple[dict[int, Shaped], dict[int, str]]:
    """Separate what ranks measured that fits together from the rest; say why the rest does not."""
    shapes = {rank: _find_shape(rank, message) for rank, message in messages.items()}
    common = next(filter(None, shapes.values()), None)
    fitting = {r: m for r, m in messages.items() if shapes[r] is not None and shapes[r] == common}
    why = describe_unreadable("steps that fit no others'")
    return fitting, {rank: why for rank in messages if rank not in fitting}


def _find_shape(rank: int, message: StepTimes | Timeline) -> Hashable:
    """Find what must be the same for all ranks; None if it makes no sense by itself."""
    if isinstance(message, StepTimes):
        times = message.times
        is_right = message.operation in OPERATIONS and times and all(time > 0 for time in times)
        return (message.operation, message.size, len(times)) if is_right else None
    steps, transfers = message.steps, message.transfers
    rows = [(steps.arrivals, steps.ends), *((t.begins, t.ends) for t in transfers)]
    counts = [(len(begins), len(ends)) for begins, ends in rows]
    is_right = steps.rank == rank and all(begun == ended > 0 for begun, ended in counts)
    return (*(transfer.distance for transfer in transfers), *counts) if is_right else None


def combine_reports(
    places: Sequence[RankPlace],
    reports: Mapping[int, RankReport],
    times: Sequence[Mapping[int, StepTimes]],
    *,
    gone: Mapping[int, str],
    waiting: Collection[int],
    algorithm: str,
) -> CollectiveRun:
    """
    Combine the messages of the ranks.

    *places* has all ranks, with what is known of where they are;
    *times* has what each rank measured, for each operation and size; *gone* the ranks that
    never came or that died, and why. A rank that reports is there, whichever rank missed it;
    so is a rank that may have been *waiting* for others at the end.
    """
    world = len(places)
    reasons = {rank: why for report in reports.values() for rank, why in report.lost.items()}
    reasons |= gone
    unable = [f"rank {r}: {report.unable}" for r, report in reports.items() if report.unable]
    silent = [rank for rank in range(world) if rank not in reports]
    if silent and not reasons:
        stuck = [rank for rank in silent if rank not in waiting]
        # Most ranks do not fail at once: more likely a shared folder does not answer.
        if 0 < len(stuck) <= world / 2:
            reasons = dict.fromkeys(stuck, "reported nothing more")
        else:
            unable.append(f"{len(silent)} of {world} ranks reported nothing more")
    records = {rank: report.recorded for rank, report in reports.items() if report.recorded}
    described = describe_records(records)
    reasons = {
        rank: "; ".join(filter(None, (why, described)))
        for rank, why in sorted(reasons.items())
        if rank not in reports and 0 <= rank < world
    }
    first = next(iter(reports.values()), None)
    ranks = tuple(
        msgspec.structs.replace(reports[p.rank].place, rank=p.rank) if p.rank in reports else p
        for p in places
    )
    whole = [by_rank for by_rank in times if len(by_rank) == world]
    return CollectiveRun(
        id="",
        started="",
        ended="",
        version="",
        ranks=ranks,
        backend=first.backend if first else "",
        algorithm=algorithm,
        wire_share=compute_wire_share(ranks, algorithm),
        libraries=first.libraries if first else {},
        settings=first.settings if first else {},
        timings=tuple(compute_timing(list(by_rank.values()), world) for by_rank in whole),
        wrong=tuple(list_wrong(times)),
        missing=tuple(reasons),
        reasons=reasons,
        recorded=tuple(records.values()),
        unable="; ".join(filter(None, (unable[0], described))) if unable else "",
    )


def compute_wire_share(ranks: Sequence[RankPlace], algorithm: str) -> float:
    """
    Compute the share of a ring's bytes that go from node to node.

    Each of n links of a ring carries the same (Patarasuk and Yuan, 2009, "Bandwidth optimal
    all-reduce algorithms"), and NCCL's rings enter and leave each of k nodes once: k / n.
    """
    nodes = len({place.node for place in ranks})
    return nodes / len(ranks) if algorithm == RING and nodes > 1 else 0.0


def list_wrong(times: Sequence[Mapping[int, StepTimes]]) -> Iterator[WrongResult]:
    """List the wrong results of all ranks, as they were measured, the first step first."""
    for by_rank in times:
        results = [
            WrongResult(
                rank,
                own.operation,
                own.size,
                wrong.step,
                wrong.count,
                wrong.index,
                *wrong.values,
            )
            for rank, own in by_rank.items()
            if (wrong := own.wrong)
        ]
        yield from sorted(results, key=lambda result: result.step)
