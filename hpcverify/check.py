"""
The contract between the engine and a check, and the one place that judges.

A check measures and never judges: it yields numbers, facts and series. Limits, which
differ between parts, and the rules for findings are data; only `judge` compares a run
with them. A check is a value at the foot of its module.

This is the one module of the engine that most checks import: what a check declares,
yields and raises, with the values of `hpcverify.model` among it. Programs are started
with `hpcverify.processes.run_tool`.
"""

from __future__ import annotations

import math
import re
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from enum import Enum
from fnmatch import fnmatchcase
from functools import lru_cache, partial
from heapq import nlargest
from itertools import chain, product
from pathlib import Path
from typing import Any, Generic, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from hpcverify import breadcrumb
from hpcverify.model import (
    FORMER_LABEL,
    MIN_PARTS_FOR_ALL,
    CarryOver,
    Cause,
    CheckItem,
    Coverage,
    Device,
    Fact,
    Fault,
    FaultKind,
    Finding,
    FindingRule,
    Inventory,
    Limit,
    Maturity,
    Measurement,
    Part,
    Remedy,
    Result,
    Series,
    Side,
    Verdict,
)
from hpcverify.units import PRINTED_UNITS, convert_unit, scale_unit

__all__ = [
    "ANSWER_CODE",
    "CHECKER_BROKEN",
    "CORES_LEFT_OUT_CODE",
    "FORMER_LABEL",
    "FOUND_NOTHING",
    "MIN_PARTS_FOR_ALL",
    "RANK_LOST_CODE",
    "CarryOver",
    "Cause",
    "Check",
    "CheckItem",
    "Context",
    "Coverage",
    "Device",
    "Fact",
    "Finding",
    "FindingRule",
    "Inventory",
    "JudgedItem",
    "Maturity",
    "Measurement",
    "Metric",
    "Params",
    "Part",
    "Placement",
    "Remedy",
    "Rule",
    "Sample",
    "Series",
    "Skip",
    "Trial",
    "Unable",
    "Verdict",
    "Watch",
    "error_on",
    "fail_on",
    "listed",
    "matches",
    "not_set_up",
    "operation",
    "warn_on",
]

GLOB_CHARACTERS = frozenset("*?[")


class Skip(Exception):  # noqa: N818 - control flow, as in pytest and unittest
    """
    Raised by a check that cannot apply to this node.

    NOT_APPLICABLE: the node has no such part; NOT_OBSERVABLE: no sensor for it.
    """

    def __init__(self, reason: str, cause: Cause = Cause.NOT_APPLICABLE) -> None:
        super().__init__(reason)
        self.cause = cause


class Unable(Exception):  # noqa: N818 - an outcome, not a fault of the program
    """
    Raised by a check that applies and cannot run; becomes ERROR.

    A *fix* is the exact step that undoes it, as "apt-get install fio": the reason ends in it,
    and so does what the run says to do next.
    """

    def __init__(
        self,
        reason: str,
        cause: Cause,
        remedy: Remedy = Remedy.FIX_CONFIGURATION,
        *,
        code: str = "",
        fix: str = "",
    ) -> None:
        """Keep why, with a cause and a remedy; *code* and *fix* as in `Shortfall`."""
        super().__init__(f"{reason}: {fix}" if fix else reason)
        self.cause = cause
        self.remedy = remedy
        self.code = code
        self.fix = fix


class Params(Struct, frozen=True, forbid_unknown_fields=True):
    """Base class of a check's parameters; every field has a default."""


P = TypeVar("P", bound=Params)

JudgedItem = Measurement | Finding
"""What is judged."""


class Placement(Enum):
    """Where a check runs, and with which other checks."""

    PASSIVE = "passive"
    """Once, in the telemetry worker: reads, and loads nothing."""
    NODE = "node"
    """Once, in its own worker: loads the node, but none of its devices."""
    DEVICES_TOGETHER = "devices_together"
    """Once, in its own worker that uses all devices of the node."""
    DEVICES = "devices"
    """In each device's worker; all devices of one kind at the same time."""
    ALL_DEVICES = "all_devices"
    """In each device's worker; all devices of all kinds at the same time."""
    DEVICES_ALONE = "devices_alone"
    """In each device's worker, one device after the other."""


class Context(Struct, frozen=True, kw_only=True):
    """What a check may know of the node and of the run that it is part of."""

    node: str
    device: Device
    """What to compute on; for `PASSIVE`, `NODE` and `DEVICES_TOGETHER` the host's CPU."""
    peers: tuple[Device, ...]
    """All devices of this kind, in a fixed order, including `device`."""
    inventory: Inventory
    previous: Inventory | None
    """The inventory of the node's last run, if there was one."""
    scratch: Path
    """An empty directory, which the engine always removes. The passive checks of a run
    share one: they write nothing."""
    shared: Path
    """An empty directory that the workers of one check and kind share: a rendezvous."""
    seed: int
    """Differs from run to run; the same for all devices of one run."""
    rotation: int = 0
    """How many runs this node has had: says what is next if not everything fits."""
    carry_overs: tuple[CarryOver, ...] = ()
    """What this check carried over from the node's last run that had it."""
    before_load: tuple[CarryOver, ...] = ()
    """What this check, if it is passive, carried over before the first load of this run."""
    accepts_parts: bool = False
    """Whether this run accepts what parts lost since earlier runs (--accept-parts)."""

    @property
    def rank(self) -> int:
        """The place of this worker's device among its peers."""
        return self.peers.index(self.device)

    def recall(self, name: str, part_id: str = "node") -> str | None:
        """Return the value of the mark *name* of the part *part_id*, if there is one."""
        for mark in self.carry_overs:
            if (mark.name, mark.part_id) == (name, part_id):
                return mark.value
        return None


def operation(text: str, device: Device | None = None) -> AbstractContextManager[None]:
    """
    Name what *device* does while a block runs, such as its bf16 products.

    If the block never ends, the engine says so in these words. A GPU that does not come
    back from it, where its siblings did, is then what hangs: so leave the *device* out
    where it may be waiting for others, as in a sum over all of them. It costs
    microseconds: keep it out of loops that are timed.
    """
    if device is None:
        return breadcrumb.during(text, "")
    return breadcrumb.during(f"{text} on {device.label}", device.part)


class Sample(Struct, frozen=True):
    """One reading by the telemetry worker; *t* in seconds on its own clock."""

    name: str
    value: float
    unit: str
    part_id: str
    t: float


class Samples(Sequence[Sample]):
    """Samples in order of time; those of one name cost less than all."""

    @abstractmethod
    def select_by_name(self, name: str) -> Iterable[Sample]:
        """Return those called *name*, in order of time for each part."""


class Watch(Struct, frozen=True, kw_only=True):
    """What the telemetry worker sampled while a check ran, from *start* to *end*."""

    start: float
    end: float
    samples: Sequence[Sample]

    def group_by_part(self, name: str) -> Iterator[tuple[str, list[Sample]]]:
        """Yield each part that has samples called *name*, with them in order."""
        parts: dict[str, list[Sample]] = {}
        several = self.samples
        for sample in several.select_by_name(name) if isinstance(several, Samples) else several:
            if sample.name == name:
                parts.setdefault(sample.part_id, []).append(sample)
        yield from sorted(parts.items())


class Trial(Struct, frozen=True, kw_only=True):
    """What became of one fault that a check injected into itself."""

    fault: str
    """What was injected; "none" is a trial too."""
    part_id: str
    """The part on trial."""
    expected: str
    """The required outcome, as "found" or "nothing found"."""
    outcome: str
    """The actual outcome, in the same words."""
    detail: str = ""
    """What the check reported, or why it is excepted."""

    @property
    def is_as_expected(self) -> bool:
        """Whether the outcome is the required one."""
        return self.outcome == self.expected


FOUND_NOTHING, CHECKER_BROKEN = "nothing found", "checker broken"
"""Outcomes of trials, in the words of all checks."""


class Setting(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    A limit as a file has it, in the unit of the file.

    What it leaves out comes from the limit that would apply without it.
    """

    low: float | None = None
    """The lowest healthy value."""
    high: float | None = None
    """The highest healthy value."""
    unit: str | None = None
    """The unit of *low* and *high*; without one, that of the measurement."""
    of_spec: float | None = None
    """The limit as a share of what good parts reach: typically, or the least if it fails."""
    of_siblings: float | None = None
    """The limit as a share of the median of equal parts in the node."""
    of_baseline: float | None = None
    """The limit as a share of the median of the node's earlier runs."""
    otherwise: Verdict | None = None
    """The verdict on a value outside the limit."""
    remedy: Remedy | None = None
    """What to do about a value outside the limit."""
    optional: bool | None = None
    """Whether a run without this measurement is sound."""
    part: str = ""
    """The label or the id of a part, or a pattern; empty: all parts."""
    nodes: str = ""
    """A host list, as Slurm writes it; empty: all nodes."""


BOUNDS = ("low", "high", "of_spec", "of_siblings", "of_baseline")
"""The fields of a `Rule` that bound a value."""
ANY_PART = "*"


class Rule(Setting, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    A limit as a check, a suite, the site or an option declares it; the ways can be combined.

    *low* and *high* are absolute. The others are fractions of what the measured
    part should reach: *of_spec* of what good ones typically do, or of the least that they do if a
    value outside fails (`limits.floors`), *of_siblings* of the
    median over the like parts of this node in this run (three or more), and
    *of_baseline* of the median over this node's earlier runs (five or more).
    Fractions below 1 are lower limits, those above 1 upper limits.

    *metric* and *part* may be patterns; *part* is compared with `Part.aliases`. A field
    that is None stays as the next weaker rule has it.
    """

    metric: str = ""
    """Empty for a rule of a check: it is in the declaration of its `Metric`."""
    source: str = "hpcverify default"
    cause: Cause = Cause.NONE
    """Why we could not tell, where a value outside is an ERROR."""
    conclusive: bool = False
    """Whether a rerun cannot undo its FAIL; as for a `FindingRule`."""

    @property
    def verdict(self) -> Verdict:
        """The verdict on a value outside, FAIL unless another is declared."""
        return self.otherwise or Verdict.FAIL

    def covers(self, metric: str, part_names: Iterable[str]) -> bool:
        """Whether it applies to *metric*, measured on the part with these names."""
        return matches(metric, self.metric) and (
            self.part in ("", ANY_PART) or any(matches(name, self.part) for name in part_names)
        )

    @property
    def key(self) -> RuleKey:
        """The metric and the part that it is declared for."""
        return self.metric, self.part or ANY_PART

    def refine(self, rule: Rule) -> Rule:
        """Return *rule* with the fields of this rule; a bound replaces those on its side."""
        own = _list_bounds(self)
        sides = {_is_upper(name, value) for name, value in own.items()}
        kept = {n: v for n, v in _list_bounds(rule).items() if _is_upper(n, v) not in sides}
        bounds: dict[str, Any] = kept | own
        same_verdict = self.otherwise in (None, rule.verdict)
        return Rule(
            **bounds,
            otherwise=self.otherwise or rule.verdict,
            remedy=self.remedy or rule.remedy,
            cause=self.cause or (rule.cause if same_verdict else Cause.NONE),
            optional=rule.optional if self.optional is None else self.optional,
            source=self.source if own else f"{rule.source}, changed by {self.source}",
            conclusive=rule.conclusive and same_verdict,
        )


RuleKey = tuple[str, str]
"""The metric and the part, both perhaps patterns, that a rule is declared for."""


class Metric(Struct, frozen=True):
    """
    What a check measures under one name (or pattern), and its default limits.

    *worse* says which of two like parts is the worse one. It is "neither" if a difference says
    nothing of the part, or if the healthy value is about 0, of which nothing is a share: the
    metric's own limits judge it, and peers and the past leave it alone.
    """

    unit: str
    worse: Side
    meaning: str
    limits: Mapping[str, Rule] = {}
    """By the name or pattern that they are for; empty: all that the metric measures."""

    def fail(self, *names: str, **terms: Any) -> Metric:
        """
        Add a limit outside of which a value fails: for all, or only for these *names*.

        *terms* are fields of `Rule`. If nothing is measured, nothing is judged.

        Raises:
            ValueError: one of them has a limit, which this one would replace.

        """
        usual: dict[str, Any] = {"otherwise": Verdict.FAIL, "remedy": Remedy.INSPECT}
        added = dict.fromkeys(names or ("",), Rule(**(usual | {"optional": True} | terms)))
        for name in self.limits.keys() & added.keys():
            raise ValueError(f"two limits for {name or 'all that the metric measures'}: keep one")
        return replace(self, limits={**self.limits, **added})

    def warn(self, *names: str, **terms: Any) -> Metric:
        """Add a limit as `fail`, but outside of which a value only warns."""
        return self.fail(*names, otherwise=Verdict.WARN, **terms)

    def error(self, *names: str, **terms: Any) -> Metric:
        """Add a limit for the least that a judgement needs; it must be measured."""
        return self.fail(*names, **({"otherwise": Verdict.ERROR, "optional": False} | terms))


def has_bound(rule: Rule) -> bool:
    """Whether *rule* bounds a value at all."""
    return bool(_list_bounds(rule))


def _list_bounds(rule: Rule) -> dict[str, float]:
    values = {name: getattr(rule, name) for name in BOUNDS}
    return {name: value for name, value in values.items() if value is not None}


def _is_upper(name: str, value: float) -> bool:
    """Whether a bound is an upper limit: a fraction above 1 is one too."""
    return name == "high" or (name != "low" and value > 1)


def list_rule_keys(rules: Mapping[str, Rule], overrides: Sequence[Rule]) -> list[RuleKey]:
    """List what *rules* and *overrides* are declared for, each once, the check's own first."""
    keys = [(metric, ANY_PART) for metric in rules]
    return list(dict.fromkeys(keys + [o.key for o in reversed(overrides)]))


def find_rule(
    rules: Mapping[str, Rule],
    overrides: Sequence[Rule],
    metric: str,
    part_names: Iterable[str] = (),
) -> tuple[RuleKey, Rule] | None:
    """
    Find the one rule for *metric* on a part, and what it is declared for.

    The strongest of *overrides*, which come strongest first, wins. What it leaves out comes
    from the next one that applies, and in the end from the most specific of the check's own
    *rules*.
    """
    names = tuple(part_names)
    applying = [override for override in overrides if override.covers(metric, names)]
    own = max((p for p in rules if matches(metric, p)), key=rank_pattern, default=None)
    if own is None and not applying:
        return None
    weakest = Rule(remedy=Remedy.INSPECT, optional=False) if own is None else rules[own]
    key = applying[0].key if applying else (own or "", ANY_PART)
    return key, refine_by_all(weakest, applying)


def find_rules(
    rules: Mapping[str, Rule],
    overrides: Sequence[Rule],
    metric: str,
    part_names: Iterable[str] = (),
) -> list[tuple[RuleKey, Rule]]:
    """
    Find all that judges *metric* on a part, each with what it is declared for.

    Where an override gives a bound, that is one rule. Else a check may have several of its own
    for one metric, as one that warns and one that fails, and what overrides say changes each.
    """
    names = tuple(part_names)
    applying = [override for override in overrides if override.covers(metric, names)]
    if any(map(_list_bounds, applying)):
        hit = find_rule(rules, applying, metric, names)
        return [hit] if hit else []
    return [
        ((own, ANY_PART), refine_by_all(rule, applying))
        for own, rule in rules.items()
        if matches(metric, own)
    ]


def refine_by_all(rule: Rule, overrides: Sequence[Rule]) -> Rule:
    """Refine *rule* by the weakest of *overrides* first: the strongest has the last word."""
    for override in reversed(overrides):
        rule = override.refine(rule)
    return rule


def rank_pattern(pattern: str) -> tuple[bool, int]:
    """Rank how specific *pattern* is: a name before any pattern, then by its literal characters."""
    literal = sum(char not in GLOB_CHARACTERS for char in pattern)
    return not is_pattern(pattern), literal


def is_pattern(text: str) -> bool:
    """Whether *text* may match more than itself."""
    return not GLOB_CHARACTERS.isdisjoint(text)


def _rule_on(
    verdict: Verdict,
    *codes: str,
    remedy: Remedy = Remedy.INSPECT,
    cause: Cause = Cause.NONE,
    conclusive: bool = False,
    shared: bool = False,
) -> dict[str, FindingRule]:
    return dict.fromkeys(codes, FindingRule(verdict, remedy, cause, conclusive, shared))


fail_on = partial(_rule_on, Verdict.FAIL)
"""Make the rules of findings, by their codes, that fail."""
warn_on = partial(_rule_on, Verdict.WARN)
error_on = partial(_rule_on, Verdict.ERROR)
not_set_up = partial(error_on, remedy=Remedy.FIX_CONFIGURATION, cause=Cause.MISCONFIGURED)
"""The same for findings that a wrong set-up keeps us from judging."""
listed = partial(_rule_on, Verdict.PASS, remedy=Remedy.NONE)
"""The same for findings that are only reported."""
HUNG_CODE = "gpu_hung_under_load"
"""The code of the engine's finding on a GPU that hangs where its siblings do not."""
UNOWNED_CODE = "gpu_memory_unowned"
"""The code of the engine's finding on a GPU whose memory a dead process still holds."""
RANK_LOST_CODE = "rank_lost"
"""A part for which others waited: the rank that has it did not end its work."""
ANSWER_CODE = "answer"
"""The code of a part's vote: the engine adds `void` to the data of parts proven wrong before."""
CORES_LEFT_OUT_CODE = "cores_left_out"
"""The code of the finding that a check of the host could not use all cores that are online."""
TELEMETRY_WORKER = "telemetry"
"""The name of the worker that reads the hardware, and computes on none of it."""
ENGINE_FINDING_RULES: Mapping[str, FindingRule] = {
    # A PASS says so in its reason, since a cpuset may be meant.
    **_rule_on(Verdict.PASS, CORES_LEFT_OUT_CODE, remedy=Remedy.FIX_CONFIGURATION),
    **fail_on(HUNG_CODE, remedy=Remedy.RESET_GPU),
    **warn_on(UNOWNED_CODE, remedy=Remedy.RESET_GPU),
}
"""The rules of findings that any check may have."""
MAX_FAULTS = 20_000
"""The gravest are kept; no check has as many about a node. In a document that others wrote,
hundreds of values may each break hundreds of limits."""
MAX_CACHED_NAMES = 2**16
"""Pairs of names and patterns: documents that others wrote may have any number."""
SETUP_CODES = frozenset(
    {
        "torch_missing",
        "torch_broken",
        "torch_without_platform",
        "cuda_driver_too_old",
        "cuda_no_driver",
        "cuda_no_kernel_image",
    }
)
"""The codes of an `Unable` that no later check on the same device would escape."""


class Check(Struct, Generic[P], frozen=True, kw_only=True):
    """
    The declaration at the foot of every check module.

    Attributes:
        summary: One line for ``hpcverify checks`` and for the report.
        measure: Yields what it finds; raises `Skip` or `Unable`; anything else
            that it raises is a bug and becomes ERROR `crashed`.
        applies: Raises `Skip` where *measure* would, before it loads anything, so that
            the run does not wait for the devices to settle.
        params: The type of the second argument of *measure*; `Params` has nothing to
            set.
        demand: Lists the limits that its parameters are on a node of this name, where a site
            needs more than our defaults.
        metrics: What it measures, by name or by pattern with ``*``, with the default limits.
        finding_rules: What each code of its findings means.
        placement: Where it runs, and with which other checks.
        timeout: Seconds after which a worker is ended, whatever the parameters.
        estimate: The seconds that *measure* takes at most on a healthy part of this node
            by its parameters, without the start of Python, torch, CUDA or NCCL. A worker
            that takes several times as long is ended. It runs in the engine: it
            computes, and reads nothing.
        observe: Makes measurements and findings from the samples taken while *measure* ran.
        maturity: A check in beta runs and reports, and never quarantines.
        reconcile: Judges the answers of all devices together, as by a vote; what it
            yields replaces the numbers and the facts.
        selftest: Injects faults into the check, on the device of the context, and
            yields the outcome of each.
        only_named: Whether an entry ``*`` of a suite leaves it out.
        interpret: Says what a reading means that was taken of the node from outside, as
            by its BMC; *measure* says the same of its own.

    """

    summary: str
    measure: Callable[[Context, P], Iterator[CheckItem]]
    params: type[P] = Params  # type: ignore[assignment]
    demand: Callable[[P, str], Iterator[Rule]] | None = None
    metrics: Mapping[str, Metric] = {}
    finding_rules: Mapping[str, FindingRule] = {}
    placement: Placement = Placement.DEVICES
    timeout: float = 300.0
    estimate: Callable[[Context, P], float] | None = None
    observe: Callable[[Watch, Context, P], Iterator[CheckItem]] | None = None
    maturity: Maturity = Maturity.STABLE
    only_named: bool = False
    applies: Callable[[Context], None] | None = None
    reconcile: Callable[[Sequence[JudgedItem], Inventory], Iterator[JudgedItem]] | None = None
    selftest: Callable[[Context], Iterator[Trial]] | None = None
    interpret: Callable[[Any, Context, P], Iterator[CheckItem]] | None = None

    @property
    def rules(self) -> dict[str, Rule]:
        """The default limits by name or pattern; suites and sites override."""
        declared = self.metrics.items()
        return {name or own: rule for own, m in declared for name, rule in m.limits.items()}

    def find_metric(self, name: str) -> Metric | None:
        """Find the metric for *name*; for a pattern, the first of those that it may cover."""
        if name in self.metrics:
            return self.metrics[name]
        named = (m for p, m in self.metrics.items() if matches(name, p) or matches(p, name))
        return next(named, None)


def judge(result: Result, inventory: Inventory) -> Result:
    """
    Judge *result* by its own limits and rulings; its shortfalls are errors.

    Its faults are the worst first. The worst verdict counts, and the reason lists every
    fault that has it. After a PASS the reason has what passes and still has a remedy.
    """
    faults = _list_faults(result, inventory)
    verdict = max((c.verdict for c in faults), default=Verdict.PASS)
    worst = [c for c in faults if c.verdict is verdict]
    passed = verdict is Verdict.PASS
    return replace(
        result,
        faults=tuple(faults),
        verdict=verdict,
        reason="; ".join(write_clauses(worst, inventory.recall(result.findings))),
        cause=next((c.cause for c in worst if c.cause), Cause.NONE),
        remedy=Remedy.NONE if passed else max((c.remedy for c in worst), key=[*Remedy].index),
    )


def add_faults(result: Result, inventory: Inventory) -> Result:
    """Return *result* with its faults; its verdict stays, as that of a check that did not run."""
    return replace(result, faults=tuple(_list_faults(result, inventory)))


def _list_faults(result: Result, inventory: Inventory) -> list[Fault]:
    """List what is wrong by the limits, the rulings and the shortfalls of *result*."""
    if result.verdict is Verdict.SKIP:
        skipped = make_result_fault(result, Verdict.ERROR, Remedy.FIX_CONFIGURATION)
        return [skipped] if result.required else []
    judged = (_judge_findings(result), _judge_shortfalls(result, inventory))
    made = chain(*judged, _judge_measurements(result))
    gravest = nlargest(MAX_FAULTS, made, key=make_severity_key)
    parts = [inventory.find_part(fault.part_id) for fault in gravest]
    return [replace(c, part_kind=p.kind if p else "") for c, p in zip(gravest, parts, strict=True)]


def make_result_fault(result: Result, verdict: Verdict, remedy: Remedy) -> Fault:
    """Make the fault of the node whose text is the reason of *result*."""
    return Fault(
        kind=FaultKind.SHORTFALL,
        part_id="node",
        check=result.check,
        code=result.cause.value,
        text=result.reason,
        verdict=verdict,
        remedy=remedy,
        cause=result.cause,
        distance=0.0,
    )


class LimitIndex:
    """
    The limits of a result, to find those that apply to a measurement.

    A plain name is looked up; only patterns are compared, once with each name.
    """

    def __init__(self, limits: Iterable[Limit]) -> None:
        self._limits = tuple(limits)
        self._places: dict[tuple[str, str], list[int]] = {}
        for place, limit in enumerate(self._limits):
            self._places.setdefault((limit.name, limit.part_id), []).append(place)
        self._patterns = [n for n in dict.fromkeys(x.name for x in self._limits) if is_pattern(n)]
        self._names: dict[str, tuple[str, ...]] = {}

    def find(self, item: Measurement) -> list[Limit]:
        """Find the limits that apply to *item*, in their order."""
        if item.name not in self._names:
            alike = (pattern for pattern in self._patterns if matches(item.name, pattern))
            self._names[item.name] = tuple(dict.fromkeys((item.name, *alike)))
        keys = product(self._names[item.name], {"", item.part_id})
        return [self._limits[p] for p in sorted(chain(*(self._places.get(k, ()) for k in keys)))]

    def list_unmet(self, measurements: Iterable[Measurement]) -> list[Limit]:
        """List the limits that apply to none of *measurements*."""
        met = {limit for item in measurements for limit in self.find(item)}
        return [limit for limit in self._limits if limit not in met]

    def count_comparisons(self, measurements: Collection[Measurement]) -> int:
        """Bound the comparisons that it takes to judge *measurements*, without making them."""
        names = {item.name for item in measurements}
        patterned = sum(is_pattern(limit.name) for limit in self._limits)
        keys = ((item.name, part_id) for item in measurements for part_id in {"", item.part_id})
        own = sum(len(self._places.get(key, ())) for key in keys)
        return own + len(self._patterns) * len(names) + patterned * len(measurements)


def may_cover(pattern: str, declared: str) -> bool:
    """
    Whether *pattern* may match a name that is *declared*, perhaps by a pattern too.

    The ``*`` of what is declared stands for a word, as that of ``*.spread``: no dot.
    """
    return _may_cover(re.sub(r"\[[^]]*\]", "?", pattern), declared)


def _may_cover(pattern: str, declared: str) -> bool:
    if not pattern or not declared:
        return not (pattern or declared).strip("*")
    first, rest = pattern[0], pattern[1:]
    if first == "*":
        return _may_cover(rest, declared) or _may_cover(pattern, declared[1:])
    if declared[0] == "*":
        return _may_cover(pattern, declared[1:]) or (first != "." and _may_cover(rest, declared))
    return first in ("?", declared[0]) and _may_cover(rest, declared[1:])


@lru_cache(maxsize=MAX_CACHED_NAMES)
def matches(name: str, pattern: str) -> bool:
    """Whether *pattern*, which may contain ``*``, matches *name*."""
    # Compiling every plain name as a pattern takes longer than reading eight GPUs.
    return name == pattern or (is_pattern(pattern) and fnmatchcase(name, pattern))


def _judge_findings(result: Result) -> Iterator[Fault]:
    # A rank that reported why it was lost needs no other report: that others waited is not a cause.
    explained = {shortfall.part_id for shortfall in result.shortfalls}
    for finding in result.findings:
        if finding.code == RANK_LOST_CODE and finding.part_id in explained:
            continue
        known = result.rulings.get(finding.code)
        ruling = known or FindingRule(Verdict.ERROR, Remedy.FIX_CHECKER, Cause.CHECKER)
        if ruling.verdict > Verdict.PASS or ruling.remedy is not Remedy.NONE:
            yield Fault(
                kind=FaultKind.FINDING,
                part_id=finding.part_id,
                check=result.check,
                code=finding.code,
                text=finding.text
                if known
                else f"no ruling on finding {finding.code!r}: {finding.text}",
                verdict=ruling.verdict,
                remedy=ruling.remedy,
                cause=ruling.cause,
                conclusive=ruling.conclusive,
                shared=ruling.shared,
                evidence=finding.evidence,
                fix=finding.fix,
            )


def _judge_shortfalls(result: Result, inventory: Inventory) -> Iterator[Fault]:
    devices = {device.part for device in inventory.devices}
    explained = {
        finding.code
        for finding in result.findings
        if finding.code in result.rulings and result.rulings[finding.code].verdict >= Verdict.ERROR
    }
    for shortfall in result.shortfalls:
        # It may be of a worker without a part, such as the telemetry, or of a part that is gone.
        gone = shortfall.code and shortfall.part_id != TELEMETRY_WORKER
        named = inventory.find_part(shortfall.part_id) or shortfall.part_id in devices
        part_id = shortfall.part_id if named or gone else "node"
        if part_id == "node" and shortfall.code in explained:
            continue  # the finding names the part
        yield Fault(
            kind=FaultKind.SHORTFALL,
            part_id=part_id,
            check=result.check,
            code=shortfall.code or shortfall.cause.value,
            text=shortfall.reason,
            verdict=Verdict.ERROR,
            remedy=shortfall.remedy,
            cause=shortfall.cause,
            shared=bool(shortfall.code),
            fix=shortfall.fix,
        )


def _judge_measurements(result: Result) -> Iterator[Fault]:
    limits = LimitIndex(result.limits)
    for item in result.measurements:
        for limit in limits.find(item):
            if limit.noisy or not limit.admits(item.value):
                yield _judge_measurement(item, limit, result.check)
    # A limit without a measurement must not pass silently.
    for limit in () if result.shortfalls else limits.list_unmet(result.measurements):
        yield Fault(
            kind=FaultKind.UNMEASURED,
            part_id=limit.part_id or "node",
            check=result.check,
            code=limit.name,
            text=f"nothing was measured for the limit on {limit.name} ({limit.source}); "
            "if that is right, the limit is optional = true",
            verdict=Verdict.ERROR,
            remedy=Remedy.FIX_CHECKER,
            cause=Cause.UNMEASURED,
            limit=limit,
            distance=0.0,
        )


def _judge_measurement(item: Measurement, limit: Limit, check: str) -> Fault:
    kind, verdict = FaultKind.OUTSIDE, limit.otherwise
    cause, remedy = limit.cause, limit.remedy
    below = limit.low is not None and (item.value is None or item.value < limit.low)
    side: Side = "low" if below else "high"
    bound, sign = (limit.low, "<") if below else (limit.high, ">")
    text = f"{_format_comparison(item, sign, bound)} ({limit.source})"
    if limit.noisy:
        side, text = "neither", f"{format_quantity(item.value, item.unit)}: {limit.noisy}"
        could_fail = verdict is Verdict.FAIL
        kind, verdict = FaultKind.NOISY, Verdict.ERROR if could_fail else Verdict.WARN
        cause, remedy = Cause.NOISY if could_fail else Cause.NONE, Remedy.RERUN
    margin = 0.0 if limit.noisy else compute_margin(item, limit)
    return Fault(
        kind=kind,
        part_id=item.part_id,
        check=check,
        code=item.name,
        text=f"{item.name} {text}",
        verdict=verdict,
        remedy=remedy,
        cause=cause,
        conclusive=limit.conclusive and not limit.noisy,
        value=item.value,
        unit=item.unit,
        limit=limit,
        side=side,
        distance=None if math.isinf(margin) else -margin,
    )


def compute_margin(item: Measurement, limit: Limit) -> float:
    """
    Compute how far a value is inside its limit, as a share of the limit.

    Negative past the limit; a value that is not a number is infinitely far past it.
    """
    if item.value is None:
        return -math.inf
    rooms = [
        *([] if limit.low is None else [(item.value - limit.low, limit.low)]),
        *([] if limit.high is None else [(limit.high - item.value, limit.high)]),
    ]
    return min((room / (abs(at) or 1.0) for room, at in rooms), default=math.inf)


def write_clauses(faults: Iterable[Fault], inventory: Inventory) -> list[str]:
    """Write each of *faults* with its part; parts with the same one share a clause."""
    groups = group_alike(faults)
    named = ((_name_parts(alike, inventory), alike[0].text) for alike in groups)
    return [f"{names}: {text}" if names else text for names, text in named]


def group_alike(faults: Iterable[Fault]) -> list[list[Fault]]:
    """Group *faults* that several parts share; one about a number stays alone."""
    groups: dict[tuple[str, ...], list[Fault]] = {}
    for fault in faults:
        own = fault.part_id if fault.value is not None else ""
        key = (fault.kind, fault.code, fault.text, own)
        groups.setdefault(key, []).append(fault)
    return list(groups.values())


def _name_parts(faults: Sequence[Fault], inventory: Inventory) -> str:
    """Name the parts of *faults*, unless no other could have fallen short."""
    first = faults[0]
    ids = list(dict.fromkeys(fault.part_id for fault in faults))
    siblings = max(len(inventory.devices), len(inventory.of_kind(first.part_kind)))
    falls_alone = first.kind is FaultKind.SHORTFALL and (ids == ["node"] or siblings <= 1)
    if first.kind is FaultKind.UNMEASURED or falls_alone:
        return ""
    return inventory.format_names(ids)


def make_severity_key(fault: Fault) -> tuple[Verdict, int, float]:
    """Make the key by which every output orders faults; the gravest has the highest."""
    distance = math.inf if fault.distance is None else fault.distance
    return severity_sort_key(fault.verdict, fault.remedy, distance)


def severity_sort_key(
    verdict: Verdict, remedy: Remedy, distance: float = 0.0
) -> tuple[Verdict, int, float]:
    """Make the key of `make_severity_key` from its three values."""
    return verdict, list(Remedy).index(remedy), distance


FULL_DIGITS_FROM, FULL_DIGITS_BELOW = 1e4, 1e9
"""Between these, a number is clearer in full than with an exponent."""


def format_quantity(value: float | None, unit: str) -> str:
    """Format *value* to four digits or to the unit, with its unit; a ratio as % or x."""
    if value is None:
        return f"not a number {PRINTED_UNITS.get(unit, unit)}".rstrip()
    if unit == "ratio":
        return f"{value * 100:.4g} %" if abs(value) <= 1 else f"{value:.4g}x"
    in_full = FULL_DIGITS_FROM <= abs(value) < FULL_DIGITS_BELOW
    return f"{value:{',.0f' if in_full else '.4g'}} {PRINTED_UNITS.get(unit, unit)}".rstrip()


def _format_comparison(item: Measurement, sign: str, bound: float | None) -> str:
    """Format the value of *item* and its *bound*, both in the unit that suits the bound."""
    value, unit = item.value, scale_unit(bound or item.value or 0.0, item.unit)[1]
    if unit != item.unit:
        value, bound = (n and convert_unit(n, item.unit, unit) for n in (value, bound))
    if format_quantity(value, unit) == format_quantity(bound, unit):
        sign = {"<": "just below", ">": "just above"}[sign]
    return f"{format_quantity(value, unit)} {sign} {format_bound(bound, unit)}"


def format_bound(bound: float | None, unit: str) -> str:
    """Format the bound of a value in *unit*, without the unit that the value already has."""
    return format_quantity(bound, unit if unit == "ratio" else "")
