"""
One rank, in a process of its own: ``python -m hpcverify_checks.collectives.rank ORDER``.

It leaves what it measures on the board at once, since it may hang or crash later, and a
report at its end. It dies with its parent.
"""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

import hpcverify.check as hv
from hpcverify.processes import die_with_parent
from hpcverify.records.collectives import RankPlace
from hpcverify.telemetry.cuda_errors import NO_GPU_CODES, find_cuda_error
from hpcverify.telemetry.nics import sum_port_rates
from hpcverify.units import GIB, KIB, MIB
from hpcverify_checks.collectives.combine import REPORT, TIMELINE, RankReport, times_topic
from hpcverify_checks.collectives.recorder import read_last_collective
from hpcverify_checks.collectives.timeline import measure_timeline
from hpcverify_checks.node.torch_build import require_torch
from hpcverify_checks.ranks.board import decode_messages, open_board
from hpcverify_checks.ranks.collective import CollectiveJob, measure_collectives, use_thread_share
from hpcverify_checks.ranks.process_group import join_group
from hpcverify_checks.ranks.progress import keep_position
from hpcverify_checks.ranks.rendezvous import LostRanks, announce_failure, exchange_messages

if TYPE_CHECKING:
    import torch

CPU_NAME = "cpu"
DEFAULT_SIZES = {"gloo": (4 * KIB, MIB, 64 * MIB), "nccl": (MIB, 256 * MIB, 4 * GIB)}
"""Message sizes in bytes by backend, from what waits for the network to what fills it."""


class RankOrder(Struct, frozen=True):
    """The order for one rank."""

    job: CollectiveJob
    rank: int
    local_rank: int
    node: str
    parent: int
    """The process that started it."""
    progress: int
    """The descriptor of the file in which this rank keeps its position."""


class _Offer(Struct, frozen=True):
    backend: str
    libraries: dict[str, str]


OFFERS = msgspec.json.Decoder(_Offer)


def main() -> None:
    """Be one rank until its work is done."""
    order = msgspec.json.decode(sys.argv[1], type=RankOrder)
    die_with_parent(order.parent)
    keep_position(order.progress)
    board = open_board(order.job.folder)
    report = RankReport(place=RankPlace(order.rank, order.node, CPU_NAME), settings=read_settings())
    try:
        with announce_failure(board, order.rank):
            device, report = _introduce(order, report)
            sizes = order.job.sizes or DEFAULT_SIZES[report.backend]
            job = msgspec.structs.replace(order.job, backend=report.backend, sizes=sizes)
            with use_thread_share(job), join_group(job, order.rank, device):
                try:
                    for number, times in enumerate(measure_collectives(job, order.rank, device)):
                        topic = times_topic(number)
                        board.post(topic, order.rank, msgspec.msgpack.encode(times))
                    if job.timeline:
                        line = measure_timeline(job, order.rank, order.node, device)
                        board.post(TIMELINE, order.rank, msgspec.msgpack.encode(line))
                except (LostRanks, RuntimeError):  # of torch: it may be about a peer
                    last = read_last_collective(order.rank, job.backend)
                    report = msgspec.structs.replace(report, recorded=last)
                    raise
    except LostRanks as exc:
        report = msgspec.structs.replace(report, lost=exc.lost)
    except hv.Unable as exc:
        report = msgspec.structs.replace(report, unable=str(exc))
    except Exception as exc:  # noqa: BLE001 - the boundary of this process: a bug of ours is about no rank
        traceback.print_exc()
        report = msgspec.structs.replace(report, unable=f"{type(exc).__name__}: {exc}")
    board.post(REPORT, order.rank, msgspec.msgpack.encode(report))


def _introduce(order: RankOrder, report: RankReport) -> tuple[torch.device, RankReport]:
    """Find this rank's device, and agree with the others on what to use."""
    device, place = find_device(order)
    backend = "nccl" if device.type == "cuda" else "gloo"
    own = _Offer(backend, _name_libraries(backend))
    answers = exchange_messages(order.job, order.rank, "offer", msgspec.json.encode(own))
    offers, unreadable = decode_messages(dict(enumerate(answers)), OFFERS.decode)
    for other, why in unreadable.items():
        raise hv.Unable(f"rank {other} {why}", hv.Cause.MISCONFIGURED)
    if without := [r for r, offer in offers.items() if offer.backend != backend]:
        text = f"rank {without[0]} uses {offers[without[0]].backend}, and this one {backend}"
        raise hv.Unable(
            f"{text}: give all ranks a GPU, or none", hv.Cause.MISCONFIGURED, hv.Remedy.RERUN
        )
    libraries = {
        name: " or ".join(
            sorted({offer.libraries.get(name, "unknown") for offer in offers.values()})
        )
        for name in own.libraries
    }
    return device, msgspec.structs.replace(
        report, place=place, libraries=libraries, backend=backend
    )


def find_device(order: RankOrder) -> tuple[torch.device, RankPlace]:
    """Find the GPU of a rank, or the CPU where torch is built for no GPU, or finds none."""
    require_torch()
    import torch

    if not torch.cuda.is_available():
        try:
            if torch.backends.cuda.is_built():  # type: ignore[no-untyped-call]
                torch.cuda.init()  # type: ignore[no-untyped-call]
        except RuntimeError as exc:
            error = find_cuda_error(str(exc))
            if error and error.code not in NO_GPU_CODES:
                raise hv.Unable(error.text, hv.Cause.MISCONFIGURED, error.remedy) from exc
        place = RankPlace(order.rank, order.node, CPU_NAME, wire=sum_port_rates(Path("/")))
        return torch.device("cpu"), place
    device = torch.device("cuda", order.local_rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    part = torch.cuda.get_device_properties(device)
    uuid = f"GPU-{str(part.uuid).removeprefix('GPU-')}"
    wire = sum_port_rates(Path("/"))
    return device, RankPlace(order.rank, order.node, uuid, part.name, wire)


def _name_libraries(backend: str) -> dict[str, str]:
    import torch

    libraries = {"torch": str(torch.__version__)}
    if backend == "nccl":
        from torch.cuda import nccl

        version = nccl.version()  # type: ignore[no-untyped-call]
        libraries["NCCL"] = ".".join(map(str, version))
    return libraries


def read_settings() -> dict[str, str]:
    """Read what the environment tells NCCL and gloo."""
    prefixes = ("NCCL_", "GLOO_")
    return {name: value for name, value in sorted(os.environ.items()) if name.startswith(prefixes)}


if __name__ == "__main__":
    main()
