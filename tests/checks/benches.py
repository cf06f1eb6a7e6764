"""Small benches on the CPU, for the tests of the hunt and of what it finds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from hpcverify_checks._benches import Task, prepare
from hpcverify_checks._exact import Shape
from hpcverify_checks._families import FAMILIES, Family, multiply
from hpcverify_checks._hunt import Bag, Bench, Multiply, Seams, hunt
from hpcverify_checks._injections import Fault, Harm, harmed, sometimes
from tests.doubles import context

SHAPE = Shape(256, 512)


def a_task(tmp_path: Path, family: Family = FAMILIES["fp32"], **changes: Any) -> Task:
    """Make a task for the CPU."""
    task = Task(context(tmp_path), family, SHAPE, torch.device("cpu"))
    return replace(task, **changes)


def a_bench(tmp_path: Path, **changes: Any) -> Bench:
    """Make a bench with proven products, as the check does."""
    task = a_task(tmp_path, **changes)
    prepared = prepare(task)
    assert not prepared.found
    return task.bench("cpu0", prepared.jobs)


def with_fault(bench: Bench, fault: Fault) -> Bench:
    """Put a *fault* into the multiplication of a healthy bench."""
    return replace(bench, seams=replace(bench.seams, multiply=fault(multiply)))


def with_multiply(bench: Bench, faulty: Multiply) -> Bench:
    """Multiply by another unit."""
    return replace(bench, seams=Seams(multiply=faulty))


def once(harm: Harm, call: int) -> Fault:
    """Do *harm* to the product of one *call*."""
    return sometimes(harmed(harm), [call])


def hunted(bench: Bench, products: int = 16) -> Bag:
    """Hunt for so many *products*."""
    return hunt(bench, lambda n: n >= products)
