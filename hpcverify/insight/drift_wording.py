"""What to say of a fleet's versions and settings: the same in a terminal and on a page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from hpcverify.insight.drift import Deviation, Drift, Rollout, Split
from hpcverify.insight.node_names import fold_names, make_natural_key
from hpcverify.insight.overview import format_time_since
from hpcverify.summary.verdict import shorten

MAX_SPLIT_VALUES = 3
"""Values that are listed of a fact without a majority."""
MAX_LINE_FACTS = 8
"""Facts that are listed of the same nodes: after a reset of a BIOS there may be hundreds."""
LONG_CHARACTERS = 60
"""The longest value shown whole; of longer ones only the words that differ are shown."""


class DriftLine(Struct, frozen=True):
    """One thing to say of versions: about which nodes, and what."""

    kind: str
    """rollout, differs or no majority."""
    hosts: str
    """The nodes as a host list; empty if it is about all that are alike."""
    text: str


def list_drift_lines(drift: Drift, now: float) -> list[DriftLine]:
    """Say how the nodes differ: rollouts first, then nodes with all in which they differ."""
    return [
        *(DriftLine("rollout", "", describe_rollout(rollout, now)) for rollout in drift.rollouts),
        *_list_deviation_lines(drift.deviations, now),
        *(DriftLine("no majority", "", describe_split(split)) for split in drift.splits),
    ]


def summarize_drift(drift: Drift) -> str:
    """Count rollouts and the nodes that differ; empty if there is neither."""
    odd = {node for deviation in drift.deviations for node in deviation.nodes}
    counts = (
        (len(drift.rollouts), "rollout", "rollouts"),
        (len(odd), "node differs from its peers", "nodes differ from their peers"),
        (len(drift.splits), "without a majority", "without a majority"),
    )
    return ", ".join(
        f"{count} {singular if count == 1 else plural}"
        for count, singular, plural in counts
        if count
    )


def describe_rollout(rollout: Rollout, now: float) -> str:
    """Say what changes to what, how far it is, and which nodes are behind."""
    done = (
        f"all {rollout.total} nodes"
        if rollout.count == rollout.total
        else f"{rollout.count} of {rollout.total} nodes"
    )
    first, last = format_time_since(rollout.began, now), format_time_since(rollout.last, now)
    when = f"{first} ago" if first == last else f"{first} to {last} ago"
    behind = (
        f"; not yet: {_name_nodes(rollout.behind, rollout.uncounted)}" if rollout.behind else ""
    )
    if _is_long(*rollout.before, rollout.after):
        change = f"{rollout.name} {_compare_words(rollout.after, rollout.before[0])}"
    else:
        change = f"{rollout.name} from {' or '.join(rollout.before)} to {rollout.after}"
    return f"{change}: {done}, {when}{behind}"


def describe_split(split: Split) -> str:
    """Say which values there are, and on how many nodes."""
    shown = [
        f"{shorten(value, LONG_CHARACTERS)} on {len(nodes)} ({fold_names(nodes)})"
        for value, nodes in split.values[:MAX_SPLIT_VALUES]
    ]
    left = len(split.values) - MAX_SPLIT_VALUES
    more = f" and {left} more" if left > 0 else ""
    return f"{split.name}: {', '.join(shown)}{more}"


def _list_deviation_lines(deviations: Iterable[Deviation], now: float) -> Iterator[DriftLine]:
    groups: dict[tuple[str, ...], list[Deviation]] = {}
    for deviation in deviations:
        groups.setdefault(deviation.nodes, []).append(deviation)
    for nodes in sorted(groups, key=lambda nodes: make_natural_key(nodes[0])):
        alike = groups[nodes]
        hosts = _name_nodes(nodes, alike[0].uncounted)
        descriptions = [describe_deviation(deviation, now) for deviation in alike[:MAX_LINE_FACTS]]
        if (left := len(alike) - MAX_LINE_FACTS) > 0:
            descriptions.append(f"and {left} more: hpcverify nodes --json")
        yield DriftLine("differs", hosts, "; ".join(descriptions))


def describe_deviation(deviation: Deviation, now: float) -> str:
    """Say what its nodes have, and what how many others have; of long values, which words."""
    since = f", changed {format_time_since(deviation.since, now)} ago" if deviation.since else ""
    others = f"{deviation.count} of {deviation.total}"
    if _is_long(deviation.value, deviation.majority):
        words = _compare_words(deviation.value, deviation.majority)
        return f"{deviation.name} {words}, unlike {others}{since}"
    return f"{deviation.name} {deviation.value}, not {deviation.majority} as on {others}{since}"


def _is_long(*values: str) -> bool:
    return max(map(len, values)) > LONG_CHARACTERS


def _compare_words(value: str, other: str) -> str:
    here, there = value.split(), other.split()
    more = " ".join(word for word in here if word not in there)
    less = " ".join(word for word in there if word not in here)
    more, less = shorten(more), shorten(less)
    differences = filter(None, (f"with {more}" if more else "", f"without {less}" if less else ""))
    return " and ".join(differences) or "in another order"


def _name_nodes(nodes: Sequence[str], uncounted: Sequence[str]) -> str:
    names = fold_names(nodes)
    if not uncounted:
        return names
    absent = "" if len(uncounted) == len(nodes) else f"{fold_names(uncounted)} "
    return f"{names} ({absent}out of service or not heard of lately)"
