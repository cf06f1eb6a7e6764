"""
What does it cost to verify sums over ranks?

Run with ``python bench/sums.py [SECONDS]``. Two ranks of gloo train on this machine; the
first one counts the CPU time of its sums, and of what is done beside them so that they can
be verified, as shares of a step. Then it does the same for an all-reduce. CPU time, since
others may use the machine as well.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from statistics import median
from time import process_time
from typing import Any

import torch
from torch import Tensor

from hpcverify.units import MIB
from hpcverify_checks.ranks import collective
from hpcverify_checks.ranks.collective import CollectiveJob, all_reduce, use_thread_share
from hpcverify_checks.ranks.operations import ALL_REDUCE
from hpcverify_checks.ranks.peers import start_peers
from hpcverify_checks.ranks.step_data import WORD_BYTES, StepData, Words
from hpcverify_checks.training import CPU_SHAPE, steps
from hpcverify_checks.training.gradient_sums import GradientSum
from hpcverify_checks.training.steps import Trainer, TrainingJob, TrainingSeams, set_determinism

CPU = torch.device("cpu")
REPEATS = 30


def time_each(work: Callable[[], object]) -> float:
    """Give the median CPU time of *work*, in milliseconds."""
    times = []
    for _ in range(REPEATS):
        begin = process_time()
        work()
        times.append(process_time() - begin)
    return median(times) * 1e3


def time_training(job: TrainingJob) -> dict[str, float]:
    """Train with the other rank; give the milliseconds of each part of a step."""
    sums: dict[bool, list[float]] = {True: [], False: []}

    def reduce(tensor: Tensor) -> None:
        begin = process_time()
        all_reduce(tensor)
        sums[tensor.is_floating_point()].append(process_time() - begin)

    begin = process_time()
    with start_peers(job, steps.__name__):
        *_, last = steps.train(job, 0, CPU, TrainingSeams(reduce=reduce))
    spent = process_time() - begin
    trainer = Trainer.build(job, CPU, TrainingSeams())
    total = trainer.gradients.double()
    made = GradientSum.draw(job, 0, job.seed, 0, (trainer.gradients, total))
    parts = [*trainer.groups.values()]
    return {
        "step": spent / ((last.replays + 1) * job.steps) * 1e3,
        "sum of floats": median(sums[True]) * 1e3,
        "sum of integers": sum(sums[False]) / len(sums[False]) * 1e3,
        "weights": time_each(made.fill_floats),
        "comparison": time_each(lambda: made.count_wrong_floats(parts)),
        "words and their comparison": time_each(
            lambda: [made.count_wrong_integers(made.fill_integers(part), part) for part in parts]
        )
        / len(parts),
    }


def time_reduce(job: CollectiveJob) -> dict[str, float]:
    """Give the milliseconds of an all-reduce and of what is done beside it."""
    spent: list[float] = []

    def reduce(_send: Tensor, receive: Tensor) -> list[Any]:
        begin = process_time()
        all_reduce(receive)
        spent.append(process_time() - begin)
        return []

    operation = replace(ALL_REDUCE, begin=reduce)
    with start_peers(job, collective.__name__), use_thread_share(job):
        collective.measure_rank(job, 0, CPU, {operation.name: operation})
    size = job.sizes[0]
    made, known = (Words.make(job.seed, size // WORD_BYTES, CPU) for _ in range(2))
    message, row = torch.zeros(made.count, dtype=torch.int32), torch.zeros(4, dtype=torch.int64)
    beside = 0.0
    for step in range(2):
        data = StepData.make_for_sum(job.seed, step, job.world)
        weights = data.weigh_share(0)
        beside += time_each(lambda: made.fill(message, data, weights)) / 2  # noqa: B023
        beside += time_each(lambda: known.compare(message, data, (weights, 0, 0), row))  # noqa: B023 - twice a step
    return {"all-reduce": median(spent) * 1e3, "data and comparisons": beside}


def make_job(folder: str, size: int, seconds: float) -> CollectiveJob:
    """Make the job of an all-reduce of *size* bytes, as the check has it."""
    operations = (ALL_REDUCE.name,)
    return CollectiveJob(
        folder, 2, "gloo", 120.0, operations, (size,), seconds, 7, compare_shares=True
    )


def main() -> None:
    """Time both, and print tables."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 10.0
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder, set_determinism(required=False):
        job = TrainingJob(folder, 2, "gloo", 120.0, CPU_SHAPE, "fp32", 3, seconds, 7, 1, alike=True)
        times = time_training(job)
    for what, spent in times.items():
        print(f"training: {what:28} {spent:8.3f} ms  {spent / times['step']:7.2%} of a step")
    for size in (MIB, 16 * MIB):
        with tempfile.TemporaryDirectory() as folder:
            times = time_reduce(make_job(folder, size, seconds))
        for what, spent in times.items():
            print(f"all-reduce of {size // MIB} MiB: {what:22} {spent:8.3f} ms")


if __name__ == "__main__":
    main()
