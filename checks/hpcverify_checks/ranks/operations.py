"""
The collectives: what each rank sends, what it must get, and how bandwidth is counted.

Sizes and factors are those of nccl-tests (doc/PERFORMANCE.md): the size of an all-gather
is that of its result, the size of a reduce-scatter and of an all-to-all that of what a
rank sends, and busbw is algbw times the factor, with n ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from msgspec import Struct

if TYPE_CHECKING:
    from torch import Tensor

SUM = -1
"""In place of a rank: the sum over all."""


class Segment(Struct, frozen=True):
    """A part of a message: whose words it has, from which of those words on."""

    source: int
    """A rank, or `SUM`."""
    start: int
    length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One collective, of a number of words that the ranks divide evenly."""

    name: str
    begin: Callable[[Tensor, Tensor], list[Any]]
    """Begins to send the first tensor and to receive the second; gives what to wait for."""
    list_received: Callable[[int, int, int], list[Segment]]
    """Lists what a rank must get, in order, by the words, the rank and the number of ranks."""
    compute_factor: Callable[[int], float] = lambda world: (world - 1) / world
    """Computes busbw / algbw by the number of ranks."""
    reduces: bool = False
    """Whether it adds up; else it only moves words."""
    in_place: bool = False
    sends_chunk: bool = False
    """Whether a rank sends only its chunk of the words."""

    def find_sent(self, words: int, rank: int, world: int) -> Segment:
        """Find what *rank* sends, among its own *words*."""
        chunk = words // world
        return Segment(rank, rank * chunk, chunk) if self.sends_chunk else Segment(rank, 0, words)


def _begin(names: Sequence[str], *arguments: Any) -> list[Any]:
    """Begin the first function of torch with one of *names*: torch 2.13 has renamed some."""
    library = import_module("torch.distributed")
    function = next(getattr(library, name) for name in names if hasattr(library, name))
    return [function(*arguments, async_op=True)]


def begin_transfer(send: Tensor, receive: Tensor, distance: int = 1) -> list[Any]:
    """Send to the rank *distance* ranks ahead, and receive from the one as far behind."""
    import torch.distributed as dist

    rank, world = dist.get_rank(), dist.get_world_size()
    return dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, send, (rank + distance) % world),
            dist.P2POp(dist.irecv, receive, (rank - distance) % world),
        ]
    )


ALL_REDUCE = Operation(
    name="all_reduce",
    begin=lambda _send, receive: _begin(["all_reduce"], receive),
    list_received=lambda words, _rank, _world: [Segment(SUM, 0, words)],
    compute_factor=lambda world: 2 * (world - 1) / world,  # what is sent, and the sum back
    reduces=True,
    in_place=True,
)
OPERATIONS = {
    operation.name: operation
    for operation in (
        ALL_REDUCE,
        Operation(
            name="all_gather",
            begin=lambda send, receive: _begin(
                ["all_gather_single", "all_gather_into_tensor"], receive, send
            ),
            list_received=lambda words, _rank, world: [
                Segment(source, source * (words // world), words // world)
                for source in range(world)
            ],
            sends_chunk=True,
        ),
        Operation(
            name="reduce_scatter",
            begin=lambda send, receive: _begin(
                ["reduce_scatter_single", "reduce_scatter_tensor"], receive, send
            ),
            list_received=lambda words, rank, world: [
                Segment(SUM, rank * (words // world), words // world)
            ],
            reduces=True,
        ),
        Operation(
            name="alltoall",
            begin=lambda send, receive: _begin(["all_to_all_single"], receive, send),
            list_received=lambda words, rank, world: [
                Segment(source, rank * (words // world), words // world) for source in range(world)
            ],
        ),
        Operation(
            name="broadcast",
            begin=lambda _send, receive: _begin(["broadcast"], receive, 0),
            list_received=lambda words, _rank, _world: [Segment(0, 0, words)],
            compute_factor=lambda _world: 1.0,
            in_place=True,
        ),
        Operation(
            name="sendrecv",
            begin=begin_transfer,
            list_received=lambda words, rank, world: [Segment((rank - 1) % world, 0, words)],
            compute_factor=lambda _world: 1.0,
        ),
    )
}
