"""Ask ``all_reduce_perf`` of nccl-tests what it measures on the node of rank 0."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from time import monotonic

import hpcverify.check as hv
from hpcverify.records.collectives import CollectiveRun, OpinionRate, SecondOpinion
from hpcverify_checks.ranks.nccl_tests import INSTALL_FIX, PROGRAM, run_all_reduce
from hpcverify_checks.ranks.sizes import format_size

TIMEOUT_SECONDS = 180.0
"""The time for all sizes together: each starts NCCL, which takes seconds on eight GPUs."""
STEPS = 20
ELEMENT_BYTES = 4
"""It sums float32 by default."""
STEP_PREFIXES = ("SLURM_", "PMI", "OMPI_")
"""Variables that make a program built with MPI take itself for a rank of this step."""


def ask(run: CollectiveRun, timeout: float = TIMEOUT_SECONDS) -> SecondOpinion:
    """
    Run it on the GPUs that the ranks on this node had, with the sizes of our all-reduce.

    This is for the node of rank 0, after the ranks have ended. NCCL gets the settings that
    it had in *run*. An obstacle is named in the result, and is not an error.
    """
    node = run.ranks[0].node
    ranks = sum(place.node == node for place in run.ranks)
    rates: list[OpinionRate] = []
    unable = _explain_silence(run, ranks)
    try:
        if not unable:
            rates.extend(_measure(run, ranks, monotonic() + timeout))
    except hv.Unable as exc:
        unable = str(exc)
    return SecondOpinion(PROGRAM, node, ranks, tuple(rates), unable)


def _explain_silence(run: CollectiveRun, ranks: int) -> str:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    sees_all = visible is None or len([gpu for gpu in visible.split(",") if gpu.strip()]) >= ranks
    obstacles = {
        f"{PROGRAM} is not installed: {INSTALL_FIX}": shutil.which(PROGRAM) is None,
        "a rank is missing, and may still hold its GPU": bool(run.missing),
        f"{PROGRAM} needs GPUs, and these ranks had none": run.backend != "nccl",
        "rank 0 is alone on its node: one GPU has nothing to reduce with": ranks == 1,
        "no all-reduce was measured: there is nothing to compare": not _list_sizes(run),
        f"rank 0 sees only some of the {ranks} GPUs that the ranks of its node had "
        f"(CUDA_VISIBLE_DEVICES={visible}): start them with srun --gpu-bind=none": not sees_all,
    }
    return next((why for why, is_so in obstacles.items() if is_so), "")


def _list_sizes(run: CollectiveRun) -> list[int]:
    return [timing.size for timing in run.timings if timing.operation == "all_reduce"]


def _measure(run: CollectiveRun, ranks: int, deadline: float) -> Iterator[OpinionRate]:
    environment = make_environment(os.environ, run.settings)
    for size in _list_sizes(run):
        limits = ["-b", str(size), "-e", str(size)]
        rows = run_all_reduce(
            [*limits, "-g", str(ranks), "-n", str(STEPS), "-c", "1"],
            timeout=max(1.0, deadline - monotonic()),
            env=environment,
        )
        row = next((row for row in rows if row.size == size - size % ELEMENT_BYTES), None)
        if row is None:
            raise hv.Unable(f"{PROGRAM} printed no row of {format_size(size)}", hv.Cause.CRASHED)
        yield OpinionRate(size, row.busbw, row.wrong)


def make_environment(environ: Mapping[str, str], settings: Mapping[str, str]) -> dict[str, str]:
    """Take *environ* without the variables of a rank of a job step, and add *settings*."""
    kept = {name: value for name, value in environ.items() if not name.startswith(STEP_PREFIXES)}
    return kept | dict(settings)
