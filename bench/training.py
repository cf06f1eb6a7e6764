"""
How often does a healthy part train to other bits than the first time?

Run with ``python bench/training.py [REPLAYS] [THREADS]``. Replays a small training on
the CPU that often, with memory given back and taken again every so often, so that
addresses change, and prints how many replays differed: none may.
"""

from __future__ import annotations

import sys
from time import perf_counter

import torch

from hpcverify_checks.training.shape import ModelShape
from hpcverify_checks.training.steps import (
    HARDWARE,
    Trainer,
    TrainingJob,
    compare_replay,
    run_replay,
    set_determinism,
)

SHAPES = (
    ModelShape(hidden=16, layers=1, heads=2, sequence=8, batch=2, vocabulary=32),
    ModelShape(hidden=64, layers=2, heads=4, sequence=24, batch=3, vocabulary=100),
    ModelShape(hidden=128, layers=2, heads=4, sequence=64, batch=4, vocabulary=512),
)
SHARES = (0.9, 0.09, 0.01)
"""Of the replays, by shape."""
FRESH = 50
"""Replays after which everything is allocated anew."""


def differing(shape: ModelShape, replays: int) -> int:
    """Count the replays of *shape* that differ from the first one."""
    cpu = torch.device("cpu")
    job = TrainingJob("", 1, "gloo", 1.0, shape, "fp32", 2, 1.0, 7, 1, alike=True)
    first, _ = run_replay(Trainer.build(job, cpu, HARDWARE))
    wrong = 0
    for start in range(0, replays, FRESH):
        held = [torch.empty(1000 * (start % 977) + 1)]
        trainer = Trainer.build(job, cpu, HARDWARE)
        for number in range(start, min(replays, start + FRESH)):
            record, _ = run_replay(trainer)
            wrong += compare_replay(first, record, number) is not None
        held.clear()
    return wrong


def main() -> None:
    """Replay all shapes and print the count."""
    replays = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    torch.set_num_threads(int(sys.argv[2]) if len(sys.argv) > 2 else 1)
    with set_determinism(required=True):
        for shape, share in zip(SHAPES, SHARES, strict=True):
            start, count = perf_counter(), int(replays * share)
            wrong = differing(shape, count)
            spent = perf_counter() - start
            print(f"{wrong} of {count} replays differ, {spent:.0f} s: {shape}")


if __name__ == "__main__":
    main()
