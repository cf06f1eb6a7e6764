"""
Python imports this when a rank starts: it puts faults under the collectives of one rank.

`FAULTS` in the environment names them, each with the size of the messages that it spoils, or
`ANY` for all but those by which ranks only meet.
They are in what torch.distributed delivers, below everything that hpcverify does with it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
"""For PYTHONPATH."""
BAD_RANK = 1
BAD_CALL = 3
ANY = -1
FAR_WORDS = 97 * 32
"""By which a chunk is displaced: a pattern that repeats after 97 words would not show it."""
MEETING_BYTES = 8
"""At most this much is sent where ranks only meet."""
SENT: dict[str, Callable[[Any], object]] = {
    "sends_nothing": lambda tensor: tensor.zero_(),
    "sends_twice": lambda tensor: tensor.add_(tensor),
}
"""What a rank does to its share before it is added up: all others get wrong sums as well."""


class Done:
    """A work that is done."""

    def wait(self) -> bool:
        """Have waited."""
        return True


class Message:
    """What one collective was to send, and what it delivered."""

    def __init__(self, call: int, send: Any, result: Any, before: tuple[Any, Any]) -> None:
        """*before* is what the call before sent and delivered."""
        self.call, self.send, self.result, self.before = call, send, result, before
        self.words = view_words(result)

    def stale(self) -> None:
        """Deliver what the call before delivered."""
        self.words.copy_(view_words(self.before[1]))

    def stale_peer(self) -> None:
        """Add up what this rank sends now and what the others sent in the call before."""
        sent, delivered = self.before
        self.result.copy_((delivered - sent).view(self.result.dtype).add_(self.send))

    def low_bit(self) -> None:
        """Lose the lowest bit of each word."""
        self.words.bitwise_and_(~1)

    def low_byte(self) -> None:
        """Lose the 8 lowest bits of each word."""
        self.words.bitwise_and_(~0xFF)

    def flip(self) -> None:
        """Change one bit, once."""
        if self.call == BAD_CALL:
            self.words[len(self.words) // 2] ^= 1 << 17

    def displaced(self) -> None:
        """Move each word to the next place."""
        self.words.copy_(self.words.roll(1))

    def swapped(self) -> None:
        """Let two halves change places."""
        self.words.copy_(self.words.roll(len(self.words) // 2))

    def far(self) -> None:
        """Let a chunk come from a place that is 97 x 32 words further on."""
        moved = self.words[FAR_WORDS:].clone()
        self.words[: len(moved)].copy_(moved)

    def own(self) -> None:
        """Deliver what would come if every rank had sent what this one did."""
        sums = 2 if self.result.is_floating_point() else 1
        own = self.send.repeat(max(1, len(self.result) // len(self.send)))
        self.result.copy_(own[: len(self.result)] * sums)

    def lacks_own(self) -> None:
        """Leave out what this rank sent; of two, this is the neighbour's share."""
        self.result.sub_(self.send)

    def has_own_twice(self) -> None:
        """Count twice what this rank sent."""
        self.result.add_(self.send)

    def dies(self) -> None:
        """End, as by the OOM killer."""
        os.kill(os.getpid(), signal.SIGKILL)

    def dies_of_a_number(self) -> None:
        """End by a signal that has no name."""
        os.kill(os.getpid(), 40)

    def hangs(self) -> None:
        """Do something of its own, without end."""
        time.sleep(600)

    def raises(self) -> None:
        """Fail, as a GPU does."""
        raise RuntimeError("CUDA error: an illegal memory access was encountered")


COLLECTIVES: dict[str, Callable[..., tuple[Any, Any]]] = {
    "all_reduce": lambda tensor: (tensor, tensor),
    "broadcast": lambda tensor, _source: (tensor, tensor),
    "all_gather_single": lambda out, given: (given, out),
    "reduce_scatter_single": lambda out, given: (given, out),
    "all_to_all_single": lambda out, given: (given, out),
    "batch_isend_irecv": lambda both: (both[0].tensor, both[1].tensor),
}
"""The functions of torch.distributed that are wrapped: what they send and where they deliver."""


def view_words(tensor: Any) -> Any:
    """View the bits of each element as an integer."""
    import torch  # noqa: PLC0415 - all other processes start without it

    return tensor.view({4: torch.int32, 8: torch.int64}[tensor.element_size()])


def install(faults: dict[int, str]) -> None:
    """Wrap the collectives of torch."""
    import torch.distributed as dist  # noqa: PLC0415 - all other processes start without it

    def wrap(name: str, pick: Callable[..., tuple[Any, Any]]) -> None:
        whole = getattr(dist, name)
        kept: dict[int, list[tuple[Any, Any]]] = {}

        def faulty(*args: Any, **kwargs: Any) -> Any:
            send, result = pick(*args)
            size = max(send.nbytes, result.nbytes)
            fault = faults.get(size, faults.get(ANY) if size > MEETING_BYTES else None)
            if fault is None:
                return whole(*args, **kwargs)
            own = send.clone()
            if fault in SENT:
                SENT[fault](send)
                return whole(*args, **kwargs)
            works = whole(*args, **kwargs)
            for work in works if isinstance(works, list) else [works]:
                work.wait()
            both = own, result.clone()
            seen = kept.setdefault(size, [both])
            message = Message(len(seen), own, result, seen[-1])
            seen.append(both)
            getattr(message, fault)()
            return [Done()] if isinstance(works, list) else Done()

        setattr(dist, name, faulty)

    for name, pick in COLLECTIVES.items():
        wrap(name, pick)


def read_rank() -> int:
    """Read which rank this process is, from its command line; -1 if it is none."""
    if "hpcverify_checks.collectives.rank" in sys.orig_argv:
        return int(json.loads(sys.orig_argv[-1])["rank"])
    if "hpcverify_checks.ranks.rank_main" in sys.orig_argv:  # WORK RANK PARENT ORDER
        return int(sys.orig_argv[-3])
    return -1


if "FAULTS" in os.environ and read_rank() == BAD_RANK:
    install({int(size): name for size, name in json.loads(os.environ["FAULTS"]).items()})
