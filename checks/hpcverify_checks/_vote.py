"""
What the answers of all parts mean together: who is outvoted, which plan is inexact.

Like parts that were asked the same thing must give the same bits. Where most agree,
the others are wrong; where they do not, nobody can tell who is. That needs no
reference, and finds what a part does wrong every time.

A product that was proven wrong accuses its part, with one exception: where every part
of a kind is accused of the very same bits, and there are several, the plan was not
exact with this library. Faults of several parts do not agree to the last bit of
millions of words. All of these have to hold, or a fault could hide behind a plan: every
part of the node computed and is accused; dtype, plan, draw and the digest of the whole
output are the same; what lies in memory is unchanged; and each part was wrong again in
every rerun. So one GPU that crashed, or erred in another bit, is enough for all to stay
accused. The threads of a core share its units: they count as one.

The hunt on a core stops at its first wrong product, so that cores testify of one plan
of a type only. Where that one is inexact, the others of its type were multiplied by the
same code of the library, and accuse nobody either.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from hpcverify.check import JudgedItem
from hpcverify.model import Finding, Inventory, Measurement

MIN_VOTERS = 3
"""Of two that differ, nobody can say which is wrong."""
CORRUPTION_CODE = "corruption"
"""The code of a finding that accuses a part."""
CORE_PATTERN = re.compile(r"cpu\d+")
CORES_GROUP = "cores"
"""The group of the cores' answers."""
SHARED_EVIDENCE = ("dtype", "plan", "draw", "expected", "digest")
"""What accused parts must have in common for the plan to be at fault."""
OWN_REFERENCE = "own first product"
"""What a part was compared with, if with nothing that was proven."""
DISPUTED_METRICS = {"mismatched_words": "disputed_words", "stress.mismatched": "stress.disputed"}
"""The numbers that accuse a part, and what they are called where the plan did it."""


def reconcile(found: Sequence[JudgedItem], inventory: Inventory) -> Iterator[JudgedItem]:
    """Put the answers to the vote, and acquit parts that all err in the same bits."""
    answers = [f for f in found if isinstance(f, Finding) and f.code == "answer"]
    others = [f for f in found if f not in answers]
    left = list(acquit_shared(others, list_part_groups(others, inventory)))
    gpus = frozenset(d.part for d in inventory.devices if d.kind == "cuda")
    for poll in group_polls(skip_wrong_cores(answers, left)):
        yield from poll.declare_results(gpus)
    yield from left


def skip_wrong_cores(answers: Iterable[Finding], found: Iterable[JudgedItem]) -> Iterator[Finding]:
    """Leave out the answers of cores that computed wrongly: they prove nothing more."""
    wrong = {f.where for f in found if isinstance(f, Finding) and f.code == CORRUPTION_CODE}
    for answer in answers:
        if answer.evidence["group"] != CORES_GROUP or answer.where not in wrong:
            yield answer


@dataclass(frozen=True, slots=True)
class Poll:
    """The *answers* to one question, which is called *name*."""

    name: str
    answers: tuple[Finding, ...]

    def collect_votes(self) -> dict[str, str]:
        """Say how each part voted; one that contradicts itself votes for nothing."""
        said: dict[str, set[str]] = {}
        for answer in self.answers:
            said.setdefault(answer.where, set()).add(answer.evidence["digest"])
        return {w: min(d) if len(d) == 1 else "" for w, d in said.items()}

    def declare_results(self, gpus: frozenset[str]) -> Iterator[Finding]:
        """Yield each answer as what it turned out to be."""
        ballots = self.collect_votes()
        votes = Counter(ballots.values())
        most, count = votes.most_common(1)[0]
        decided = len(ballots) >= MIN_VOTERS and 2 * count > len(ballots)
        for answer in self.answers:
            if most and (len(votes) == 1 or (decided and ballots[answer.where] == most)):
                yield self._confirm(answer, count, len(ballots))
            elif answer.where not in gpus:
                yield self._make_finding(answer, "dissent", votes)
            elif most and decided:
                yield self._make_finding(answer, "outvoted", votes)
            else:
                yield self._make_finding(answer, "disagreement", votes)

    def _confirm(self, answer: Finding, count: int, voters: int) -> Finding:
        if voters == 1:
            alone = "the only part that was asked this, so that there is no vote"
            return replace(answer, text=f"{answer.text}; {alone}")
        return replace(answer, text=f"{answer.text}; {count} of {voters} agree")

    def _make_finding(self, answer: Finding, code: str, votes: Counter[str]) -> Finding:
        most, count = votes.most_common(1)[0]
        voters = votes.total()
        said = {
            "outvoted": f"other bits than the {count} of {voters} parts that agree",
            "disagreement": f"different answers from {voters} like parts, and no "
            "majority of three or more: it cannot be told which is wrong",
            "dissent": f"the cores disagree: {len(votes)} different answers from {voters} of them",
        }
        evidence = {**answer.evidence, "most": most, "votes": f"{count} of {voters}"}
        return Finding(code, answer.where, f"{self.name}: {said[code]}", evidence)


def group_polls(answers: Iterable[Finding]) -> Iterator[Poll]:
    """Sort *answers* by what was asked, and of which group of like parts."""
    asked: dict[tuple[str, str], list[Finding]] = {}
    for answer in answers:
        name = answer.evidence.get("name", "answer")
        asked.setdefault((answer.evidence["group"], name), []).append(answer)
    for (_, name), given in asked.items():
        yield Poll(name, tuple(given))


@dataclass(frozen=True, slots=True)
class PartGroup:
    """All *parts* of one kind that a node has, of which *least* have to agree."""

    parts: frozenset[str]
    min_parts: int
    blame: str
    """What is wrong if the parts are not."""
    single_plan: bool = False
    """Whether each testified of one plan of a type only."""

    def list_excused(self, accusations: Sequence[Finding]) -> list[Finding]:
        """List those of the *accusations* that all parts have in common."""
        accused: dict[tuple[str, ...], set[str]] = {}
        for accusation in accusations:
            if _is_steady(accusation):
                accused.setdefault(_make_product_key(accusation), set()).add(accusation.where)
        several = len(self.parts) >= self.min_parts
        shared = {b for b, parts in accused.items() if several and self.parts <= parts}
        types = {
            _get_dtype_key(a)
            for a in accusations
            if self.single_plan and _make_product_key(a) in shared
        }
        return [
            accusation
            for accusation in accusations
            if accusation.where in self.parts
            and _is_steady(accusation)
            and (_make_product_key(accusation) in shared or _get_dtype_key(accusation) in types)
        ]


def _is_steady(accusation: Finding) -> bool:
    """Whether a plan can be at fault: memory as it was, and wrong every time."""
    evidence = accusation.evidence
    return (
        all(evidence.get(name) for name in SHARED_EVIDENCE)
        and evidence.get("place") == "compute"
        and evidence.get("reruns", "").startswith("persistent")
    )


def _make_product_key(accusation: Finding) -> tuple[str, ...]:
    return tuple(accusation.evidence.get(name, "") for name in SHARED_EVIDENCE)


def _get_dtype_key(accusation: Finding) -> tuple[str, str]:
    """Say of what type the product was, and against what it was wrong."""
    evidence = accusation.evidence
    return evidence.get("dtype", ""), evidence.get("reference", "")


def list_part_groups(found: Sequence[JudgedItem], inventory: Inventory) -> Iterator[PartGroup]:
    """Yield the node's GPUs, and the cores of the CPU that computed."""
    gpus = frozenset(d.part for d in inventory.devices if d.kind == "cuda")
    if _are_even(found, gpus):  # else one of them has erred elsewhere, too
        yield PartGroup(gpus, 2, "the plan, the library or the reference")
    cores = frozenset(
        f.where
        for f in found
        if isinstance(f, Measurement) and f.name == "products" and CORE_PATTERN.fullmatch(f.where)
    )
    blamed = "the plan, the library, the reference or the memory that cores share"
    yield PartGroup(cores, count_threads_per_core(inventory) + 1, blamed, single_plan=True)


def _are_even(found: Iterable[JudgedItem], parts: frozenset[str]) -> bool:
    """Whether all *parts* were wrong in as many words as each other."""
    counts: dict[str, set[float | None]] = {}
    for item in found:
        if isinstance(item, Measurement) and item.name in DISPUTED_METRICS and item.where in parts:
            counts.setdefault(item.name, set()).add(item.value)
    return all(len(values) == 1 for values in counts.values())


def count_threads_per_core(inventory: Inventory) -> int:
    """Say how many logical cores share the units of one; 2 if it is not known."""
    facts = next((p.facts for p in inventory.of_kind("cpu")), {})
    threads, cores = (int(facts.get(name, 0)) for name in ("threads", "cores"))
    return -(-threads // cores) if threads and cores else 2


def acquit_shared(found: Sequence[JudgedItem], kinds: Iterable[PartGroup]) -> Iterator[JudgedItem]:
    """Yield what was *found*; what all parts of a kind are accused of accuses none."""
    accusations = [f for f in found if isinstance(f, Finding) and f.code == CORRUPTION_CODE]
    acquittals = [
        (accusation, _make_acquittal(accusation, kind))
        for kind in kinds
        for accusation in kind.list_excused(accusations)
    ]
    excused = [accusation for accusation, _ in acquittals]
    standing = {_find_metric(a) for a in accusations if a not in excused}
    disputed = {_find_metric(a) for a in excused} - standing
    yield from (acquittal for _, acquittal in acquittals)
    for item in found:
        if isinstance(item, Measurement) and (item.where, item.name) in disputed:
            yield replace(item, name=DISPUTED_METRICS[item.name])
        elif item not in excused:
            yield item


def _find_metric(accusation: Finding) -> tuple[str, str]:
    """Say which number holds the words of *accusation*."""
    own = accusation.evidence.get("reference") == OWN_REFERENCE
    return accusation.where, "stress.mismatched" if own else "mismatched_words"


def _make_acquittal(accusation: Finding, kind: PartGroup) -> Finding:
    text = (
        f"all {len(kind.parts)} agree on the same wrong bits of this type, so that "
        f"{kind.blame} is wrong: {accusation.text}"
    )
    return replace(accusation, code="inexact", text=text)
