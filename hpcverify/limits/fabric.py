"""
What all-reduce reaches between nodes, by part and network: figures that others published.

An all-reduce over several nodes is bound by what their adapters carry, so a figure is one
of a part with a network, ``fabric_reached.csv``: *wire* is what all adapters of a node carry
in one direction. Figures of *auto* are of NCCL's own choice, which between two nodes is a
tree and may be more than the wire carries; the others hold for rings as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from msgspec import Struct

from hpcverify.limits.specs import SOUND_CONFIDENCES, find_spec, read_rows
from hpcverify.model import Part

MARGINS = {"reached": 0.75, "least": 0.9}
"""How much of a figure a healthy platform surely reaches. What a vendor calls the least was
measured with larger messages than ours may be."""
SAME_WIRE = 0.05
"""Two networks are the same kind if their rates differ by less than this share."""


class FabricFloor(Struct, frozen=True):
    """The least bus bandwidth between nodes, in GB/s, and where it comes from."""

    busbw: float
    source: str


def find_fabric_floor(name: str, gpus: int, wire: float, algorithm: str) -> FabricFloor | None:
    """Find the lowest published all-reduce with *gpus* and *wire* of a node; None if unknown."""
    spec = find_spec(Part("gpu", "", "", {"name": name}))
    figures = [
        FabricFloor(MARGINS[row["kind"]] * float(row["busbw"]), row["source"])
        for row in _load_rows()
        if row["confidence"] in SOUND_CONFIDENCES
        and spec is not None
        and (row["part"], int(row["gpus"])) == (spec.key, gpus)
        and abs(wire / float(row["wire"]) - 1) < SAME_WIRE
        and row["algorithm"] in {"", algorithm}
    ]
    return min(figures, key=lambda figure: figure.busbw, default=None)


@cache
def _load_rows() -> tuple[Mapping[str, str], ...]:
    return tuple(read_rows("fabric_reached.csv"))
