"""
Two cores at work in the same cache lines: coherence, locks and turns.

Each core changes every second word of the same lines, which then travel between the
caches with each change; a line that is lost or stale takes the other's words with it.
Then both take the same lock in turns of their own choice, and last they hand the words to
each other in strict turns. All of it is arithmetic modulo 2^64 with one right result.
Locks and turns are semaphores of the C library: an atomic decrement in user space, and a
futex where it has to wait. Torch's kernels run without Python's lock, so the cores do
meet.

A wrong result may come from either core. A core that is in all pairs that fail, with two
partners or more, while a pair without it does not, is wrong; on two cores it is not known.
"""

from __future__ import annotations

import ctypes
import errno
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

import hpcverify.check as hv
from hpcverify_checks.cpu_units.units import MODULUS
from hpcverify_checks.cpu_units.witnesses import DEFECTIVE_CODE, UNATTRIBUTED_CODE, CoreSet
from hpcverify_checks.exact.vote import HOST

if TYPE_CHECKING:
    from torch import Tensor

SHARED_EVERY = 8
"""Rounds: waiting for each other leaves cores idle."""
SHARED_WORDS = 2**13
"""Words of 8 bytes: as much as a first-level cache holds."""
INTERLEAVED_STEPS, LOCKED_STEPS, TURN_STEPS = 200, 50, 25
PATIENCE, REPEAT_PATIENCE = 20, 2
"""Seconds to wait for the other core; a node that is merely busy takes milliseconds. Once a
core has waited in vain, those that are asked about it wait less: they would take minutes."""
SEMAPHORE_BYTES = 64
MULTIPLIERS, ADDENDS = (6364136223846793005, 3935559000370003845), (1442695040888963407, 3037000493)
"""Odd, so that no step loses a bit. From tables of good multipliers of linear
congruential generators (Knuth, The Art of Computer Programming 2, 3.3.4)."""
PAIR_REPEATS, MIN_FAILED = 3, 2


class Timespec(ctypes.Structure):
    """The C structure."""

    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class Semaphore:
    """A semaphore of the C library, between threads."""

    def __init__(self, value: int, patience: int = PATIENCE) -> None:
        """Make one of *value*, on which one waits for *patience* seconds."""
        self._patience = patience
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._place = ctypes.create_string_buffer(SEMAPHORE_BYTES)
        self._libc.sem_init(self._place, 0, value)

    def post(self) -> None:
        """Increase it."""
        self._libc.sem_post(self._place)

    def wait(self) -> None:
        """
        Decrease it, once it is positive; `TimeoutError` if it does not become so.

        It waits second by second: a clock that is set, or a machine that stood still,
        takes away one of them and not all.
        """
        waited = 0
        while waited < self._patience:
            fraction, whole = math.modf(time.time() + 1)
            until = Timespec(int(whole), int(fraction * 1e9))
            if not self._libc.sem_timedwait(self._place, ctypes.byref(until)):
                return
            waited += ctypes.get_errno() != errno.EINTR
        raise TimeoutError


class SharedLines:
    """What two cores share: words, locks and a place to meet."""

    def __init__(self, patience: int = PATIENCE) -> None:
        import torch

        self.words = torch.zeros(SHARED_WORDS, dtype=torch.int64)
        self.patience = patience
        self.lock = Semaphore(1, patience)
        self.turns = (Semaphore(1, patience), Semaphore(0, patience))
        self._arrivals = (Semaphore(0, patience), Semaphore(0, patience))

    def meet(self, turn: int) -> None:
        """Wait until the other core has come here, too."""
        self._arrivals[1 - turn].post()
        self._arrivals[turn].wait()


SharedWork = Callable[[SharedLines, int], None]
"""What the first (0) or the second (1) of two cores does with the lines that they share."""


@dataclass(frozen=True, slots=True)
class SharedUnit:
    """Work of two cores in the same lines, and the words that they must leave."""

    name: str
    work: SharedWork
    compute_expected: Callable[[], tuple[int, int]]
    """Computes the even and the odd words, modulo 2^64."""


def interleave(shared: SharedLines, turn: int) -> None:
    """Change every second word of all lines, at the same time as the other core."""
    for _ in range(INTERLEAVED_STEPS):
        shared.words[turn::2].add_(ADDENDS[turn])


def lock(shared: SharedLines, turn: int) -> None:
    """Change all words under a lock; the order does not matter, as both do the same."""
    del turn
    for _ in range(LOCKED_STEPS):
        shared.lock.wait()
        _step(shared.words, 0)
        shared.lock.post()


def take_turns(shared: SharedLines, turn: int) -> None:
    """Change all words in strict turns, each core in another way."""
    for _ in range(TURN_STEPS):
        shared.turns[turn].wait()
        _step(shared.words, turn)
        shared.turns[1 - turn].post()


def _step(words: Tensor, turn: int) -> None:
    words.mul_(MULTIPLIERS[turn])
    words.add_(ADDENDS[turn])


def _expect_steps(order: Sequence[int]) -> tuple[int, int]:
    word = 0
    for turn in order:
        word = (word * MULTIPLIERS[turn] + ADDENDS[turn]) % MODULUS
    return word, word


SHARED_UNITS = (
    SharedUnit(
        "coherence",
        interleave,
        lambda: (
            INTERLEAVED_STEPS * ADDENDS[0] % MODULUS,
            INTERLEAVED_STEPS * ADDENDS[1] % MODULUS,
        ),
    ),
    SharedUnit("locks", lock, lambda: _expect_steps([0] * 2 * LOCKED_STEPS)),
    SharedUnit("turns", take_turns, lambda: _expect_steps([0, 1] * TURN_STEPS)),
)

Pair = tuple[int, int]


def pair_cores(cores: Sequence[int], turn: int) -> list[Pair]:
    """Pair the *cores*, with other partners in each *turn*; of an odd number one rests."""
    first, *rest = cores if len(cores) % 2 == 0 else [*cores, -1]
    shift = turn % max(1, len(rest))
    circle = [first, *rest[shift:], *rest[:shift]]
    half = len(circle) // 2
    pairs = zip(circle[:half], reversed(circle[half:]), strict=True)
    return [pair for pair in pairs if -1 not in pair]


@dataclass(frozen=True, slots=True)
class PairResult:
    """What came of a unit on a pair of cores."""

    pair: Pair
    fault: str = ""
    seconds: float = 0.0
    """The CPU time of both."""


def run_pairs(
    unit: SharedUnit, cores: CoreSet, pairs: Sequence[Pair], patience: int = PATIENCE
) -> list[PairResult]:
    """Run *unit* on all *pairs* at once."""
    shared = {pair: SharedLines(patience) for pair in pairs}
    places = {core: (pair, turn) for pair in pairs for turn, core in enumerate(pair)}

    def work(core: int) -> tuple[str, float]:
        pair, turn = places[core]
        began = time.thread_time()
        fault = _run(unit, shared[pair], turn)
        return fault, time.thread_time() - began

    done = dict(zip(places, cores.run(list(places), work), strict=True))
    return [
        PairResult(pair, max(done[a][0], done[b][0]), done[a][1] + done[b][1])
        for pair in pairs
        for a, b in [pair]
    ]


def _run(unit: SharedUnit, shared: SharedLines, turn: int) -> str:
    try:
        shared.meet(turn)
        unit.work(shared, turn)
        shared.meet(turn)
    except TimeoutError:
        return f"a core waited {shared.patience} s for the other, which did not come"
    # Each looks at the words of the other: they have to travel once more.
    expected = unit.compute_expected()[1 - turn]
    signed = expected - MODULUS if expected >= MODULUS // 2 else expected
    wrong = int((shared.words[1 - turn :: 2] != signed).sum())
    return f"{wrong} of {SHARED_WORDS // 2} words of a core were wrong" if wrong else ""


def find_wrong_core(unit: SharedUnit, cores: CoreSet, first: PairResult) -> hv.Finding:
    """
    Find out who is wrong in a pair: repeat it, and ask each core with others.

    A pair that has failed is not repeated again.
    """
    pair, fault = first.pair, first.fault
    results: dict[Pair, list[str]] = {pair: [fault]}
    for other in combinations(cores.pick_witnesses(*pair), 2):
        for _ in range(PAIR_REPEATS):
            [result] = run_pairs(unit, cores, [other], REPEAT_PATIENCE)
            results.setdefault(other, []).append(result.fault)
            if result.fault:
                break
    failed = {p: sum(map(bool, faults)) for p, faults in results.items()}
    core = find_common_core(failed)
    evidence = {
        "unit": unit.name,
        **{
            f"cores {a} and {b}": f"{failed[a, b]} of {len(results[a, b])} wrong" for a, b in failed
        },
    }
    text = f"{unit.name}, cores {pair[0]} and {pair[1]}: {fault}"
    if core is None:
        text += "; which of them is at fault, or what lies between, is not known"
        return hv.Finding(UNATTRIBUTED_CODE, HOST, text, evidence, {"unit": unit.name})
    text += f"; so it is for core {core} with other cores, and not for those without it"
    return hv.Finding(DEFECTIVE_CODE, f"cpu{core}", text, evidence, {"unit": unit.name})


def find_common_core(failed: Mapping[Pair, int]) -> int | None:
    """Find the one core of all pairs that *failed*; two must have, and one not."""
    wrong = [set(pair) for pair, count in failed.items() if count]
    common = set.intersection(*wrong)
    if len(wrong) < MIN_FAILED or len(wrong) == len(failed) or len(common) != 1:
        return None
    return common.pop()
