"""Computes the table of right products: ``python -m tests.checks.universal``."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import torch

from hpcverify_checks._bits import compute_digest
from hpcverify_checks._exact import Operands, ProductPlan, Shape, prove_by_freivalds
from hpcverify_checks._families import CPU_DEPTH, CPU_FAMILIES, FAMILIES, Family
from hpcverify_checks.sdc import CPU_SIZE, GPU_SIZE

ROWS = 1024


def shipped() -> Iterator[tuple[Family, ProductPlan, Shape]]:
    """List what suites use, each plan once for each shape."""
    wanted = [(f, Shape(GPU_SIZE, f.depth)) for f in FAMILIES.values()]
    wanted += [(f, Shape(CPU_SIZE, min(f.depth, CPU_DEPTH))) for f in CPU_FAMILIES.values()]
    seen: set[tuple[str, Shape]] = set()
    for family, shape in wanted:
        for plan in family.make_plans(shape.depth):
            if (plan.name, shape) not in seen:
                seen.add((plan.name, shape))
                yield family, plan, shape


def right_product(family: Family, plan: ProductPlan, shape: Shape) -> torch.Tensor:
    """Compute it on the host in fp64, where it is exact."""
    made = Operands(plan, shape)
    blocks = [
        made.compute_exact_rows(range(start, min(start + ROWS, shape.size)))
        for start in range(0, shape.size, ROWS)
    ]
    return torch.cat(blocks).to(getattr(torch, family.output))


def line(family: Family, plan: ProductPlan, shape: Shape) -> str:
    """Print one line of the table."""
    product = right_product(family, plan, shape)
    proof = prove_by_freivalds(Operands(plan, shape), product, 1)
    assert not proof.wrong_rows
    assert proof.certificate <= plan.limit
    key = f'("{plan.name}", {shape.size}, {shape.depth})'
    value = f"{compute_digest(product):016X}"
    spaced = "_".join(value[i : i + 4] for i in range(0, 16, 4))
    return f"    {key}: ({proof.certificate}, 0x{spaced}),"


if __name__ == "__main__":
    for one in shipped():
        sys.stdout.write(line(*one) + "\n")
        sys.stdout.flush()
