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

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from hpcverify.check import (
    Cause,
    Finding,
    FindingRule,
    Inventory,
    JudgedItem,
    Measurement,
    Remedy,
    Verdict,
)
from hpcverify_checks.common.reruns import Reruns

KIND_FACTS = ("name", "pci_device_id", "compute_capability", "driver", "memory")
"""What like parts have in common."""
MIN_VOTERS = 3
"""Of two that differ, nobody can say which is wrong."""
CORRUPTION_CODE = "corruption"
"""The code of a finding that accuses a part."""
ANSWER_CODE = "answer"
"""The code of a finding that is put to the vote."""
CORE_PATTERN = re.compile(r"cpu\d+")
CORES_GROUP = "cores"
"""The group of the cores' answers."""
PRODUCT_FINDING_RULES = {
    CORRUPTION_CODE: FindingRule(Verdict.FAIL, Remedy.REPLACE, hard=True),
    "outvoted": FindingRule(Verdict.FAIL, Remedy.REPLACE, hard=True),
    "dissent": FindingRule(Verdict.WARN, Remedy.RERUN),
    "disagreement": FindingRule(Verdict.ERROR, Remedy.RERUN, Cause.NOISY),
    "inexact": FindingRule(Verdict.ERROR, Remedy.FIX_CHECKER, Cause.CHECKER),
    ANSWER_CODE: FindingRule(Verdict.PASS, Remedy.NONE),
}
"""For every check that compares products: the same fault has the same remedy in each."""
DISPUTED_METRICS = {"mismatched_words": "disputed_words", "stress.mismatched": "stress.disputed"}
"""The numbers that accuse a part, and what they are called where the plan did it."""


class Ballot(Struct, frozen=True):
    """What a part answered to a question: the data of a finding that is put to the vote."""

    group: str
    """The like parts that were asked the same."""
    name: str
    """What they were asked."""
    digest: str


class Accusation(Struct, frozen=True):
    """What is known of a product that was wrong: the data of the finding of it."""

    dtype: str
    plan: str
    draw: int
    """Of the operands."""
    metric: str = "mismatched_words"
    """The number that holds its wrong words: one of `DISPUTED_METRICS`."""
    digest: str = ""
    """Of the whole output, empty if it is not known."""
    expected: str = ""
    """What the first wrong element should have been, likewise."""
    in_memory: bool | None = None
    """Whether an operand or the reference changed in memory; None if it is not known."""
    reruns: Reruns | None = None

    @property
    def product(self) -> tuple[str | int, ...]:
        """What accused parts must have in common for the plan to be at fault."""
        return self.dtype, self.plan, self.draw, self.expected, self.digest

    @property
    def can_be_excused(self) -> bool:
        """Whether a plan can be at fault: memory as it was, and wrong every time."""
        wrong_each_time = self.reruns is not None and self.reruns.persistent
        return bool(self.expected and self.digest) and self.in_memory is False and wrong_each_time


Accused = tuple[Finding, Accusation]
"""The finding of a wrong product, and its data."""


def identify_kind(inventory: Inventory, where: str) -> str:
    """Say what has to be the same of two parts that are to compute the same bits."""
    part = next((p for p in inventory.parts if p.id == where), None)
    if part is None:
        return ""
    return " ".join((part.kind, *(part.facts[name] for name in KIND_FACTS if name in part.facts)))


def make_answer(where: str, text: str, answer: Ballot) -> Finding:
    """Put the *answer* of a part to the vote."""
    return Finding(ANSWER_CODE, where, text, data=msgspec.to_builtins(answer))


def reconcile(found: Sequence[JudgedItem], inventory: Inventory) -> Iterator[JudgedItem]:
    """Put the answers to the vote, and acquit parts that all err in the same bits."""
    answers = [f for f in found if isinstance(f, Finding) and f.code == ANSWER_CODE]
    others = [f for f in found if f not in answers]
    left = list(acquit_shared(others, list_part_groups(others, inventory)))
    gpus = frozenset(d.part for d in inventory.devices if d.kind == "cuda")
    for poll in group_polls(answers, left):
        yield from poll.declare_results(gpus)
    yield from left


@dataclass(frozen=True, slots=True)
class Poll:
    """The answers to one question, which is called *name*."""

    name: str
    answers: tuple[tuple[Finding, Ballot], ...]

    def collect_votes(self) -> dict[str, str]:
        """Say how each part voted; one that contradicts itself votes for nothing."""
        said: dict[str, set[str]] = {}
        for finding, answer in self.answers:
            said.setdefault(finding.where, set()).add(answer.digest)
        return {w: min(d) if len(d) == 1 else "" for w, d in said.items()}

    def declare_results(self, gpus: frozenset[str]) -> Iterator[Finding]:
        """Yield each answer as what it turned out to be."""
        ballots = self.collect_votes()
        votes = Counter(ballots.values())
        most, count = votes.most_common(1)[0]
        voters = len(ballots)
        decided = voters >= MIN_VOTERS and 2 * count > voters
        for finding, answer in self.answers:
            if most and (len(votes) == 1 or (decided and ballots[finding.where] == most)):
                alone = "no other part was asked this, so there is no vote"
                agreed = f"{count} of {voters} agree" if voters > 1 else alone
                yield replace(finding, text=f"{finding.text}; {agreed}")
                continue
            code, said = "disagreement", NO_MAJORITY.format(voters=voters)
            if finding.where not in gpus:
                code = "dissent"
                said = f"the {voters} cores gave {len(votes)} different answers"
            elif most and decided:
                code = "outvoted"
                said = f"other bits than the {count} of {voters} parts that agree"
            text, counts = f"{self.name}: {said}", {"most": most, "votes": f"{count} of {voters}"}
            evidence = msgspec.structs.asdict(answer) | counts
            yield replace(finding, code=code, text=text, evidence=evidence)


NO_MAJORITY = (
    "different answers from {voters} like parts, and no majority of three or more: "
    "it cannot be told which is wrong"
)


def group_polls(answers: Iterable[Finding], found: Iterable[JudgedItem]) -> Iterator[Poll]:
    """
    Sort *answers* by what was asked, and of which group of like parts.

    Cores that computed wrongly, by what was *found*, prove nothing more by theirs.
    """
    wrong = {f.where for f in found if isinstance(f, Finding) and f.code == CORRUPTION_CODE}
    asked: dict[tuple[str, str], list[tuple[Finding, Ballot]]] = {}
    for finding in answers:
        answer = finding.data_as(Ballot)
        if answer.group != CORES_GROUP or finding.where not in wrong:
            asked.setdefault((answer.group, answer.name), []).append((finding, answer))
    for (_, name), given in asked.items():
        yield Poll(name, tuple(given))


@dataclass(frozen=True, slots=True)
class PartGroup:
    """All *parts* of one kind that a node has, of which *min_parts* have to agree."""

    parts: frozenset[str]
    min_parts: int
    blame: str
    """What is wrong if the parts are not."""
    single_plan: bool = False
    """Whether each testified of one plan of a type only."""

    def list_excused(self, accused: Sequence[Accused]) -> Iterator[Accused]:
        """Yield those of the *accused* that all parts have in common."""
        steady = [(f, a) for f, a in accused if a.can_be_excused]
        parts: dict[tuple[str | int, ...], set[str]] = {}
        for finding, accusation in steady:
            parts.setdefault(accusation.product, set()).add(finding.where)
        several = len(self.parts) >= self.min_parts
        shared = {p for p, where in parts.items() if several and self.parts <= where}
        types = {(a.dtype, a.metric) for _, a in steady if self.single_plan and a.product in shared}
        for finding, accusation in steady:
            known = accusation.product in shared or (accusation.dtype, accusation.metric) in types
            if finding.where in self.parts and known:
                yield finding, accusation


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
    accused = [
        (f, f.data_as(Accusation))
        for f in found
        if isinstance(f, Finding) and f.code == CORRUPTION_CODE
    ]
    excused: list[Accused] = []
    for kind in kinds:
        for finding, accusation in kind.list_excused(accused):
            excused.append((finding, accusation))
            yield replace(
                finding,
                code="inexact",
                text=f"all {len(kind.parts)} agree on the same wrong bits of this type, so "
                f"that {kind.blame} is wrong: {finding.text}",
            )
    standing = {(f.where, a.metric) for f, a in accused if (f, a) not in excused}
    disputed = {(f.where, a.metric) for f, a in excused} - standing
    acquitted = [finding for finding, _ in excused]
    for item in found:
        if isinstance(item, Measurement) and (item.where, item.name) in disputed:
            yield replace(item, name=DISPUTED_METRICS[item.name])
        elif item not in acquitted:
            yield item
