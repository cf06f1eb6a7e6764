"""Small benches on the CPU, for the tests of the hunt and of what it finds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from hpcverify.testing import make_context
from hpcverify_checks.exact.families import FAMILIES, Family
from hpcverify_checks.exact.product_loop import HuntResult, ProductBench, ProductSeams, hunt
from hpcverify_checks.exact.products import Shape
from hpcverify_checks.node.dtypes import Multiply, multiply
from hpcverify_checks.sdc.faults import (
    MultiplyFault,
    OutputFault,
    limit_to_calls,
    make_multiply_fault,
)
from hpcverify_checks.sdc.prepare import DeviceTask, prepare

SHAPE = Shape(256, 512)


def a_task(tmp_path: Path, family: Family = FAMILIES["fp32"], **changes: Any) -> DeviceTask:
    """Make a task for the CPU."""
    task = DeviceTask(make_context(tmp_path), family, SHAPE, torch.device("cpu"))
    return replace(task, **changes)


def a_bench(tmp_path: Path, **changes: Any) -> ProductBench:
    """Make a bench with proven products, as the check does."""
    task = a_task(tmp_path, **changes)
    prepared = prepare(task)
    assert not prepared.failures
    return task.make_bench("cpu0", prepared.jobs)


def with_fault(bench: ProductBench, fault: MultiplyFault) -> ProductBench:
    """Put a *fault* into the multiplication of a healthy bench."""
    return replace(bench, seams=replace(bench.seams, multiply=fault(multiply)))


def with_multiply(bench: ProductBench, faulty: Multiply) -> ProductBench:
    """Multiply by another unit."""
    return replace(bench, seams=ProductSeams(multiply=faulty))


def once(harm: OutputFault, call: int) -> MultiplyFault:
    """Do *harm* to the product of one *call*."""
    return limit_to_calls(make_multiply_fault(harm), [call])


def hunted(bench: ProductBench, products: int = 16) -> HuntResult:
    """Hunt for so many *products*."""
    return hunt(bench, lambda n: n >= products)
