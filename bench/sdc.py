"""
What does it cost to compare every product?

Run with ``python bench/sdc.py [cuda]``. Times the products of the sdc check against
the same ones of the same operands with nothing beside them, in pairs. On a CPU: fp32
of 2048 x 2048 x 2048 on one core, in seconds of that core, one product at a time,
since a machine that is never quiet drifts in less than a hunt; what a canary costs is
timed apart and shared out over the products from one to the next. On a GPU: whole
hunts in bf16 of 4096 x 32768 x 4096 with fp32 output, with the comparison that the
check uses there and with the one of torch's own operations.

Then it hunts on a healthy part, and says how many products were compared, and how
many were called wrong.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter, process_time

import torch

from hpcverify.check import Context
from hpcverify.model import Device, Inventory
from hpcverify_checks.exact.families import CPU_FAMILIES, FAMILIES, Family
from hpcverify_checks.exact.kernels import load_comparison
from hpcverify_checks.exact.product_loop import (
    CANARY_COPIES,
    CANARY_PRODUCTS,
    Compare,
    ProductBench,
    ProductSeams,
    compare,
    hunt,
)
from hpcverify_checks.exact.products import Shape, view_shifted
from hpcverify_checks.node.device import list_native_dtypes, use_float32_precision
from hpcverify_checks.node.dtypes import (
    multiply,
)
from hpcverify_checks.sdc.prepare import DeviceTask, prepare
from pairs import compare as in_pairs

SHAPES = {"cpu": Shape(2048, 2048), "cuda": Shape(4096, 32768)}
FAMILY = {"cpu": "fp32", "cuda": "bf16"}
PRODUCTS = {"cpu": 1, "cuda": 1536}
"""In one measurement."""
PAIRS = {"cpu": 151, "cuda": 15}
CANARIES = 9
MOST = {"cpu": 1.02, "cuda": 1.03}
HEALTHY = {"cpu": 2000, "cuda": 2000}
"""Products of each type: over 10,000 in all."""
EVERY = {**FAMILIES, "bf16 on a CPU": CPU_FAMILIES["bf16"]}
"""A CPU can make the products of all types."""
HEALTHY_SHAPES = {"cpu": Shape(1024, 256), "cuda": Shape(4096, 32768)}


def task(device: torch.device, family: Family, shape: Shape, compared: Compare) -> DeviceTask:
    """Make a task for *device*, of a node that has nothing else."""
    part = Device(kind=device.type, part=device.type, label=device.type)
    here = Path(tempfile.gettempdir())
    ctx = Context(
        node="bench",
        device=part,
        peers=(part,),
        inventory=Inventory(devices=(part,)),
        previous=None,
        scratch=here,
        shared=here,
        seed=1,
    )
    deep = Shape(shape.size, min(shape.depth, family.depth))
    return DeviceTask(ctx, family, deep, device, ProductSeams(compare=compared))


def checked(bench: ProductBench, products: int, clock: Callable[[], float]) -> float:
    """Give the time of one of *products* that are compared, on a GPU by hunting."""
    if not bench.outputs[0].is_cuda:
        return stepped(bench, products, clock)
    start = clock()
    with never_waiting():
        bag = hunt(bench, lambda n: n >= products)
    if bag.wrong:
        raise SystemExit(f"wrong products: {bag.wrong}")
    return (clock() - start) / bag.products


def stepped(bench: ProductBench, products: int, clock: Callable[[], float]) -> float:
    """Give the time of one of *products* that are compared, one after the other."""
    counts = torch.zeros(products, dtype=torch.int64)
    start = clock()
    for number in range(products):
        bench.compute_and_compare(number, counts[number])
    took = clock() - start
    if counts.any():
        raise SystemExit(f"wrong products: {counts}")
    return took / products


def canary(bench: ProductBench, clock: Callable[[], float]) -> float:
    """Give the median time of a canary."""
    counts, times = torch.zeros(CANARY_COPIES, dtype=torch.int64), list[float]()
    for _ in range(CANARIES):
        bench.compute_and_compare(0, counts[0])
        start = clock()
        bench.run_canary(0, counts)
        times.append(clock() - start)
    return median(times)


@contextmanager
def never_waiting() -> Generator[None]:
    """Have whatever makes the host wait for the GPU raise instead."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def plain(bench: ProductBench, products: int, clock: Callable[[], float]) -> float:
    """Give the time of one of as many, that nobody looks at."""
    start = clock()
    for number in range(products):
        job, shift = bench.get_job(number)
        multiply(*view_shifted(job.a, job.b, shift), bench.get_output(number))
    if bench.outputs[0].is_cuda:
        torch.cuda.synchronize()
    return (clock() - start) / products


def cost(kind: str, compared: Compare, called: str) -> bool:
    """Print what *compared* costs, and say whether that is little enough."""
    device = torch.device(kind)
    this = task(device, FAMILIES[FAMILY[kind]], SHAPES[kind], compared)
    prepared = prepare(this)
    bench = this.make_bench(kind, prepared.jobs)
    clock = process_time if kind == "cpu" else perf_counter
    plain(bench, len(bench.jobs), clock)
    ratio = in_pairs(
        partial(checked, bench, PRODUCTS[kind], clock),
        partial(plain, bench, PRODUCTS[kind], clock),
        PAIRS[kind],
    )
    print(f"{called}: {this.family.name} {SHAPES[kind]}: checked / plain = {ratio}")
    if kind == "cuda":
        return ratio.median <= MOST[kind]
    product = plain(bench, PRODUCTS[kind], clock)
    share = canary(bench, clock) / (CANARY_PRODUCTS * product)
    print(f"a canary every {CANARY_PRODUCTS} products: {share:.4f} more")
    return ratio.median + share <= MOST[kind]


def healthy(kind: str) -> None:
    """Hunt where nothing is wrong, with every type that there is."""
    device, total = torch.device(kind), 0
    native = list_native_dtypes(device)
    on_gpu = {name: family for name, family in FAMILIES.items() if name in native}
    for name, family in (EVERY if kind == "cpu" else on_gpu).items():
        this = task(device, family, HEALTHY_SHAPES[kind], load_comparison(device)[0])
        with use_float32_precision(this.family.precision):
            prepared = prepare(this)
            outcome = this.hunt(kind, prepared.jobs, HEALTHY[kind].__le__)
        if prepared.failures or outcome.corruption:
            raise SystemExit(f"called wrong: {prepared.failures} {outcome.corruption}")
        total += outcome.products
        print(f"{name} {this.shape}: {outcome.products} products, 0 called wrong")
    print(f"{total} products in all, 0 called wrong")


def main() -> int:
    """Print the costs and the false alarms; 1 if one costs more than it may."""
    kind = sys.argv[1] if len(sys.argv) > 1 else "cpu"
    torch.set_num_threads(1)
    best = load_comparison(torch.device(kind))[0]
    good = cost(kind, best, "as the check compares")
    if best is not compare:
        cost(kind, compare, "with torch's own operations")
    healthy(kind)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
