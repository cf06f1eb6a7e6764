"""
What the results of all parts mean together: which part is outvoted, which plan is inexact.

Like parts that do the same work must give the same bits. If most agree, the others may be
wrong; if not, it is unknown which are. This needs no reference, and finds a part that errs
the same way every time. A part that was proven wrong has no vote, in this check or in a
later one of the run: several may err alike, and would outvote the good one. Being outvoted is
no proof and only warns: it is not yet confirmed on real nodes that a library computes the
same bits on all GPUs of a kind, however their SMs are spread over clusters. Only an exact
product fails a part. A vote counts if the part and the host take the same digest of the same
bits: the host errs, too.

A product that was proven wrong fails its part, with one exception: if several parts of a
kind all made the very same wrong bits, the plan was not exact with this library. Faults
of several parts do not agree to the last bit of millions of words. All of these conditions
must hold, or a fault could hide behind a plan: every part of the node computed and was
wrong; dtype, plan, draw and the digest of the whole output are the same; memory is
unchanged; and each part was wrong again in every rerun. So if one GPU crashed, or erred in
another bit, all of them fail. The threads of a core share its units and count as one.
Two more things fail no part that all of its kind do: zeros with a minus sign, which may be how
a unit rounds, and random products that differ from the part's own first one by no more than
another order of its sums explains, while all exact products are right.

The hunt on a core stops at its first wrong product, so cores report only one plan of a
type. If that one is inexact, the others of its type, which the same library code
multiplied, fail no part either.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

import hpcverify.check as hv
from hpcverify_checks.exact.reruns import Reruns

T = TypeVar("T", bound=Hashable)

KIND_FACTS = ("name", "pci_device_id", "compute_capability", "driver", "memory")
"""The same for all parts of a kind."""
MIN_VOTES = 2
"""When only two differ, it is unknown which is wrong."""
CORRUPTION_CODE = "corruption"
BLIND_PART_CODE = "blind_part"
"""The code of a finding that a part missed flipped bits, and no other part did."""
UNWITNESSED_CODE = "unwitnessed"
"""The code of a finding that a part has no vote, since the host does not confirm its digest."""
CORE_PATTERN = re.compile(r"cpu\d+")
HOST, HOST_MEMORY = "cpu", "memory"
"""The parts that are all cores of the host, and all of its memory."""
MEMORY_CODE = "memory_changed"
"""The code of a finding that what a check wrote changed in the host's memory."""
MEMORY_TEXT = (
    "the host's memory did not keep what was written, or a core wrote it wrongly: run host_memory "
    "and cpu_units"
)
CORES_GROUP = "cores"
PRODUCT_FINDING_RULES = {
    **hv.fail_on(CORRUPTION_CODE, remedy=hv.Remedy.REPLACE, conclusive=True),
    # No proof: the library may compute otherwise on a GPU with its SMs in other clusters.
    **hv.warn_on("outvoted"),
    **hv.warn_on("dissent", remedy=hv.Remedy.RERUN),
    **hv.error_on("disagreement", remedy=hv.Remedy.RERUN, cause=hv.Cause.NOISY),
    **hv.error_on("inexact", remedy=hv.Remedy.FIX_CHECKER, cause=hv.Cause.CHECKER),
    **hv.error_on(UNWITNESSED_CODE, cause=hv.Cause.CHECKER),
    # Not conclusive: it may have been the core that wrote them.
    **hv.fail_on(MEMORY_CODE),
    **hv.listed(hv.ANSWER_CODE),
}
"""Every check that compares products has these, so that a fault has the same remedy in each."""
SOAKED_METRIC = "stress.products"
"""The metric of every part that repeats its own products."""
DISPUTED_METRICS = {"mismatched_words": "disputed_words", "stress.mismatched": "stress.disputed"}
"""The metrics that fail a part, and their names if the plan is at fault."""


class Ballot(Struct, frozen=True):
    """A part's vote: the data of an `ANSWER_CODE` finding."""

    group: str
    """The parts of a kind that did the same work."""
    name: str
    """The name of the work."""
    digest: str
    void: bool = False
    """Whether an earlier check of the run proved the part wrong: the engine sets it."""


class ProductFault(Struct, frozen=True):
    """What is known about a wrong product: the data of its finding."""

    dtype: str
    plan: str
    draw: int
    metric: str = "mismatched_words"
    """The metric that counts its wrong words: one of `DISPUTED_METRICS`."""
    digest: str = ""
    """The digest of the whole output; empty if it is not known."""
    expected: str = ""
    """The correct value of the first wrong element, likewise."""
    only_signs: bool = False
    """Whether all that is wrong is the sign of zeros: a unit that rounds down makes them so."""
    of_order: bool = False
    """Whether another order of its sums explains all that is wrong."""
    in_memory: bool | None = None
    """Whether an operand or the reference changed in memory; None if it is not known."""
    reruns: Reruns | None = None

    @property
    def product(self) -> tuple[str | int, ...]:
        """If it is the same for all parts that were wrong, the plan may be at fault."""
        return self.dtype, self.plan, self.draw, self.expected, self.digest

    @property
    def may_be_of_plan(self) -> bool:
        """Whether a plan can be at fault: memory is unchanged, and every rerun was wrong."""
        wrong_each_time = self.reruns is not None and self.reruns.persistent
        return bool(self.expected and self.digest) and self.in_memory is False and wrong_each_time


ReportedFault = tuple[hv.Finding, ProductFault]


def identify_kind(inventory: hv.Inventory, part_id: str) -> str:
    """List what must be the same for two parts to compute the same bits."""
    part = next((p for p in inventory.parts if p.id == part_id), None)
    if part is None:
        return ""
    return " ".join((part.kind, *(part.facts[name] for name in KIND_FACTS if name in part.facts)))


def make_answer(part_id: str, text: str, answer: Ballot) -> hv.Finding:
    """Make the finding of a part's vote."""
    return hv.Finding(hv.ANSWER_CODE, part_id, text, data=msgspec.to_builtins(answer))


def reconcile(items: Sequence[hv.JudgedItem], inventory: hv.Inventory) -> Iterator[hv.JudgedItem]:
    """Hold the votes, and keep parts that all err in the same bits from failing."""
    answers = [f for f in items if isinstance(f, hv.Finding) and f.code == hv.ANSWER_CODE]
    others = list(move_to_memory([item for item in items if item not in answers]))
    left = list(move_to_plan(others, list_part_groups(others, inventory)))
    gpus = frozenset(d.part for d in inventory.devices if d.kind == "cuda")
    yield from hold_votes(answers, left, gpus)
    yield from left


def is_of_host(part_id: str) -> bool:
    """Whether the part *part_id* is a core of the host, or all of them."""
    return part_id == HOST or CORE_PATTERN.fullmatch(part_id) is not None


def move_to_memory(items: Sequence[hv.JudgedItem]) -> Iterator[hv.JudgedItem]:
    """
    Yield *items*, but report what changed in the host's memory as its fault and no core's.

    All cores read the same, so it is reported once, by the first that met it.
    """
    faults = [(f, fault) for f, fault in list_faults(items) if is_of_host(f.part_id)]
    changed = [(f, fault) for f, fault in faults if fault.in_memory]
    for finding, _ in changed[:1]:
        text = f"{MEMORY_TEXT}; met by {finding.part_id}: {finding.text}"
        yield replace(finding, code=MEMORY_CODE, part_id=HOST_MEMORY, text=text)
    yield from _dispute(items, changed, faults)


def list_faults(items: Iterable[hv.JudgedItem]) -> list[ReportedFault]:
    """List the findings of wrong products, with their data."""
    findings = [f for f in items if isinstance(f, hv.Finding) and f.code == CORRUPTION_CODE]
    return [(finding, finding.data_as(ProductFault)) for finding in findings]


def _dispute(
    items: Sequence[hv.JudgedItem], moved: Sequence[ReportedFault], faults: Sequence[ReportedFault]
) -> Iterator[hv.JudgedItem]:
    """Yield *items* without the *moved* ones of *faults*, whose words count as disputed."""
    remaining = {(f.part_id, fault.metric) for f, fault in faults if (f, fault) not in moved}
    disputed = {(f.part_id, fault.metric) for f, fault in moved} - remaining
    moved_findings = [finding for finding, _ in moved]
    for item in items:
        if isinstance(item, hv.Measurement) and (item.part_id, item.name) in disputed:
            yield replace(item, name=DISPUTED_METRICS[item.name])
        elif item not in moved_findings:
            yield item


def find_majority(votes: Sequence[T]) -> T | None:
    """Find the vote of more than half, and two at least; None if there is no such vote."""
    for vote, count in Counter(votes).most_common(1):
        if count >= MIN_VOTES and 2 * count > len(votes):
            return vote
    return None


def hold_votes(
    answers: Iterable[hv.Finding], items: Iterable[hv.JudgedItem], gpus: frozenset[str]
) -> Iterator[hv.Finding]:
    """
    Yield each vote with its result, by group and work.

    The vote of a part that already computed wrongly, by *items* or by an earlier check,
    proves nothing.
    """
    wrong = {f.part_id for f in items if isinstance(f, hv.Finding) and f.code == CORRUPTION_CODE}
    polls: dict[tuple[str, str], list[tuple[hv.Finding, Ballot]]] = {}
    for finding in answers:
        answer = finding.data_as(Ballot)
        if finding.part_id not in wrong and not answer.void:
            polls.setdefault((answer.group, answer.name), []).append((finding, answer))
    for (_, name), votes in polls.items():
        yield from _declare_results(name, votes, gpus)


def _declare_results(
    name: str, answers: Sequence[tuple[hv.Finding, Ballot]], gpus: frozenset[str]
) -> Iterator[hv.Finding]:
    digests: dict[str, set[str]] = {}
    for finding, answer in answers:
        digests.setdefault(finding.part_id, set()).add(answer.digest)
    # A part that contradicts itself has an empty vote.
    ballots = {part_id: min(d) if len(d) == 1 else "" for part_id, d in digests.items()}
    votes, voters = Counter(ballots.values()), len(ballots)
    most, count = votes.most_common(1)[0]
    majority = most if len(votes) == 1 else find_majority([*ballots.values()])
    for finding, answer in answers:
        if majority and ballots[finding.part_id] == majority:
            alone = "no other part did the same work, so there is no vote"
            agreed = f"{count} of {voters} agree" if voters > 1 else alone
            yield replace(finding, text=f"{finding.text}; {agreed}")
            continue
        if finding.part_id not in gpus:
            code, result = "dissent", f"the {voters} cores gave {len(votes)} different answers"
        elif majority:
            code = "outvoted"
            result = f"its bits differ from those of {count} of {voters} parts, which agree"
        else:
            code = "disagreement"
            result = (
                f"different answers from {voters} parts of a kind, and no majority of three or "
                "more: it is not known which is wrong"
            )
        evidence = {
            "group": answer.group,
            "digest": answer.digest,
            "most": most,
            "votes": f"{count} of {voters}",
        }
        yield replace(finding, code=code, text=f"{name}: {result}", evidence=evidence)


@dataclass(frozen=True, slots=True)
class PartGroup:
    """All *parts* of a kind on a node; *min_parts* of them can show that a plan is at fault."""

    parts: frozenset[str]
    min_parts: int
    other_cause: str
    """What is at fault if the parts are not."""
    single_plan: bool = False
    """Whether each reported only one plan of a type."""

    def list_common(self, faults: Sequence[ReportedFault]) -> Iterator[ReportedFault]:
        """Yield those of the *faults* that all parts have in common."""
        steady = [(f, fault) for f, fault in faults if fault.may_be_of_plan]
        parts: dict[tuple[str | int, ...], set[str]] = {}
        for finding, fault in steady:
            parts.setdefault(fault.product, set()).add(finding.part_id)
        shared = {
            f.product
            for _, f in steady
            if self.parts <= parts[f.product]
            and len(self.parts) >= (1 if f.only_signs else self.min_parts)
        }
        types = {(f.dtype, f.metric) for _, f in steady if self.single_plan and f.product in shared}
        for finding, fault in steady:
            is_common = fault.product in shared or (fault.dtype, fault.metric) in types
            if finding.part_id in self.parts and is_common:
                yield finding, fault


def list_part_groups(
    items: Sequence[hv.JudgedItem], inventory: hv.Inventory
) -> Iterator[PartGroup]:
    """Yield the node's GPUs, and the cores of the CPU that computed."""
    gpus = frozenset(d.part for d in inventory.devices if d.kind == "cuda")
    counts: dict[str, set[float | None]] = {}
    for item in items:
        if (
            isinstance(item, hv.Measurement)
            and item.name in DISPUTED_METRICS
            and item.part_id in gpus
        ):
            counts.setdefault(item.name, set()).add(item.value)
    # With other numbers of wrong words, one of them also erred elsewhere.
    if all(len(values) == 1 for values in counts.values()):
        yield PartGroup(gpus, 2, "the plan, the library or the reference")
    cores = frozenset(
        f.part_id
        for f in items
        if isinstance(f, hv.Measurement)
        and f.name == "products"
        and CORE_PATTERN.fullmatch(f.part_id)
    )
    other_cause = "the plan, the library, the reference or the cores' shared memory"
    facts = next((p.facts for p in inventory.of_kind("cpu")), {})
    threads, physical = (int(facts.get(name, 0)) for name in ("threads", "cores"))
    # The threads of a core share its units; two if their number is not known.
    sharing = -(-threads // physical) if threads and physical else 2
    yield PartGroup(cores, sharing + 1, other_cause, single_plan=True)


def move_to_plan(
    items: Sequence[hv.JudgedItem], groups: Iterable[PartGroup]
) -> Iterator[hv.JudgedItem]:
    """Yield *items*, but fail no part for what all parts of its kind did."""
    faults, common = list_faults(items), list[ReportedFault]()
    for group in groups:
        several = len(group.parts) > 1
        agreed = f"all {len(group.parts)} agree on" if several else "no other part contradicts"
        for finding, fault in group.list_common(faults):
            common.append((finding, fault))
            yield replace(
                finding,
                code="inexact",
                text=f"{agreed} the same wrong bits of this type, so {group.other_cause} is "
                f"wrong: {finding.text}",
            )
    for finding, fault in list_reordered(items, faults):
        common.append((finding, fault))
        text = f"no part repeats its own sums, as if their order changed: {finding.text}"
        yield replace(finding, code="inexact", text=text)
    yield from _dispute(items, common, faults)


def list_reordered(
    items: Iterable[hv.JudgedItem], faults: Sequence[ReportedFault]
) -> Iterator[ReportedFault]:
    """Yield the *faults* of all cores, or of all GPUs, if another order of sums explains each."""
    soaked = {i.part_id for i in items if isinstance(i, hv.Measurement) and i.name == SOAKED_METRIC}
    cores = {part_id for part_id in soaked if is_of_host(part_id)}
    for parts, least in ((cores, 1), (soaked - cores, 2)):  # a GPU's library promises the same bits
        mine = [(f, fault) for f, fault in faults if f.part_id in parts]
        all_err = len(parts) >= least and {f.part_id for f, _ in mine} == parts
        if all_err and all(fault.of_order for _, fault in mine):
            yield from mine
