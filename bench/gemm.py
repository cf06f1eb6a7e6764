"""
Does the gemm check reach what a bare loop of torch.mm reaches?

Run with ``python bench/gemm.py [cuda]``. Prints the throughput of the check's own
steps and timer as a share of the plainest loop that there is, in pairs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from time import perf_counter

import torch

from hpcverify_checks.gemm import WARM_UP_SECONDS, choose_size
from hpcverify_checks.node.timing import choose_timer, make_product_step
from pairs import compare

LEAST = 0.97
HPCVERIFY = str(Path(sys.executable).with_name("hpcverify"))
SUSTAINED = 2.0
SUITE = f"""
summary = "one type"
budget = 60
[[check]]
name = "gemm"
params = {{ dtypes = ["fp32"], burst_seconds = 0.1, seconds = {SUSTAINED}, \
core_seconds = 0.0 }}
"""
BARE = """
import sys, time, torch
size, seconds = int(sys.argv[1]), float(sys.argv[2])
a, b = torch.randn(size, size), torch.randn(size, size)
out = torch.empty(size, size)
until = time.perf_counter() + seconds / 2
while time.perf_counter() < until:
    torch.mm(a, b, out=out)
start, count = time.perf_counter(), 0
while time.perf_counter() < start + seconds / 2:
    torch.mm(a, b, out=out)
    count += 1
print(2 * size**3 * count / (time.perf_counter() - start) / 1e9)
"""
"""The second half of the time counts, as in the check."""
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
    steps = choose_timer(device)(make_product_step(dtype, size, device), SECONDS)
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


def whole_run() -> float:
    """Give what a run of the check reports, engine and telemetry beside it."""
    with tempfile.TemporaryDirectory() as folder:
        site = Path(folder, "etc", "site.toml")
        (site.parent / "suites").mkdir(parents=True)
        site.touch()
        (site.parent / "suites" / "bench.toml").write_text(SUITE)
        environment = {**os.environ, "HPCVERIFY_STATE": folder, "HPCVERIFY_CONFIG": str(site)}
        command = [HPCVERIFY, "run", "--suite", "bench", "--json"]
        done = subprocess.run(command, env=environment, capture_output=True, check=True)
    (result,) = json.loads(done.stdout)["results"]
    named = {m["name"]: m["value"] for m in result["measurements"]}
    return float(named["fp32.sustained"])


def bare_process() -> float:
    """Give what a bare loop in a fresh process reaches, over the same time."""
    size = choose_size("fp32", torch.device("cpu"))
    command = [sys.executable, "-c", BARE, str(size), str(SUSTAINED)]
    return float(subprocess.check_output(command))


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def main() -> int:
    """Compare each type, and say whether all reach `LEAST`."""
    kind = sys.argv[1] if len(sys.argv) > 1 else "cpu"
    device = torch.device(kind)
    short = []
    for dtype in DTYPES[kind]:
        size = choose_size(dtype, device)
        step = make_product_step(dtype, size, device)
        choose_timer(device)(step, WARM_UP_SECONDS)
        count = max(3, int(SECONDS * ours(dtype, size, device)))
        ratio = compare(
            partial(ours, dtype, size, device), partial(bare, dtype, size, device, count)
        )
        print(f"{dtype} {size}^3 on {kind}: check / bare loop = {ratio}")
        short += [dtype] if ratio.median < LEAST else []
    if kind == "cpu":
        ratio = compare(whole_run, bare_process, pairs=25)
        print(f"fp32 on cpu: hpcverify run / bare loop in a process = {ratio}")
        short += ["fp32"] if ratio.median < LEAST else []
    return 1 if short else 0


if __name__ == "__main__":
    sys.exit(main())
