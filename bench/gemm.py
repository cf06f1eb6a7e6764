"""
Does the gemm check reach what a bare loop of torch.mm reaches?

Run with ``python bench/gemm.py [cuda]``. Prints the throughput of the check's own
steps and timer as a share of the plainest loop that there is, in pairs.
"""

from __future__ import annotations

import sys
from functools import partial
from time import perf_counter

import torch

from hpcverify_checks._load import product_step, timer_for
from hpcverify_checks.gemm import WARM_UP_SECONDS, size_for
from pairs import compare

LEAST = 0.97
SECONDS = 1.0
DTYPES = {"cpu": ("fp32", "fp64"), "cuda": ("bf16", "fp16", "fp32", "fp64")}
TORCH = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp32": torch.float32,
    "fp64": torch.float64,
}


def ours(dtype: str, size: int, device: torch.device) -> float:
    """Give the steps a second that the check measures."""
    steps = timer_for(device)(product_step(dtype, size, device), SECONDS)
    return len(steps) / sum(steps)


def bare(dtype: str, size: int, device: torch.device, count: int) -> float:
    """Give the steps a second of *count* products and nothing else."""
    a, b = (torch.randn(size, size, device=device).to(TORCH[dtype]) for _ in range(2))
    out = torch.empty_like(a)
    torch.mm(a, b, out=out)
    _wait(device)
    start = perf_counter()
    for _ in range(count):
        torch.mm(a, b, out=out)
    _wait(device)
    return count / (perf_counter() - start)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def main() -> int:
    """Compare each type, and say whether all reach `LEAST`."""
    kind = sys.argv[1] if len(sys.argv) > 1 else "cpu"
    device = torch.device(kind)
    short = []
    for dtype in DTYPES[kind]:
        size = size_for(dtype, device)
        step = product_step(dtype, size, device)
        timer_for(device)(step, WARM_UP_SECONDS)
        count = max(3, int(SECONDS * ours(dtype, size, device)))
        ratio = compare(
            partial(ours, dtype, size, device),
            partial(bare, dtype, size, device, count),
        )
        print(f"{dtype} {size}^3 on {kind}: check / bare loop = {ratio}")
        short += [dtype] if ratio.median < LEAST else []
    return 1 if short else 0


if __name__ == "__main__":
    sys.exit(main())
