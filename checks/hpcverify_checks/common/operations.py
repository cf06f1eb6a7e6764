"""
The collectives: what each rank sends, what it must get, and how bandwidth is counted.

Sizes and factors are those of nccl-tests (doc/PERFORMANCE.md): the size of an all-gather
is that of its result, the size of a reduce-scatter and of an all-to-all that of what a
rank sends, and busbw is algbw times the factor, with n ranks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from msgspec import Struct

if TYPE_CHECKING:
    from torch import Tensor

SUM = -1
"""In place of a rank: the sum over all."""


class Segment(Struct, frozen=True):
    """A part of a result: whose words they are, from which of its words on."""

    source: int
    """A rank, or `SUM`."""
    start: int
    length: int


class Operation:
    """One collective."""

    name: str
    reduces = False
    """Whether it adds up; else it only moves words."""
    in_place = False

    def compute_factor(self, world: int) -> float:
        """Compute busbw / algbw."""
        return (world - 1) / world

    def measure_lengths(self, words: int, world: int) -> tuple[int, int]:  # noqa: ARG002
        """Give the words that a rank sends and gets, of a size of *words*."""
        return words, words

    def find_send_start(self, words: int, rank: int, world: int) -> int:  # noqa: ARG002
        """Find from which of its words on a rank sends."""
        return 0

    def list_segments(self, words: int, rank: int, world: int) -> Iterator[Segment]:
        """List what *rank* must get, in order."""
        raise NotImplementedError

    def begin(self, send: Tensor, receive: Tensor) -> list[Any]:
        """Begin it, and return what there is to wait for."""
        raise NotImplementedError


class AllReduce(Operation):
    """Each rank gets the sum over all."""

    name = "all_reduce"
    reduces = True
    in_place = True

    def compute_factor(self, world: int) -> float:
        """Each link carries what is sent, and the sum back."""
        return 2 * (world - 1) / world

    def list_segments(self, words: int, rank: int, world: int) -> Iterator[Segment]:  # noqa: ARG002
        """Get the whole sum."""
        yield Segment(SUM, 0, words)

    def begin(self, send: Tensor, receive: Tensor) -> list[Any]:  # noqa: ARG002
        """Add up in place."""
        import torch.distributed as dist

        return [dist.all_reduce(receive, async_op=True)]


class ReduceScatter(Operation):
    """Each rank gets a chunk of the sum."""

    name = "reduce_scatter"
    reduces = True

    def measure_lengths(self, words: int, world: int) -> tuple[int, int]:
        """Send all, get a chunk."""
        return words, words // world

    def list_segments(self, words: int, rank: int, world: int) -> Iterator[Segment]:
        """Get a chunk of the sum."""
        yield Segment(SUM, rank * (words // world), words // world)

    def begin(self, send: Tensor, receive: Tensor) -> list[Any]:
        """Reduce and scatter."""
        import torch.distributed as dist

        # torch 2.13 has renamed it.
        reduce: Any = getattr(
            dist, "reduce_scatter_single", getattr(dist, "reduce_scatter_tensor", None)
        )
        return [reduce(receive, send, async_op=True)]


class AllGather(Operation):
    """Each rank gets a chunk of each."""

    name = "all_gather"

    def measure_lengths(self, words: int, world: int) -> tuple[int, int]:
        """Send a chunk, get all."""
        return words // world, words

    def find_send_start(self, words: int, rank: int, world: int) -> int:
        """Send one's own chunk."""
        return rank * (words // world)

    def list_segments(self, words: int, rank: int, world: int) -> Iterator[Segment]:  # noqa: ARG002
        """Get a chunk of each rank."""
        for source in range(world):
            yield Segment(source, source * (words // world), words // world)

    def begin(self, send: Tensor, receive: Tensor) -> list[Any]:
        """Gather."""
        import torch.distributed as dist

        gather: Any = getattr(
            dist, "all_gather_single", getattr(dist, "all_gather_into_tensor", None)
        )
        return [gather(receive, send, async_op=True)]


class AllToAll(Operation):
    """Each rank gets its chunk of each."""

    name = "alltoall"

    def list_segments(self, words: int, rank: int, world: int) -> Iterator[Segment]:
        """Get one's own chunk of each rank."""
        for source in range(world):
            yield Segment(source, rank * (words // world), words // world)

    def begin(self, send: Tensor, receive: Tensor) -> list[Any]:
        """Exchange."""
        import torch.distributed as dist

        return [dist.all_to_all_single(receive, send, async_op=True)]


class Broadcast(Operation):
    """Each rank gets what rank 0 has."""

    name = "broadcast"
    in_place = True

    def compute_factor(self, world: int) -> float:  # noqa: ARG002 - as the others
        """Each link carries it once."""
        return 1.0

    def list_segments(self, words: int, rank: int, world: int) -> Iterator[Segment]:  # noqa: ARG002
        """Get the words of rank 0."""
        yield Segment(0, 0, words)

    def begin(self, send: Tensor, receive: Tensor) -> list[Any]:  # noqa: ARG002
        """Broadcast in place."""
        import torch.distributed as dist

        return [dist.broadcast(receive, 0, async_op=True)]


class SendRecv(Operation):
    """Each rank sends to the next one, and gets from the one before."""

    name = "sendrecv"

    def compute_factor(self, world: int) -> float:  # noqa: ARG002 - as the others
        """Each link carries it once in each direction."""
        return 1.0

    def list_segments(self, words: int, rank: int, world: int) -> Iterator[Segment]:
        """Get the words of the rank before."""
        yield Segment((rank - 1) % world, 0, words)

    def begin(self, send: Tensor, receive: Tensor) -> list[Any]:
        """Send and receive at the same time."""
        return begin_transfer(send, receive, 1)


def begin_transfer(send: Tensor, receive: Tensor, distance: int) -> list[Any]:
    """Send to the rank *distance* ranks ahead, and receive from the one as far behind."""
    import torch.distributed as dist

    rank, world = dist.get_rank(), dist.get_world_size()
    return dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, send, (rank + distance) % world),
            dist.P2POp(dist.irecv, receive, (rank - distance) % world),
        ]
    )


ALL_REDUCE = AllReduce()
OPERATIONS: dict[str, Operation] = {
    operation.name: operation
    for operation in (ALL_REDUCE, AllGather(), ReduceScatter(), AllToAll(), Broadcast(), SendRecv())
}
