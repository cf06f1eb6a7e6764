"""
What we know about a node: runs, results, measurements, parts.

All values are frozen and nothing heavy is imported, so that the Slurm prolog can read a
stored run without importing torch or pandas. The JSON form of `Run` is a contract:
``docs/reference/schema/run.json`` describes it, and a test compares the two.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import datetime
from enum import Enum, StrEnum
from functools import cached_property, total_ordering
from typing import Any, Literal, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import force_setattr, replace

T = TypeVar("T")
SCHEMA_VERSION = 1
"""The version of the run document that this code writes: a field that is added keeps it."""
FABRIC_SUITE = "fabric"
"""The suite of what is tested between nodes: none of them can show or clear it by itself."""
COLLECTIVES_CHECK = "collectives"
"""The check of that suite."""
Side = Literal["low", "high", "neither"]
"""Which values of a metric are worse among like parts; a difference may also have no meaning."""


@total_ordering
class Verdict(Enum):
    """
    The verdict of one check, worst last, so that ``max()`` is the worst.

    FAIL: the hardware is bad. ERROR: the hardware could not be judged. A FAIL may
    quarantine a node, an ERROR calls an operator: never mix them.
    """

    PASS = "pass"  # noqa: S105 - no password
    SKIP = "skip"
    WARN = "warn"
    ERROR = "error"
    FAIL = "fail"

    def __init__(self, _word: str) -> None:
        self.severity = len(type(self).__members__)

    def __lt__(self, other: object) -> bool:
        """Order by severity."""
        if not isinstance(other, Verdict):
            return NotImplemented
        return self.severity < other.severity


class Cause(StrEnum):
    """Why a result is ERROR or SKIP: a closed list, so that scripts can act on it."""

    NONE = ""
    BUSY = "busy"
    """Another program holds the part."""
    CHECKER = "checker"
    """The check found itself unsound, as a canary that was not noticed."""
    CRASHED = "crashed"
    """The worker died, or the check raised what it does not know."""
    DENIED = "denied"
    """A permission is missing."""
    HUNG = "hung"
    """The worker could not be ended."""
    INTERRUPTED = "interrupted"
    """The run was asked to stop."""
    MISCONFIGURED = "misconfigured"
    """The node's software is at odds with itself, as a driver with its library."""
    MISSING = "missing"
    """A tool or a library is not installed, or a directory is gone."""
    NOISY = "noisy"
    """The metric spreads too widely to be judged."""
    NO_RESOURCES = "no_resources"
    """The node had no process, thread, file descriptor or memory left for us."""
    NO_SPACE = "no_space"
    """Too little disk or memory is free to measure."""
    NOT_APPLICABLE = "not_applicable"
    """The node has no such part (SKIP)."""
    NOT_OBSERVABLE = "not_observable"
    """The node has the part but no sensor for this (SKIP)."""
    PARTIAL_VIEW = "partial_view"
    """A cgroup or an environment variable hides parts from us."""
    TIMEOUT = "timeout"
    """The deadline passed."""
    UNMEASURED = "unmeasured"
    """A limit stands for which the check measured nothing."""


class Remedy(StrEnum):
    """What to do about a result: a closed list, mildest first."""

    NONE = "none"
    RERUN = "rerun"
    FIX_CHECKER = "fix_checker"
    FIX_CONFIGURATION = "fix_configuration"
    INSPECT = "inspect"
    RESET_GPU = "reset_gpu"
    REBOOT = "reboot"
    REPLACE = "replace"
    CONTACT_VENDOR = "contact_vendor"


class Source(StrEnum):
    """Who found a fault. Only a run that the controller ordered can confirm or clear one."""

    RUN = "run"
    PEERS = "peers"
    """The measurements of like parts."""
    PAST = "past"
    """The earlier measurements of the part."""
    JOBS = "jobs"
    """How users' jobs ended."""
    BMC = "bmc"
    """A round of the controller over the BMCs, whose runs have a suite of this name. They are no
    word from the node itself."""
    FABRIC = "fabric"
    """Tests between nodes."""


class Maturity(StrEnum):
    """How far a check is trusted: one in `BETA` runs, shows and never quarantines."""

    BETA = "beta"
    STABLE = "stable"


LARGEST_VALUE = 1e30
"""No part of a node has a figure beyond this; the square of its square is still a number."""


class Measurement(Struct, frozen=True):
    """
    One number that a check read off one part of a node.

    *part_id* is the id of the part (`Part.id`), or "node". A value that is not a number
    up to `LARGEST_VALUE` is kept as None, which is outside every limit.
    """

    name: str
    value: float | None
    unit: str = ""
    part_id: str = "node"

    def __post_init__(self) -> None:
        """Fold NaN, the infinities and absurd numbers, whose squares overflow, into None."""
        if self.value is not None and not abs(self.value) <= LARGEST_VALUE:
            force_setattr(self, "value", None)


class Finding(Struct, frozen=True):
    """What is not a number: a lost GPU, a changed part, a corrupted word."""

    code: str
    part_id: str
    text: str
    evidence: dict[str, str] = {}
    """More facts for people, by name."""
    data: dict[str, Any] = {}
    """Facts that other checks read, as JSON: no decision depends on the wording of a text."""
    fix: str = ""
    """The step that undoes it, such as an exact command; empty if none is known."""

    def data_as(self, kind: type[T]) -> T:
        """
        Read *data* as a *kind* of struct.

        Raises:
            msgspec.ValidationError: The data are of another kind.

        """
        return msgspec.convert(self.data, kind)


class Series(Struct, frozen=True):
    """What was sampled under load: *t* in seconds since the check began."""

    name: str
    unit: str
    part_id: str
    t: tuple[float, ...]
    values: tuple[float, ...]


class PairRates(Struct, frozen=True):
    """Rates between parts: a row sends to a column; a part does not send to itself."""

    unit: str
    part_ids: tuple[str, ...]
    rates: tuple[tuple[float | None, ...], ...]


class Coverage(Struct, frozen=True):
    """What a check exercised, in words and numbers: never "no fault"."""

    part_id: str
    text: str
    pairs: PairRates | None = None
    """The rates behind *text*, if it is about pairs of parts."""


class CarryOver(Struct, frozen=True):
    """
    What a check wants to know again in the node's next run: a cursor, a counter.

    It comes back in `Context.carry_overs`, whatever the suite of that run. What is not
    in a document that was written is not remembered, so that nothing is missed.
    """

    name: str
    value: str
    part_id: str = "node"


class Fact(Struct, frozen=True):
    """
    A version or a setting that like nodes have in common, such as InfoROM G520.0200.00.05.

    *name* says what it is on any node, *part_id* which part has it. A fleet compares facts
    between nodes, so nothing that is one node's own, as a serial number, is one.
    """

    name: str
    value: str
    part_id: str = "node"


CheckItem = Measurement | Finding | Series | Coverage | CarryOver | Fact
"""Everything that a check may yield."""


class Limit(Struct, frozen=True):
    """
    The range in which a measured value is healthy, both ends included.

    *name* is that of a measurement, or a pattern with ``*``; *part_id* is the part
    that it holds for, all of them when empty; *source* says where it comes from.
    """

    name: str
    low: float | None = None
    high: float | None = None
    otherwise: Verdict = Verdict.FAIL
    source: str = ""
    part_id: str = ""
    remedy: Remedy = Remedy.INSPECT
    cause: Cause = Cause.NONE
    noisy: str = ""
    """Why the limit cannot be held against anything, if it cannot."""
    conclusive: bool = False
    """Whether a rerun cannot take back what breaks it."""

    def admits(self, value: float | None) -> bool:
        """Whether *value* is healthy; what is not a number never is."""
        return (
            value is not None
            and (self.low is None or value >= self.low)
            and (self.high is None or value <= self.high)
        )


class FindingRule(Struct, frozen=True):
    """What a finding's code means: data, like a limit."""

    verdict: Verdict
    remedy: Remedy = Remedy.INSPECT
    cause: Cause = Cause.NONE
    """Why we could not tell, if the verdict is ERROR."""
    conclusive: bool = False
    """Whether no rerun can take back a FAIL: a word was wrong, a GPU was lost, an event
    has been. What one would see again anyway, as a missing disk, needs it not."""
    shared: bool = False
    """Whether every check means the same cause by this code, as by a lost GPU: several
    that meet it on one part are reported as one."""


class Part(Struct, frozen=True):
    """
    A piece of a node, named by what survives a reseat.

    *id* is a UUID, a serial number or an address and never an index; *label* is
    what a person calls it today; *facts* are compared from run to run.
    """

    kind: str
    id: str
    label: str
    facts: dict[str, str] = {}

    @property
    def aliases(self) -> tuple[str, ...]:
        """What people call it: its id, and its label, whole or up to " ("."""
        return self.id, self.label, self.label.partition(" (")[0]


class Device(Struct, frozen=True):
    """What a worker computes on: *part* of the inventory, *kind* cpu or cuda."""

    kind: str
    part: str
    label: str


class Inventory(Struct, frozen=True, dict=True):  # the dict is for what is cached
    """What a node is made of, what hides parts of it, and what it cannot show."""

    parts: tuple[Part, ...] = ()
    devices: tuple[Device, ...] = ()
    problems: tuple[Finding, ...] = ()
    """What kept us from seeing parts, as a driver that is not loaded."""
    sensors: tuple[str, ...] = ()
    """The telemetry that this node can give, by the name of the series."""

    def find_part(self, part_id: str) -> Part | None:
        """Find the part whose id is *part_id*."""
        places = self._places.get(part_id)
        return self.parts[places[0]] if places else None

    def find_label(self, part_id: str) -> str:
        """Look up what a person calls the part *part_id*; its id if it is no part."""
        part = self.find_part(part_id)
        return part.label if part else part_id

    def list_aliases(self, part_id: str) -> tuple[str, ...]:
        """List what people call the part *part_id*, as `Part.aliases`; its id if it is no part."""
        part = self.find_part(part_id)
        return part.aliases if part else (part_id,)

    def format_names(self, ids: Collection[str]) -> str:
        """Write `list_names` of *ids* in one line."""
        return ", ".join(self.list_names(ids))

    def list_names(self, ids: Collection[str]) -> list[str]:
        """
        List what a person calls the parts *ids*, in the order of the inventory.

        All parts of a kind are one name, as in "all 8 GPUs".
        """
        places = {place for part_id in ids for place in self._places.get(part_id, ())}
        by_kind: dict[str, list[Part]] = {}
        for place in sorted(places):
            part = self.parts[place]
            by_kind.setdefault(part.kind, []).append(part)
        names: list[str] = []
        for kind in sorted(by_kind, key=self._kind_ranks.__getitem__):
            named, count = by_kind[kind], len(self.of_kind(kind))
            every = kind in PLURAL_NAMES and len(named) == count >= MIN_PARTS_FOR_ALL
            names += [f"all {count} {PLURAL_NAMES[kind]}"] if every else [p.label for p in named]
        return [*names, *(i for i in dict.fromkeys(ids) if i not in self._places)]

    def recall(self, findings: Iterable[Finding]) -> Inventory:
        """
        Call the parts that *findings* remember from before what they were called then.

        Those that are gone come last, with the facts that were known of them.
        """
        was = {f.part_id: f.evidence for f in findings if FORMER_LABEL in f.evidence}
        if not was:
            return self
        here = [
            Part(p.kind, p.id, was[p.id][FORMER_LABEL], was[p.id] | p.facts) if p.id in was else p
            for p in self.parts
        ]
        gone = was.keys() - {part.id for part in self.parts}
        lost = [
            Part("", part_id, was[part_id][FORMER_LABEL], was[part_id]) for part_id in sorted(gone)
        ]
        return replace(self, parts=(*here, *lost))

    def of_kind(self, kind: str) -> tuple[Part, ...]:
        """List the parts of one *kind*: cpu, memory, gpu, nic, disk, system."""
        return self._by_kind.get(kind, ())

    @cached_property
    def _places(self) -> dict[str, list[int]]:
        """Where each id stands in `parts`: more than once if a document repeats it."""
        places: dict[str, list[int]] = {}
        for place, part in enumerate(self.parts):
            places.setdefault(part.id, []).append(place)
        return places

    @cached_property
    def _by_kind(self) -> dict[str, tuple[Part, ...]]:
        """The parts of each kind, the kinds in the order of their first part."""
        by_kind: dict[str, list[Part]] = {}
        for part in self.parts:
            by_kind.setdefault(part.kind, []).append(part)
        return {kind: tuple(alike) for kind, alike in by_kind.items()}

    @cached_property
    def _kind_ranks(self) -> dict[str, int]:
        return {kind: rank for rank, kind in enumerate(self._by_kind)}


VENDOR_FACT = "vendor"
"""The fact that names the vendor of a GPU; one without it is NVIDIA's."""
FORMER_LABEL = "was"
"""The evidence with the former name of a part that is gone, or that only its address
identifies. The evidence also has its former facts."""
MIN_PARTS_FOR_ALL = 3
"""Parts of a kind from which "all of them" is clearer than their names."""


PLURAL_NAMES = {"cpu": "CPUs", "dimm": "DIMMs", "disk": "disks", "gpu": "GPUs", "nic": "NICs"}
"""What several parts of a kind are called."""


class Shortfall(Struct, frozen=True):
    """What kept a part from being verified, which no limit can undo."""

    part_id: str
    reason: str
    """In words, without the name of the part."""
    cause: Cause
    remedy: Remedy = Remedy.RERUN
    code: str = ""
    """The code of the shared finding that is the cause, if there is one."""
    fix: str = ""
    """The exact step that undoes it; empty if none is known."""


class FaultKind(StrEnum):
    """What a fault is about."""

    FINDING = "finding"
    """A finding whose rule is not merely to report it."""
    OUTSIDE = "outside"
    """A value outside its limit."""
    NOISY = "noisy"
    """A value whose limit is too noisy to judge by."""
    UNMEASURED = "unmeasured"
    """A limit for which nothing was measured."""
    SHORTFALL = "shortfall"
    """What kept a check from judging a part, or from running at all."""


class Fault(Struct, frozen=True, kw_only=True):
    """
    One thing that the judge found wrong with one part, as data.

    It is written once, when a result is judged. What shows, groups or acts on a result reads
    it, and compares no value again.
    """

    kind: FaultKind
    part_id: str
    part_kind: str = ""
    """The `Part.kind` of the part, such as "gpu"; empty if it is not in the inventory."""
    check: str
    """The check that found it; empty for a fault of the run itself."""
    code: str
    """The metric (`OUTSIDE`, `NOISY`, `UNMEASURED`), or else the code of the finding; of a
    shortfall without a code its cause."""
    also: tuple[str, ...] = ()
    """Other checks that found the same cause, once the faults of a run are merged."""
    text: str
    """What was found, without the name of the part."""
    verdict: Verdict
    remedy: Remedy = Remedy.NONE
    cause: Cause = Cause.NONE
    conclusive: bool = False
    """Whether a rerun cannot undo it."""
    value: float | None = None
    """The value, in *unit*; null if it is not a number, or if there is none."""
    unit: str = ""
    limit: Limit | None = None
    """The limit, for a fault about a metric; its bounds are in *unit*."""
    side: Side = "neither"
    """Which bound of its limit the value is past."""
    distance: float | None = None
    """How far the value is past its limit, as a share of the limit. Null: there is no such share,
    and the fault ranks above any that has one."""
    shared: bool = False
    """Whether every check means the same cause by this code, as by a lost GPU."""
    evidence: dict[str, str] = {}
    """That of the finding."""
    fix: str = ""
    """That of the finding."""

    @property
    def checks(self) -> tuple[str, ...]:
        """All checks that found it."""
        return tuple(filter(None, (self.check, *self.also)))


class Result(Struct, frozen=True, kw_only=True):
    """Everything worth keeping about one check in one round, over all its devices."""

    check: str
    round: int = 1
    """In which round of the run, of a suite that goes through its checks again."""
    verdict: Verdict
    reason: str = ""
    """The faults that decide, in one line."""
    cause: Cause = Cause.NONE
    remedy: Remedy = Remedy.NONE
    faults: tuple[Fault, ...] = ()
    """Everything that the judge found wrong, the worst first; after a PASS only remarks, whose
    verdict is PASS."""
    maturity: Maturity = Maturity.STABLE
    required: bool = False
    seconds: float = 0.0
    coverage: tuple[Coverage, ...] = ()
    measurements: tuple[Measurement, ...] = ()
    findings: tuple[Finding, ...] = ()
    series: tuple[Series, ...] = ()
    marks: tuple[CarryOver, ...] = ()
    facts: tuple[Fact, ...] = ()
    limits: tuple[Limit, ...] = ()
    rulings: dict[str, FindingRule] = {}
    """What the codes of the findings meant when this was judged."""
    shortfalls: tuple[Shortfall, ...] = ()
    params: dict[str, Any] = {}
    """The parameters that were in force, to repeat the check."""


class Run(Struct, frozen=True, kw_only=True):
    """One verification of one node: the document that is written and kept."""

    schema: int = SCHEMA_VERSION
    id: str
    node: str
    suite: str
    chosen: tuple[str, ...] = ()
    """The checks that were to run instead of the whole suite, if so."""
    token: str = ""
    started: datetime
    seconds: float
    verdict: Verdict
    complete: bool
    """Whether every check had its turn, in the rounds that were not left out."""
    rounds: int = 1
    """How often the suite was to go through its checks."""
    left_out: str = ""
    """Why rounds of them were left out, or the last was cut short, if so."""
    passive: bool = False
    """Whether nothing loaded the node, since each check that could have was skipped or
    is not in the suite: such a run is never a full pass."""
    inventory: Inventory
    """As it was found when the run began."""
    results: tuple[Result, ...]
    versions: dict[str, str] = {}


def verdict_of(results: tuple[Result, ...]) -> Verdict:
    """
    Return the verdict of *results*: the worst of them, after two steps.

    A check in beta can do no more than warn. Skips are left out: the node has no such
    part, or no such sensor, and what it has was verified. But the skip of a check
    that the suite marks as required counts as ERROR. With nothing left we could not
    tell.
    """
    verdicts = map(effective_verdict, results)
    return max((v for v in verdicts if v is not Verdict.SKIP), default=Verdict.ERROR)


def effective_verdict(result: Result) -> Verdict:
    """
    Return the verdict that *result* counts as, for the node and on every page.

    The skip of a required check is an ERROR; a check in beta can do no more than warn.
    """
    if result.required and result.verdict is Verdict.SKIP:
        return Verdict.ERROR
    return cap_beta_verdict(result.verdict, result.maturity)


def cap_beta_verdict(verdict: Verdict, maturity: Maturity) -> Verdict:
    """Return what the *verdict* of a check of this *maturity* counts as."""
    young = maturity is Maturity.BETA and verdict is Verdict.FAIL
    return Verdict.WARN if young else verdict
