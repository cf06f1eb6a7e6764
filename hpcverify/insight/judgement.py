"""
What peers and the past say of the fleet: the judgement of the newest night, in a file.

Only what stood out in two of its last ten runs, or more where chance explains two, is an outlier;
what did so in one is kept as *unconfirmed*, however long it takes until the part runs again. The
file ``judgement.json`` in the state directory is replaced each night. `hpcverify nodes` and the
page of the fleet read it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from datetime import date, timedelta
from math import isfinite
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import astuple, replace

from hpcverify.errors import StoreError
from hpcverify.history.screen import PeerMetric
from hpcverify.insight.node_names import fold_names, make_natural_key
from hpcverify.model import MIN_PARTS_FOR_ALL, Source, Verdict
from hpcverify.peers.distribution import Distribution
from hpcverify.peers.fleet import MetricJudgement, PeerOutlier
from hpcverify.peers.screen import ListSummary
from hpcverify.records.documents import write_bytes
from hpcverify.trends.fleet import STEP, PartChange
from hpcverify.units import format_count, format_percent

JUDGEMENT_NAME = "judgement.json"
MAX_LEVELS = 400
"""A node of eight GPUs has some 300 metrics with a worse side; a claim of one node hides none."""
FOLLOWED_RUNS = 10
KNOWN_AFTER, MUCH_WORSE = timedelta(days=30), 1.5
"""An outlier of this age that did not become this much worse is known."""
MAX_HOSTS_CHARACTERS, NAMED_NODES = 60, 3
"""A longer list of nodes is cut in a table and in a line; JSON has all."""


class JudgedOutlier(PeerOutlier, frozen=True, kw_only=True):
    """An outlier of one metric, followed over the nights; its members are not kept."""

    nodes: tuple[str, ...] = ()
    """All that it is about: those of a group, too."""
    suite: str = ""
    metric: str
    """With its check, suite and model."""
    since: date
    """The first night."""
    last: date
    """The newest night on which it ran."""
    shown: tuple[bool, ...] = (True,)
    """Whether it stood out in each of its last runs, up to `FOLLOWED_RUNS`, the newest last."""
    distance_then: float = 0.0
    """Its distance when it was first named."""
    reported: bool = False
    """Whether it became evidence: a run that makes the node a suspect."""

    @property
    def nights(self) -> int:
        """On how many nights it stood out."""
        return sum(self.shown)

    @property
    def title(self) -> str:
        """The part or the node within the fleet, or the place or version with its nodes."""
        if self.level in ("part", "node"):
            return self.name
        hosts = f" ({_shorten_hosts(self.nodes)})" if self.nodes else ""
        return f"{self.level} {self.name}{hosts}"


Judged = TypeVar("Judged", bound=JudgedOutlier | PartChange)
Entry = TypeVar("Entry")


def name_judged(entry: JudgedOutlier | PartChange) -> tuple[str, str]:
    """Name the node that *entry* is about, and the part, the node or the nodes in the fleet."""
    if isinstance(entry, JudgedOutlier):
        return entry.node, entry.title
    if entry.nodes:
        return entry.node, f"{entry.part} on {_shorten_hosts(entry.nodes)}"
    return entry.node, " ".join(filter(None, [entry.node, entry.part]))


def group_by_part(
    judged: Iterable[Entry], name: Callable[[Entry], tuple[str, str]]
) -> dict[str, list[Entry]]:
    """
    Put together what was found about one part, node or place, in the order of the first.

    *name* gives the node, if it is about one, and the title. If many parts of one node are
    listed, the node has one entry.
    """
    entries = [(*name(entry), entry) for entry in judged]
    titles: dict[str, set[str]] = {}
    for node, title, _ in entries:
        titles.setdefault(node, set()).add(title)
    groups: dict[str, list[Entry]] = {}
    for node, title, entry in entries:
        many = node and len(titles[node]) >= MIN_PARTS_FOR_ALL
        groups.setdefault(f"{node} (several parts)" if many else title, []).append(entry)
    return groups


def _shorten_hosts(nodes: Collection[str]) -> str:
    hosts = fold_names(nodes)
    if len(hosts) <= MAX_HOSTS_CHARACTERS:
        return hosts
    first = sorted(nodes, key=make_natural_key)[:NAMED_NODES]
    return f"{format_count(len(nodes), 'node')} ({', '.join(first)}, ...)"


class NightCoverage(Struct, frozen=True, kw_only=True):
    """How many nodes a night compared, and why not the others."""

    compared: int = 0
    nodes: int = 0
    """All that the scheduler knows."""
    others: tuple[str, ...] = ()
    """Why the others were not compared, in a clause each."""

    def __str__(self) -> str:
        """Print it for people; empty if nothing is known of it."""
        if not self.nodes:
            return ""
        compared = f"{self.compared} of {format_count(self.nodes, 'node')} were compared"
        return "; ".join((compared, *self.others))


class FleetJudgement(Struct, frozen=True, kw_only=True):
    """The judgement of a night."""

    night: date
    coverage: NightCoverage = NightCoverage()
    outliers: tuple[JudgedOutlier, ...] = ()
    """Those that stood out in two runs at least, the worst first."""
    changes: tuple[PartChange, ...] = ()
    """Steps and trends to the worse, the largest first."""
    notes: tuple[str, ...] = ()
    """Rollouts, what many parts have in common, and what could not be judged."""
    unconfirmed: tuple[JudgedOutlier, ...] = ()
    """The parts that were outliers once, or by chance: they are not reported yet."""
    metrics: tuple[tuple[MetricJudgement, Distribution], ...] = ()
    """Those with a value far from the median, and how all their values are distributed."""
    screened: int = 0
    """Metrics without one."""
    least: str = ""
    """How much worse than its peers a part has to be until it is named, in a sentence."""
    levels: tuple[tuple[PeerMetric, ListSummary], ...] = ()
    """What the parts reached in the suite of the sweep: the metrics with most parts first, up to
    `MAX_LEVELS`."""


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
        levels=tuple(filter(_is_finite, judgement.levels)),
    )
    write_bytes(state / JUDGEMENT_NAME, msgspec.json.encode(finite))


def _is_finite(judged: object) -> bool:
    inner = astuple(judged) if isinstance(judged, Struct) else judged
    if isinstance(inner, tuple):
        return all(map(_is_finite, inner))
    return not isinstance(inner, float) or isfinite(inner)


def keep_judged_nodes(judgement: FleetJudgement, names: Collection[str]) -> FleetJudgement:
    """Keep of *judgement* what is about the nodes called *names*: no notes, which are of all."""
    return replace(
        judgement,
        outliers=_keep_about(judgement.outliers, names),
        changes=_keep_about(judgement.changes, names),
        notes=(),
        unconfirmed=_keep_about(judgement.unconfirmed, names),
    )


def _keep_about(judged: tuple[Judged, ...], names: Collection[str]) -> tuple[Judged, ...]:
    return tuple(entry for entry in judged if set(names) & {entry.node, *entry.nodes})


def list_judgement_lines(judgement: FleetJudgement) -> list[str]:
    """List the parts that are worse than their peers or than before, and what many share."""
    judgement, known = set_known_aside(judgement)
    return [
        *(
            f"{Source.PEERS}: {_describe_outliers(title, group)}"
            for title, group in group_by_part(judgement.outliers, name_judged).items()
        ),
        *(
            f"{Source.PAST}: {_describe_changes(title, group)}"
            for title, group in group_by_part(judgement.changes, name_judged).items()
        ),
        *(f"fleet: {note}" for note in judgement.notes),
        *([known] if known else []),
    ]


def set_known_aside(judgement: FleetJudgement) -> tuple[FleetJudgement, str]:
    """Set aside the outliers that are known, and list them in a line; empty: there are none."""
    latest = judgement.night - KNOWN_AFTER

    def is_known(entry: JudgedOutlier | PartChange) -> bool:
        if isinstance(entry, PartChange):
            return entry.kind == STEP and entry.day <= latest
        unchanged = entry.distance <= MUCH_WORSE * entry.distance_then
        return entry.since <= latest and unchanged and entry.verdict is not Verdict.FAIL

    every: tuple[JudgedOutlier | PartChange, ...] = (*judgement.outliers, *judgement.changes)
    known = list(filter(is_known, every))
    titles = list(group_by_part(known, name_judged))
    more = f" and {len(titles) - NAMED_NODES} more" if len(titles) > NAMED_NODES else ""
    named = ", ".join(titles[:NAMED_NODES])
    line = f"known: {named}{more}: unchanged for {KNOWN_AFTER.days} nights and longer"
    new = replace(
        judgement,
        outliers=tuple(one for one in judgement.outliers if not is_known(one)),
        changes=tuple(one for one in judgement.changes if not is_known(one)),
    )
    return new, line if known else ""


def describe_nodes(judgement: FleetJudgement) -> dict[str, str]:
    """Describe each node that is newly worse than its peers, or than it was, in a few clauses."""
    judgement, _ = set_known_aside(judgement)
    clauses: dict[str, list[str]] = {}
    for outlier in judgement.outliers:
        if outlier.node:
            clauses.setdefault(outlier.node, []).append(describe_outlier(outlier))
    for change in judgement.changes:
        if change.node:
            clause = _describe_changes(name_judged(change)[1], [change])
            clauses.setdefault(change.node, []).append(clause)
    return {
        node: f"{own[0]} (+{len(own) - 1} more)" if len(own) > 1 else own[0]
        for node, own in clauses.items()
    }


def describe_outlier(outlier: JudgedOutlier, title: str = "", others: str = "") -> str:
    """Say what is worse than its peers, by how much, why and since when."""
    distance = f"{outlier.metric} {format_percent(outlier.distance)} worse than its peers{others}"
    since = f"since {outlier.since:%-d %b}"
    if not all(outlier.shown):
        since += f", in {outlier.nights} of its last {len(outlier.shown)} runs"
    return "; ".join(filter(None, [f"{title or outlier.title}: {distance}", outlier.cause, since]))


def describe_day(change: PartChange) -> str:
    """Say when *change* was."""
    return f"step on {change.day}" if change.kind == STEP else f"trend until {change.day}"


def _describe_outliers(title: str, group: list[JudgedOutlier]) -> str:
    worst = max(group, key=lambda outlier: (outlier.verdict, outlier.distance))
    others = count_other_metrics(worst.metric, [outlier.metric for outlier in group])
    return f"{worst.verdict.value.upper()} {describe_outlier(worst, title, others)}"


def _describe_changes(title: str, group: list[PartChange]) -> str:
    worst = max(group, key=lambda change: change.size)
    others = count_other_metrics(worst.metric, [change.metric for change in group])
    kind = "since" if worst.kind == STEP else "in a trend until"
    size = f"{worst.metric} {format_percent(worst.size)} worse than it was{others}"
    day = f"{kind} {worst.day:%-d %b}"
    return "; ".join(filter(None, [f"{title}: {size}", day, worst.why]))


def count_other_metrics(metric: str, metrics: Iterable[str]) -> str:
    """Count the *metrics* other than *metric*, as " (and in 3 other metrics)"; empty if none."""
    others = len({*metrics} - {metric})
    return f" (and in {format_count(others, 'other metric')})" if others else ""
