"""
What all-reduce reaches between nodes, by part and network: figures that others published.

An all-reduce over several nodes is bound by what their adapters carry, so a figure is one
of a part with a network, ``fabric_reached.csv``: *wire* is what all adapters of a node carry
in one direction. Figures of *auto* are of NCCL's own choice, which between two nodes is a
tree and may be more than the wire carries; the others hold for rings as well.
"""

from __future__ import annotations

from collections.abc import Iterator
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


class _Figure(Struct, frozen=True):
    part: str
    gpus: int
    """In a node; all of them took part."""
    wire: float
    algorithm: str
    floor: FabricFloor


def find_fabric_floor(name: str, gpus: int, wire: float, algorithm: str) -> FabricFloor | None:
    """
    Find what all-reduce between nodes of so many *gpus* with this *wire* surely reaches.

    The lowest of the figures that apply; None if nobody published one for this platform.
    """
    spec = find_spec(Part("gpu", "", "", {"name": name}))
    figures = [
        figure.floor
        for figure in _load_figures()
        if spec is not None
        and (figure.part, figure.gpus) == (spec.key, gpus)
        and abs(wire / figure.wire - 1) < SAME_WIRE
        and figure.algorithm in {"", algorithm}
    ]
    return min(figures, key=lambda figure: figure.busbw, default=None)


@cache
def _load_figures() -> tuple[_Figure, ...]:
    return tuple(_read_figures())


def _read_figures() -> Iterator[_Figure]:
    for row in read_rows("fabric_reached.csv"):
        if row["confidence"] in SOUND_CONFIDENCES:
            busbw = MARGINS[row["kind"]] * float(row["busbw"])
            floor = FabricFloor(busbw, row["source"])
            gpus, wire = int(row["gpus"]), float(row["wire"])
            yield _Figure(row["part"], gpus, wire, row["algorithm"], floor)
