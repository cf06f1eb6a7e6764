"""
Rounds in which each core makes answers, verifies another's, and shares lines with a third.

The first rounds take data that ship with the digests of their answers, the same for all
cores; then each core has data of its own in each round. Before a core verifies anything,
it is shown an answer with one flipped bit, which it must refuse.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from time import thread_time

import hpcverify.check as hv
from hpcverify_checks.cpu_units.digests import SHIPPED_DRAWS
from hpcverify_checks.cpu_units.sharing import (
    SHARED_EVERY,
    SharedUnit,
    find_wrong_core,
    pair_cores,
    run_pairs,
)
from hpcverify_checks.cpu_units.units import Unit, compute_digest
from hpcverify_checks.cpu_units.witnesses import (
    DEFECTIVE_CODE,
    CoreSet,
    MadeAnswer,
    Review,
    ask_witnesses,
)
from hpcverify_checks.exact.vote import BLIND_PART_CODE
from hpcverify_checks.node.cores import format_ranges

BLIND_CODE = "blind"
ANSWERS_PER_ROUND = 4
"""Each core makes so many with each unit; on a busy node each wait for other cores takes
longer than these."""
FLIPPED_BIT = 0x10


@dataclass(slots=True)
class Tally:
    """What one core did for one unit."""

    results: int = 0
    """Answers that it made and another core verified."""
    draws: set[str] = field(default_factory=set[str])
    """The seeds of different data."""
    seconds: float = 0.0
    """Its CPU time for making and verifying."""


@dataclass(frozen=True, slots=True)
class Examination:
    """The cores under examination, their units, and what has been done so far."""

    cores: CoreSet
    units: Sequence[Unit]
    shared_units: Sequence[SharedUnit]
    seed: int
    tallies: defaultdict[tuple[str, int], Tally] = field(default_factory=lambda: defaultdict(Tally))
    """Each by the name of the unit and the core."""
    closed: set[tuple[str, int]] = field(default_factory=set[tuple[str, int]])
    """The units of cores that were found to err, which prove nothing any more."""

    def run_round(self, number: int) -> Iterator[hv.Finding]:
        """Let each core make, verify and share; report who errs."""
        made = self.cores.run(self.cores.numbers, partial(self._make_on_core, number))
        answers = [answer for of_core in made for answer in of_core]
        reviews = list(self._review(number, answers))
        blind = {(r.answer.unit.name, r.core) for r in reviews if r.blind}
        for review in reviews:
            self._count(review)
            unit = review.answer.unit.name
            if self.closed & {(unit, review.answer.core), (unit, review.core)}:
                continue
            if review.blind:
                self.closed.add((unit, review.core))
                awake = [core for core in self.cores.numbers if (unit, core) not in blind]
                text = f"{unit}: core {review.core} accepted an answer with one flipped bit"
                if awake:
                    text += f", which cores {format_ranges(awake)} refuse"
                alone = len(self.cores.numbers) == 1
                code = BLIND_PART_CODE if awake or alone else BLIND_CODE
                yield hv.Finding(code, f"cpu{review.core}", text)
            elif review.is_disputed:
                yield self._close(unit, ask_witnesses(review, self.cores))
        if number % SHARED_EVERY == 0:
            yield from self._share(number // SHARED_EVERY)

    def _close(self, unit: str, finding: hv.Finding) -> hv.Finding:
        cores = [c for c in self.cores.numbers if finding.part_id == f"cpu{c}"]
        self.closed.update((unit, core) for core in cores or self.cores.numbers)
        return finding

    def _make_on_core(self, number: int, core: int) -> list[MadeAnswer]:
        answers: list[MadeAnswer] = []
        able = [unit for unit in self.units if (unit.name, core) not in self.closed]
        first = number * ANSWERS_PER_ROUND
        for unit, draw in product(able, range(first, first + ANSWERS_PER_ROUND)):
            began = thread_time()
            shipped = unit.universal and draw < SHIPPED_DRAWS
            seed = f"shipped {draw}" if shipped else f"{self.seed} {draw} {core}"
            made = unit.answer(unit.draw(seed))
            digest = compute_digest(made)
            answers.append(MadeAnswer(unit, seed, core, made, digest, thread_time() - began))
        return answers

    def _review(self, number: int, answers: Sequence[MadeAnswer]) -> Iterator[Review]:
        numbers = self.cores.numbers
        shift = 1 + number % (len(numbers) - 1) if len(numbers) > 1 else 0
        makers = dict(zip(numbers, (*numbers[shift:], *numbers[:shift]), strict=True))

        def work(core: int) -> list[Review]:
            mine = [answer for answer in answers if answer.core == makers[core]]
            return [review_answer(answer, core, canary=number == 0) for answer in mine]

        for reviews in self.cores.run(numbers, work):
            yield from reviews

    def _count(self, review: Review) -> None:
        answer = review.answer
        made = self.tallies[answer.unit.name, answer.core]
        made.results += 1
        made.draws.add(answer.seed)
        made.seconds += answer.seconds
        self.tallies[answer.unit.name, review.core].seconds += review.seconds

    def _share(self, number: int) -> Iterator[hv.Finding]:
        for unit in self.shared_units:
            able = [core for core in self.cores.numbers if (unit.name, core) not in self.closed]
            pairs = pair_cores(able, number)
            if not pairs:
                continue
            ran = run_pairs(unit, self.cores, pairs)
            for result in ran:
                for core in result.pair:
                    tally = self.tallies[unit.name, core]
                    tally.results += 1
                    tally.draws.add(f"{number} {min(result.pair)} {max(result.pair)}")
                    tally.seconds += result.seconds / 2
            for result in ran:
                if result.fault and all((unit.name, c) not in self.closed for c in result.pair):
                    yield self._close(unit.name, find_wrong_core(unit, self.cores, result))


def review_answer(answer: MadeAnswer, core: int, *, canary: bool) -> Review:
    """Verify *answer* on the core *core*, where this runs."""
    began = thread_time()
    unit, made = answer.unit, answer.made
    data = unit.draw(answer.seed)
    accepted = unit.accepts(data, made)
    seen = compute_digest(made)
    blind = canary and accepted and unit.accepts(data, flip_bit(made))
    return Review(answer, core, accepted, seen, thread_time() - began, blind)


def flip_bit(made: bytes) -> bytes:
    """Flip one bit in the middle of *made*."""
    changed = bytearray(made)
    changed[len(made) // 2] ^= FLIPPED_BIT
    return bytes(changed)


def count_wrong(findings: Sequence[hv.Finding], core: int) -> int:
    """Count the units in which *core* was found to err."""
    return sum(f.code == DEFECTIVE_CODE and f.part_id == f"cpu{core}" for f in findings)
