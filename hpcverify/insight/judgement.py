"""
What peers and the past say of the fleet: the judgement of the newest night, in a file.

Only what stood out on two nights on which it ran is an outlier; what did so on one is kept as
*unconfirmed* until the part runs again. The file ``judgement.json`` in the state directory is
replaced each night. `hpcverify nodes` and the page of the fleet read it.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import date
from math import isfinite
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import astuple, replace

from hpcverify.errors import StoreError
from hpcverify.insight.node_names import fold_names, make_natural_key
from hpcverify.model import Verdict
from hpcverify.peers.distribution import Distribution
from hpcverify.peers.floors import Worse
from hpcverify.records.documents import write_bytes
from hpcverify.trends.fleet import STEP
from hpcverify.units import format_count, format_percent

JUDGEMENT_NAME = "judgement.json"
MAX_HOSTS_CHARACTERS, NAMED_NODES = 60, 3
"""A longer list of nodes is cut in a table and in a line; JSON has all."""


class JudgedOutlier(Struct, frozen=True, kw_only=True):
    """Who is worse than its peers in one metric, and since when."""

    level: str
    """What is named: part, node, or the field of a group, as switch."""
    name: str
    """As ``n17 GPU 3``."""
    node: str = ""
    """Empty for a group."""
    nodes: tuple[str, ...] = ()
    """All that it is about: those of a group, too."""
    suite: str = ""
    metric: str
    """With its check, suite and model."""
    verdict: Verdict
    distance: float
    """From its peers, relative: 0.04 is 4 % worse."""
    cause: str = ""
    since: date
    """The first night."""
    last: date
    """The newest night on which it ran."""
    nights: int = 1
    """On so many nights it stood out, all of those on which it ran since then."""
    accused: bool = False
    """Whether it became evidence: a run that makes the node a suspect."""


class JudgedChange(Struct, frozen=True, kw_only=True):
    """A part that is worse than it was, or many parts that changed alike."""

    node: str = ""
    """Empty if it is about several."""
    nodes: tuple[str, ...] = ()
    """Set if it is about several."""
    part: str
    """As GPU 3, or GPU 0-3; of several nodes, how many parts."""
    metric: str
    verdict: Verdict
    kind: str
    """step or trend."""
    size: float
    """Relative to its past; positive is worse."""
    before: float
    after: float
    unit: str
    day: date
    """When the step was, or the trend's last run."""
    why: str = ""
    """When a limit is crossed, and what changed with it: a driver."""

    @property
    def name(self) -> str:
        """The part, the node or the nodes within the fleet; of many nodes, the first ones."""
        if not self.nodes:
            return " ".join(filter(None, [self.node, self.part]))
        hosts = fold_names(self.nodes)
        if len(hosts) > MAX_HOSTS_CHARACTERS:
            first = sorted(self.nodes, key=make_natural_key)[:NAMED_NODES]
            hosts = f"{format_count(len(self.nodes), 'node')} ({', '.join(first)}, ...)"
        return f"{self.part} on {hosts}"


class JudgedMetric(Struct, frozen=True, kw_only=True):
    """What the parts of the fleet reached in one metric, of which all values were read."""

    name: str
    """As in `JudgedOutlier`."""
    unit: str
    worse: Worse
    parts: int
    nodes: int
    median: float
    spread: float | None
    """Robust and relative; None: the parts are too few."""
    distribution: Distribution


class FleetJudgement(Struct, frozen=True, kw_only=True):
    """What was said of a night."""

    night: date
    outliers: tuple[JudgedOutlier, ...] = ()
    """Those that stood out on two nights at least, the worst first."""
    changes: tuple[JudgedChange, ...] = ()
    """Steps and trends to the worse, the largest first."""
    notes: tuple[str, ...] = ()
    """Rollouts, what many parts have in common, and what could not be judged."""
    unconfirmed: tuple[JudgedOutlier, ...] = ()
    """Those that stood out on one night: nothing is said of them yet."""
    metrics: tuple[JudgedMetric, ...] = ()
    """Those with a value far from the median."""
    screened: int = 0
    """Metrics without one."""
    least: str = ""
    """How much worse than its peers a part has to be until it is named, in a sentence."""


def read_judgement(state: Path) -> FleetJudgement | None:
    """
    Read the newest judgement in the state directory *state*; None if there is none.

    Raises:
        StoreError: the file cannot be read, or is damaged.

    """
    path = state / JUDGEMENT_NAME
    try:
        return msgspec.json.decode(path.read_bytes(), type=FleetJudgement)
    except FileNotFoundError:
        return None
    except OSError as exc:
        raise StoreError(f"{path} cannot be read: {exc.strerror}") from exc
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise StoreError(f"{path} is damaged") from exc


def put_judgement_aside(state: Path) -> Path:
    """
    Put the damaged judgement in the state directory *state* aside, and return where it is now.

    Raises:
        StoreError: it cannot be renamed.

    """
    path = state / JUDGEMENT_NAME
    try:
        return path.replace(path.with_suffix(".damaged"))
    except OSError as exc:
        raise StoreError(f"{path} cannot be renamed: {exc.strerror}") from exc


def write_judgement(state: Path, judgement: FleetJudgement) -> None:
    """
    Replace the judgement in the state directory *state*.

    What has a number that JSON cannot hold is left out.

    Raises:
        StoreError: it cannot be written.

    """
    finite = replace(
        judgement,
        outliers=tuple(filter(_is_finite, judgement.outliers)),
        changes=tuple(filter(_is_finite, judgement.changes)),
        unconfirmed=tuple(filter(_is_finite, judgement.unconfirmed)),
        metrics=tuple(filter(_is_finite, judgement.metrics)),
    )
    write_bytes(state / JUDGEMENT_NAME, msgspec.json.encode(finite))


def _is_finite(judged: Struct) -> bool:
    numbers = (value for value in astuple(judged) if isinstance(value, float))
    return all(map(isfinite, numbers))


def keep_judged_nodes(judgement: FleetJudgement, names: Collection[str]) -> FleetJudgement:
    """Keep of *judgement* what is about the nodes called *names*: no notes, which are of all."""

    def keep(found: tuple[JudgedOutlier, ...]) -> tuple[JudgedOutlier, ...]:
        return tuple(one for one in found if not set(names).isdisjoint((one.node, *one.nodes)))

    return replace(
        judgement,
        outliers=keep(judgement.outliers),
        changes=tuple(
            one for one in judgement.changes if not set(names).isdisjoint((one.node, *one.nodes))
        ),
        notes=(),
        unconfirmed=keep(judgement.unconfirmed),
    )


def list_judgement_lines(judgement: FleetJudgement) -> list[str]:
    """Say who is worse than its peers or than it was, in a line each, and what many share."""
    by_name: dict[str, list[JudgedOutlier]] = {}
    for outlier in judgement.outliers:
        by_name.setdefault(outlier.name, []).append(outlier)
    changed: dict[str, list[JudgedChange]] = {}
    for change in judgement.changes:
        changed.setdefault(change.name, []).append(change)
    return [
        *(
            f"peers: {max(one.verdict for one in found).value.upper()} {_describe_outliers(found)}"
            for found in by_name.values()
        ),
        *(f"past: {_describe_changes(found)}" for found in changed.values()),
        *(f"fleet: {note}" for note in judgement.notes),
    ]


def describe_nodes(judgement: FleetJudgement) -> dict[str, str]:
    """Describe each node that is worse than its peers, or than it was, in a few clauses."""
    clauses: dict[str, list[str]] = {}
    for outlier in judgement.outliers:
        if outlier.node:
            clauses.setdefault(outlier.node, []).append(describe_outlier(outlier))
    for change in judgement.changes:
        if change.node:
            clauses.setdefault(change.node, []).append(_describe_changes([change]))
    return {
        node: f"{found[0]} (+{len(found) - 1} more)" if len(found) > 1 else found[0]
        for node, found in clauses.items()
    }


def describe_outlier(outlier: JudgedOutlier, others: str = "") -> str:
    """Say who is worse than its peers, by how much, why and since when."""
    who = outlier.name if outlier.node else f"{outlier.level} {outlier.name}"
    said = f"{who}: {outlier.metric} {format_percent(outlier.distance)} worse than its peers"
    told = [f"{said}{others}", outlier.cause, f"since {outlier.since:%-d %b}"]
    return "; ".join(filter(None, told))


def describe_day(change: JudgedChange) -> str:
    """Say when *change* was."""
    return f"step on {change.day}" if change.kind == STEP else f"trend until {change.day}"


def _describe_outliers(found: list[JudgedOutlier]) -> str:
    """Describe one who is worse, by its worst metric."""
    worst = max(found, key=lambda one: (one.verdict, one.distance))
    return describe_outlier(worst, _count_others(found))


def _describe_changes(found: list[JudgedChange]) -> str:
    worst = max(found, key=lambda one: one.size)
    kind = "since" if worst.kind == STEP else "in a trend until"
    said = f"{worst.name}: {worst.metric} {format_percent(worst.size)} worse than it was"
    told = [f"{said}{_count_others(found)}", f"{kind} {worst.day:%-d %b}", worst.why]
    return "; ".join(filter(None, told))


def _count_others(found: list[JudgedOutlier] | list[JudgedChange]) -> str:
    others = len(found) - 1
    return f" (and in {format_count(others, 'other metric')})" if others else ""
