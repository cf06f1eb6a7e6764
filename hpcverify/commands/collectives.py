"""``hpcverify fabric test``: measure collectives between GPUs or CPUs of several nodes."""

from __future__ import annotations

import os
import re
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any
from uuid import uuid4

import click
import msgspec
from msgspec import Struct

from hpcverify.check import Unable
from hpcverify.commands._options import Duration
from hpcverify.console import EXIT_UNVERIFIED, echo
from hpcverify.errors import ConfigError, UnverifiedError
from hpcverify.isolation.shares import find_slow_ranks_of_training, read_step_log
from hpcverify.isolation.stragglers import compute_delays, describe_straggler, find_stragglers
from hpcverify.plan.config import node_name
from hpcverify.records import documents
from hpcverify.records.collectives import (
    STEP,
    CollectiveRun,
    SecondOpinion,
    WireOpinion,
)
from hpcverify.slurm.step import read_step
from hpcverify.summary.printable import format_json
from hpcverify.units import GIB, KIB, MIB, format_count

MODULE = "hpcverify_checks.collectives.launch"
"""The module that starts ranks and measures; found by its name, as all checks are."""
OPINION_MODULE = "hpcverify_checks.collectives.second_opinion"
OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "alltoall", "broadcast", "sendrecv")
SIZE_UNITS = {"": 1, "K": KIB, "M": MIB, "G": GIB}
EXIT_FOUND = 1
LOOPBACK = "127.0.0.1"
ROW = "{:<14}  {:>7}  {:>5}  {:>9}  {:>9}  {:>9}  {:>11}  {:>11}  {:>5}"
OPINION_ROW = "{:>7}  {:>9}  {:>9}  {:>8}"
TIMES, RATES = ("p50 us", "p95 us", "p99 us"), ("algbw GB/s", "busbw GB/s")


class SizeType(click.ParamType[int]):
    """A number of bytes, as nccl-tests takes it: 4K, 64M, 1G."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Read it."""
        if isinstance(value, int):
            return value
        size = re.fullmatch(r"(\d+)([KMG]?)(?:i?B)?", str(value), re.IGNORECASE)
        if not size or not int(size[1]):
            self.fail(f"{value!r} is not a size: write 4K, 64M or 1G", param, ctx)
        return int(size[1]) * SIZE_UNITS[size[2].upper()]


class RankChoice(Struct, frozen=True, kw_only=True):
    """Which ranks this process launches, and where all meet."""

    world: int
    ranks: tuple[tuple[int, int], ...]
    """Rank, and rank on its node."""
    address: str
    nodes: tuple[str, ...] = ()
    """If there are several."""
    group: str
    job: int = 0
    expected: tuple[str, ...] = ()
    """The node of each rank, if that is known."""


@click.command("test")
@click.option("-o", "--output", metavar="FILE", help="Write the result to FILE as JSON (rank 0).")
@click.option(
    "--operation",
    "operations",
    multiple=True,
    type=click.Choice(OPERATIONS),
    metavar="OPERATION",
    help="Measure only this operation; repeatable: " + ", ".join(OPERATIONS) + ".",
)
@click.option(
    "--size",
    "sizes",
    multiple=True,
    type=SizeType(),
    help="Measure this size, for example 64M; repeatable (default: 4K, 1M, 64M on CPUs; 1M, 256M, "
    "4G on GPUs).",
)
@click.option(
    "--time",
    "seconds",
    type=Duration(low=0.1),
    default="20s",
    show_default=True,
    help="Measure for this long; the verification takes about as long again.",
)
@click.option(
    "--algorithm",
    type=click.Choice(["ring", "auto"]),
    help="Force this NCCL algorithm (default: ring between nodes, auto in one node).",
)
@click.option(
    "--alone",
    is_flag=True,
    help="Measure one node without direct copies between its GPUs, through its adapters.",
)
@click.option(
    "--stragglers/--no-stragglers",
    default=True,
    show_default=True,
    help="Find ranks that delay the others; takes some seconds.",
)
@click.option(
    "--timeout",
    type=Duration(low=1, high=600),
    default="30s",
    show_default=True,
    help="Wait this long for ranks to start, and for a collective in which all ranks wait.",
)
@click.option(
    "--second-opinion",
    is_flag=True,
    help="Also run all_reduce_perf (nccl-tests) on the node of rank 0, and ib_write_bw (perftest) "
    "between pairs of nodes; the exit status does not depend on them.",
)
@click.option(
    "--rank",
    type=click.IntRange(min=0),
    metavar="N",
    help="Set the rank of this process, without srun (without MUNGE also HPCVERIFY_SECRET).",
)
@click.option(
    "--world",
    type=click.IntRange(min=1),
    metavar="N",
    help="Set the number of ranks, without srun.",
)
@click.option("--address", metavar="HOST", help="Set the address of the node of rank 0.")
@click.option(
    "--step-log",
    metavar="FILE",
    help="Do not measure; find the rank that slows a training job, from a CSV with a row for each "
    "step of each rank, in seconds: rank, computing, communicating [, waiting_for_input, role].",
)
@click.option(
    "--port", type=click.IntRange(1, 65535), metavar="N", help="Set the port on the node of rank 0."
)
def command(**options: Any) -> None:
    """
    Measure collectives over all ranks, and verify every result bit by bit.

    Start it with srun, one task for each GPU. Without srun, it measures this node, with a
    rank for each GPU, or two ranks on CPUs. Sizes and bandwidths are those of nccl-tests
    (GB/s of 10^9 bytes); a step takes as long as its slowest rank.

    Exit status 1 if a result is wrong, or a rank is missing or delays the others; 3 if the
    collectives could not be measured.

    \b
    Examples:
      srun -N 4 --ntasks-per-node 8 hpcverify fabric test -o run.json
      srun -N 2 --ntasks-per-node 8 hpcverify fabric test --operation sendrecv --size 1G
      hpcverify fabric test --alone
      hpcverify fabric test --step-log steps.csv
    """  # noqa: D301 - \b is click's mark for text that is not to be wrapped
    if options["step_log"]:
        sys.exit(judge_step_log(options["step_log"]))
    out: str | None = options["output"]
    chosen = choose_ranks(options)
    if out and (not chosen.ranks or chosen.ranks[0][0] == 0):
        documents.refuse_unwritable(out)
    run = launch(chosen, options)
    if run is None:
        return  # rank 0's process says what came of it
    if options["second_opinion"]:
        opinion: SecondOpinion = import_module(OPINION_MODULE).ask(run)
        run = msgspec.structs.replace(run, second_opinion=opinion)
    for line in describe(run):
        echo(line)
    if out:
        documents.write_bytes(Path(out), format_json(run))
    sys.exit(choose_status(run))


def choose_ranks(options: dict[str, Any]) -> RankChoice:
    """
    Choose which ranks to launch here: what the options say, else srun, else all of this node.

    Raises:
        ConfigError: the options do not fit together.

    """
    rank, world, address = options["rank"], options["world"], options["address"]
    if (rank is None) != (world is None):
        raise ConfigError("--rank and --world belong together")
    if rank is not None:
        if rank >= world:
            raise ConfigError(f"--rank {rank} is none of {world}: they are counted from 0")
        if not address or not options["port"]:
            raise ConfigError("--rank needs the --address and --port at which the ranks meet")
        group = f"{address}:{options['port']}"
        return RankChoice(world=world, ranks=((rank, rank),), address=address, group=group)
    place = read_step(os.environ)
    if place is None or place.world == 1:
        return RankChoice(world=0, ranks=(), address=LOOPBACK, group=uuid4().hex)
    if options["alone"] and len(place.nodes) > 1:
        count = format_count(len(place.nodes), "node")
        raise ConfigError(f"--alone is for one node, and this step has {count}: srun -N 1")
    return RankChoice(
        world=place.world,
        ranks=((place.rank, place.local_rank),),
        address=address or (place.nodes[0] if len(place.nodes) > 1 else LOOPBACK),
        nodes=place.nodes if len(place.nodes) > 1 else (),
        expected=place.expected,
        group=f"{place.job}.{place.step}",
        job=place.job,
    )


def launch(chosen: RankChoice, options: dict[str, Any]) -> CollectiveRun | None:
    """Launch the ranks and wait for them; only rank 0's launcher gets the result."""
    order = msgspec.structs.asdict(chosen) | {
        "folder": "",  # and the backend: the ranks agree on them
        "backend": "",
        "operations": options["operations"] or OPERATIONS,
        "sizes": options["sizes"],
        "seconds": options["seconds"],
        "timeout": options["timeout"],
        "seed": uuid4().int % 2**63,
        "algorithm": options["algorithm"] or "",
        "alone": options["alone"],
        "timeline": options["stragglers"],
        "node": node_name(),
        "port": options["port"] or 0,
        "second_opinion": options["second_opinion"],
    }
    started = datetime.now(UTC)
    try:
        encoded: bytes = import_module(MODULE).launch(msgspec.json.encode(order))
    except Unable as exc:
        raise UnverifiedError(str(exc)) from exc
    if not encoded:
        return None
    run = msgspec.json.decode(encoded, type=CollectiveRun)
    return msgspec.structs.replace(
        run,
        id=uuid4().hex,
        started=started.isoformat(),
        ended=datetime.now(UTC).isoformat(),
        version=version("hpcverify"),
        job=chosen.job,
        delays=compute_delays(STEP, 0, run.steps),
        stragglers=find_stragglers(run.ranks, run.steps, run.transfers),
    )


def choose_status(run: CollectiveRun) -> int:
    """Choose the exit status: what was found goes before what could not be measured."""
    if run.wrong or run.missing or run.stragglers:
        return EXIT_FOUND
    return EXIT_UNVERIFIED if run.unable or not run.timings else 0


def describe(run: CollectiveRun) -> Iterator[str]:
    """Say in lines what was measured, with a table, and what is wrong."""
    nodes = len({place.node for place in run.ranks if place.node})
    libraries = [" ".join(pair) for pair in run.libraries.items()]
    what = f"{format_count(len(run.ranks), 'rank')} on {format_count(nodes, 'node')}"
    algorithm = f"algorithm {run.algorithm}" if run.algorithm else ""
    yield ", ".join(filter(None, [what, run.backend, *libraries, algorithm]))
    if run.wire_share:
        yield f"{run.wire_share:.0%} of the bytes of a ring go from node to node"
    if run.settings:
        yield "settings: " + " ".join(f"{name}={value}" for name, value in run.settings.items())
    if run.timings:
        yield ""
        yield ROW.format("operation", "size", "steps", *TIMES, *RATES, "wrong")
    wrong = Counter((result.operation, result.size) for result in run.wrong)
    for row in run.timings:
        times = (f"{seconds * 1e6:.1f}" for seconds in (row.p50, row.p95, row.p99))
        rates = (f"{rate:.4g}" for rate in (row.algbw, row.busbw))
        count = wrong[row.operation, row.size]
        yield ROW.format(row.operation, format_size(row.size), row.steps, *times, *rates, count)
    yield ""
    if run.second_opinion:
        yield from describe_opinion(run, run.second_opinion)
        yield from map(describe_wire_opinion, run.wire_opinions)
        yield ""
    yield from describe_findings(run)


def describe_opinion(run: CollectiveRun, opinion: SecondOpinion) -> Iterator[str]:
    """Say in lines what another program measured, beside our rates."""
    own = {row.size: row.busbw for row in run.timings if row.operation == "all_reduce"}
    is_alone = all(place.node == opinion.node for place in run.ranks)
    if opinion.rates:
        program = f"{opinion.program} on {format_count(opinion.ranks, 'GPU')} of {opinion.node}"
        yield f"second opinion on all_reduce: {program}, the mean of its steps"
        if not is_alone:
            yield "it is of this one node; ours went over the network, so the two may well differ"
        yield OPINION_ROW.format("size", "its busbw", "our busbw", "ours/its" if is_alone else "")
    for row in opinion.rates:
        ratio = f"{own[row.size] / row.busbw:.3f}" if is_alone and row.busbw else ""
        rates = (f"{rate:.4g}" for rate in (row.busbw, own[row.size]))
        yield OPINION_ROW.format(format_size(row.size), *rates, ratio).rstrip()
        if row.wrong is not None and row.wrong >= 1:
            yield f"{opinion.program} counts {row.wrong:g} wrong elements of this size"
    if opinion.unable:
        yield f"no second opinion{' on the rest' if opinion.rates else ''}: {opinion.unable}"


def describe_wire_opinion(opinion: WireOpinion) -> str:
    """Say what ib_write_bw measured between two nodes."""
    what = f"{opinion.rate:.4g} GB/s" if opinion.rate else f"nothing: {opinion.unable}"
    return f"ib_write_bw from {opinion.sender} to {opinion.receiver}: {what}"


def describe_findings(run: CollectiveRun) -> Iterator[str]:
    """Say what is wrong, and which ranks are missing or slow; or that all is right."""
    names = {
        place.rank: f"rank {place.rank}"
        + (f" on {place.node}" if place.node else "")
        + (f" ({place.device})" if place.device else "")
        for place in run.ranks
    }
    for wrong in run.wrong:
        yield (
            f"{names[wrong.rank]} got a wrong result of {wrong.operation} of "
            f"{format_size(wrong.size)} in step {wrong.step}: "
            f"{format_count(wrong.elements, 'word')}, the first at {wrong.index} "
            f"is {wrong.found}, not {wrong.expected}"
        )
    for rank in run.missing:
        yield f"{names[rank]} {run.reasons.get(rank, 'is missing')}"
    yield from (describe_straggler(straggler, run.ranks) for straggler in run.stragglers)
    if run.unable:
        yield f"not all could be measured: {run.unable}"
    if choose_status(run) == 0:
        yield "every result was right, on every rank"


def judge_step_log(name: str) -> int:
    """
    Say which ranks slow a job, by its step log; return the exit status.

    Raises:
        ConfigError: it cannot be read, or is not a step log.

    """
    try:
        lines = Path(name).read_text().splitlines()
    except OSError as exc:
        raise ConfigError(f"{name} cannot be read: {exc.strerror}") from exc
    except UnicodeDecodeError as exc:
        raise ConfigError(f"{name} is not a step log: {exc}") from exc
    shares = read_step_log(lines, name)
    slow = find_slow_ranks_of_training(shares)
    for straggler in slow:
        echo(describe_straggler(straggler, ()))
    if not slow:
        steps = format_count(len(shares[0].computing), "step")
        echo(f"no rank slows this job: {format_count(len(shares), 'rank')}, {steps}")
    return EXIT_FOUND if slow else 0


def format_size(size: int) -> str:
    """Write a number of bytes as nccl-tests takes it: 4K, 64M."""
    for unit in ("G", "M", "K"):
        if size % SIZE_UNITS[unit] == 0:
            return f"{size // SIZE_UNITS[unit]}{unit}"
    return str(size)
