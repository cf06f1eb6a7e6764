"""Computes the table of right products: ``python -m tests.checks.universal``."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import torch

from hpcverify_checks.exact.bits import compute_digest
from hpcverify_checks.exact.families import CPU_DEPTH, CPU_FAMILIES, FAMILIES, Family
from hpcverify_checks.exact.products import PlannedOperands, Shape
from hpcverify_checks.sdc import CPU_SIZE, GPU_SIZE, ODD_SHAPES, limit_shape

ROWS = 1024


def shipped() -> Iterator[tuple[Family, PlannedOperands]]:
    """List what suites use, each plan once for each shape."""
    wanted = [(f, Shape(GPU_SIZE, f.depth)) for f in FAMILIES.values()]
    wanted += [(f, Shape(CPU_SIZE, min(f.depth, CPU_DEPTH))) for f in CPU_FAMILIES.values()]
    kinds = ("cuda", FAMILIES), ("cpu", CPU_FAMILIES)
    wanted += [
        (family, limit_shape(ODD_SHAPES[kind], Shape(GPU_SIZE, family.depth)))
        for kind, families in kinds
        for family in families.values()
    ]
    seen: set[tuple[str, Shape]] = set()
    for family, shape in wanted:
        for made in family.list_operands(shape, draw=0):
            if (made.name, shape) not in seen:
                seen.add((made.name, shape))
                yield family, made


def right_product(family: Family, made: PlannedOperands) -> torch.Tensor:
    """Compute it on the host."""
    dtype, size = getattr(torch, family.output), made.shape.size
    blocks = [
        made.compute_rows(range(start, min(start + ROWS, size)), dtype)
        for start in range(0, size, ROWS)
    ]
    return torch.cat(blocks)


def line(family: Family, made: PlannedOperands) -> str:
    """Print one line of the table."""
    product = right_product(family, made)
    proof = made.prove(product, 1)
    assert not proof.wrong_rows
    assert proof.certificate <= made.limit
    key = f'("{made.name}", {made.shape.size}, {made.shape.depth})'
    value = f"{compute_digest(product):016X}"
    spaced = "_".join(value[i : i + 4] for i in range(0, 16, 4))
    return f"    {key}: ({proof.certificate}, 0x{spaced}),"


if __name__ == "__main__":
    for one in shipped():
        sys.stdout.write(line(*one) + "\n")
        sys.stdout.flush()
