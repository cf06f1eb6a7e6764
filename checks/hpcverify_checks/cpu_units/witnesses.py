"""
Which core is wrong, where one refused what another had made.

Either may be wrong, or the memory and caches between them. So each of several cores makes
the answer itself, from data that it draws itself, and verifies what was refused, four
times. The answer of most physical cores is right, if at least two give it and they are
more than half; who ever gave another one is wrong. Threads of one core share its units
and are one witness. If all agree by then, the digests tell who erred before: that of the
maker was computed on the maker, that of the verifier on the verifier.

Where nobody has the majority, as between two cores that contradict each other each time,
a digest that ships with hpcverify decides. So does a core that refuses each time what it
has made itself, where others do not: whatever is right, it contradicts itself. Else no
core fails.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

import hpcverify.check as hv
from hpcverify_checks.cpu_units.digests import SHIPPED_DIGESTS
from hpcverify_checks.cpu_units.units import Unit, compute_digest
from hpcverify_checks.exact.vote import HOST, find_majority
from hpcverify_checks.node.cores import format_ranges

T = TypeVar("T")

REPEATS = 4
MAX_WITNESSES = 6
"""The two that disagree, and four more."""
DEFECTIVE_CODE, UNATTRIBUTED_CODE, INEXACT_CODE = "defective_core", "unattributed", "inexact"


PhysicalCore = tuple[str, str]
"""The socket, and the core in it."""


class CoreRunner(Protocol):
    """Runs work on all of some cores at the same time, and yields the result of each."""

    def __call__(self, cores: Sequence[int], work: Callable[[int], T]) -> Iterator[T]:
        """Run ``work(core)`` on each of *cores*."""
        ...


@dataclass(frozen=True, slots=True)
class CoreSet:
    """The cores that are examined, which physical core each belongs to, and what runs on them."""

    numbers: tuple[int, ...]
    physical: Mapping[int, PhysicalCore]
    run: CoreRunner

    def pick_witnesses(self, *involved: int) -> list[int]:
        """
        Pick *involved*, and cores of other physical cores.

        They are of all sockets in turn: if it is the link between two that errs, no core
        may look as if it alone had.
        """
        chosen = list(dict.fromkeys(involved))
        while len(chosen) < MAX_WITNESSES:
            taken = [self.physical[core] for core in chosen]
            free = [core for core in self.numbers if self.physical[core] not in taken]
            if not free:
                break
            sockets = Counter(socket for socket, _ in taken)
            chosen.append(min(free, key=lambda core: (sockets[self.physical[core][0]], core)))
        return chosen


@dataclass(frozen=True, slots=True)
class MadeAnswer:
    """What a core made of data, and its digest, computed on that core."""

    unit: Unit
    seed: str
    core: int
    made: bytes
    digest: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Review:
    """What the core *core* says of an answer."""

    answer: MadeAnswer
    core: int
    accepted: bool
    digest: str
    """Computed on this core."""
    seconds: float
    blind: bool = False
    """Whether it also accepted the answer with a flipped bit."""

    @property
    def reference_digest(self) -> str:
        """The digest that the answer must have, if it ships."""
        return SHIPPED_DIGESTS.get((self.answer.unit.name, self.answer.seed), "")

    @property
    def is_disputed(self) -> bool:
        """Whether anything about the answer is not as it should be."""
        is_known = self.answer.digest == self.digest == (self.reference_digest or self.digest)
        return not (self.accepted and is_known)


Answer = tuple[str, bool]
"""The digest of what a core makes, and whether it accepts what was refused."""


@dataclass(frozen=True, slots=True)
class Testimony:
    """What a core answered each time it was asked."""

    core: int
    answers: tuple[Answer, ...]
    own_accepted: int
    """How often it accepted what it had just made itself."""


def ask_witnesses(review: Review, cores: CoreSet) -> hv.Finding:
    """Ask witnesses who is wrong in *review*."""
    unit, seed, refused = review.answer.unit, review.answer.seed, review.answer.made

    def testify(core: int) -> Testimony:
        answers, own_accepted = list[Answer](), 0
        for _ in range(REPEATS):
            data = unit.draw(seed)
            made = unit.answer(data)
            answers.append((compute_digest(made), unit.accepts(data, refused)))
            own_accepted += unit.accepts(data, made)
        return Testimony(core, tuple(answers), own_accepted)

    witnesses = cores.pick_witnesses(review.answer.core, review.core)
    return decide(review, tuple(cores.run(witnesses, testify)), cores.physical)


def decide(
    review: Review, testimonies: Sequence[Testimony], physical: Mapping[int, PhysicalCore]
) -> hv.Finding:
    """Decide who is wrong by what all witnesses of *review* say."""
    report = partial(_report, review, testimonies)
    right = _find_right(review, testimonies, physical)
    if right is None:
        refused = [t for t in testimonies if t.own_accepted < REPEATS]
        if len(refused) == 1 < len(testimonies) and not refused[0].own_accepted:
            text = f"each of {REPEATS} times it refused what it had made itself; others did not"
            return report(DEFECTIVE_CODE, f"cpu{refused[0].core}", text)
        text = "the cores contradict each other, and there is no majority of them"
        return report(UNATTRIBUTED_CODE, HOST, text)
    wrong = {t.core: sum(a != right for a in t.answers) for t in testimonies}
    if suspects := [core for core, count in wrong.items() if count]:
        # The one that was wrong most often; the others have rounds of their own.
        core = max(suspects, key=lambda c: (wrong[c], c == review.answer.core))
        agree = sum(find_majority(t.answers) == right for t in testimonies)
        text = f"wrong in {wrong[core]} of {REPEATS} repeats, by {agree} of {len(wrong)} cores"
        return report(DEFECTIVE_CODE, f"cpu{core}", text)
    return report(*_decide_by_digests(review, right, alone=len(testimonies) == 1))


def _find_right(
    review: Review, testimonies: Sequence[Testimony], physical: Mapping[int, PhysicalCore]
) -> Answer | None:
    cast: dict[PhysicalCore, set[Answer | None]] = {}
    for testimony in testimonies:
        cast.setdefault(physical[testimony.core], set()).add(find_majority(testimony.answers))
    # Threads that do not agree leave their core without a vote.
    votes = [answers.pop() if len(answers) == 1 else None for answers in cast.values()]
    if majority := find_majority(votes):
        return majority
    # Of those that make the shipped answer; several if they differ in what they accept.
    shipped = review.reference_digest
    known = [a for a in dict.fromkeys(votes) if a and shipped and a[0] == shipped]
    return known[0] if len(known) == 1 else None


def _decide_by_digests(review: Review, right: Answer, *, alone: bool) -> tuple[str, str, str]:
    """Decide where all agree now; give the code, the part and why."""
    digest, accepted = right
    answer, once = review.answer, "once, and in no repeat"
    # A core that is alone may make the same wrong answer each time.
    common = UNATTRIBUTED_CODE if alone else INEXACT_CODE
    if review.reference_digest not in ("", digest):
        return common, HOST, "all cores make the same, which is not what ships with hpcverify"
    if answer.digest != digest:
        return DEFECTIVE_CODE, f"cpu{answer.core}", f"made wrongly {once}"
    if compute_digest(answer.made) != digest or review.digest != digest:
        text = "made right, and changed on its way from one core to the other"
        return UNATTRIBUTED_CODE, HOST, text
    if accepted:
        return DEFECTIVE_CODE, f"cpu{review.core}", f"refused {once}, though it is right"
    return common, HOST, "all cores refuse what all of them make"


def _report(
    review: Review, testimonies: Sequence[Testimony], code: str, part_id: str, text: str
) -> hv.Finding:
    answers = {
        f"cpu{t.core}": ", ".join(f"{d} {'accepts' if ok else 'refuses'}" for d, ok in t.answers)
        for t in testimonies
    }
    evidence = {
        "unit": review.answer.unit.name,
        "data": review.answer.seed,
        "made_on": f"cpu{review.answer.core}: {review.answer.digest}",
        "verified_on": f"cpu{review.core}: {review.digest}",
        **({"shipped": review.reference_digest} if review.reference_digest else {}),
        **answers,
    }
    asked = format_ranges([t.core for t in testimonies])
    made = f"made on core {review.answer.core} and verified on core {review.core}"
    whole = f"{review.answer.unit.name}, {made}: {text} (asked: cores {asked})"
    return hv.Finding(code, part_id, whole, evidence, {"unit": review.answer.unit.name})
