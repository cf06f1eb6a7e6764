"""What to say of a fleet's versions and settings: the same in a terminal and on a page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from hpcverify.insight.drift import Deviation, Drift, Rollout, Split
from hpcverify.insight.node_names import fold_names, make_natural_key
from hpcverify.insight.overview import format_time_since
from hpcverify.summary.verdict import shorten

MAX_SPLIT_VALUES = 3
"""Values that a fact without a majority is told with."""
MAX_LINE_FACTS = 8
"""Facts that are told of the same nodes: after a reset of a BIOS there may be hundreds."""
LONG_CHARACTERS = 60
"""Of values that are longer, only the words that differ are shown."""


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
        *(DriftLine("rollout", "", describe_rollout(one, now)) for one in drift.rollouts),
        *_list_deviation_lines(drift.deviations, now),
        *(DriftLine("no majority", "", describe_split(one)) for one in drift.splits),
    ]


def summarize_drift(drift: Drift) -> str:
    """Count rollouts and the nodes that differ; empty if there is neither."""
    odd = {node for one in drift.deviations for node in one.nodes}
    told = (
        (len(drift.rollouts), "rollout", "rollouts"),
        (len(odd), "node differs from its peers", "nodes differ from their peers"),
        (len(drift.splits), "without a majority", "without a majority"),
    )
    return ", ".join(f"{count} {one if count == 1 else many}" for count, one, many in told if count)


def describe_rollout(one: Rollout, now: float) -> str:
    """Say what changes to what, how far it is, and which nodes are behind."""
    done = (
        f"all {one.total} nodes" if one.count == one.total else f"{one.count} of {one.total} nodes"
    )
    first, last = format_time_since(one.began, now), format_time_since(one.last, now)
    when = f"{first} ago" if first == last else f"{first} to {last} ago"
    behind = f"; not yet: {_name_nodes(one.behind, one.uncounted)}" if one.behind else ""
    if _is_long(*one.before, one.after):
        change = f"{one.name} {_compare_words(one.after, one.before[0])}"
    else:
        change = f"{one.name} from {' or '.join(one.before)} to {one.after}"
    return f"{change}: {done}, {when}{behind}"


def describe_split(one: Split) -> str:
    """Say which values there are, and on how many nodes."""
    shown = [
        f"{shorten(value, LONG_CHARACTERS)} on {len(nodes)} ({fold_names(nodes)})"
        for value, nodes in one.values[:MAX_SPLIT_VALUES]
    ]
    left = len(one.values) - MAX_SPLIT_VALUES
    more = f" and {left} more" if left > 0 else ""
    return f"{one.name}: {', '.join(shown)}{more}"


def _list_deviation_lines(deviations: Iterable[Deviation], now: float) -> Iterator[DriftLine]:
    """Yield a line for nodes that differ together, with all in which they do."""
    groups: dict[tuple[str, ...], list[Deviation]] = {}
    for one in deviations:
        groups.setdefault(one.nodes, []).append(one)
    for nodes in sorted(groups, key=lambda nodes: make_natural_key(nodes[0])):
        alike = groups[nodes]
        hosts = _name_nodes(nodes, alike[0].uncounted)
        told = [describe_deviation(one, now) for one in alike[:MAX_LINE_FACTS]]
        if (left := len(alike) - MAX_LINE_FACTS) > 0:
            told.append(f"and {left} more: hpcverify nodes --json")
        yield DriftLine("differs", hosts, "; ".join(told))


def describe_deviation(one: Deviation, now: float) -> str:
    """Say what its nodes have, and what how many others have; of long values, which words."""
    since = f", changed {format_time_since(one.since, now)} ago" if one.since else ""
    others = f"{one.count} of {one.total}"
    if _is_long(one.value, one.majority):
        return f"{one.name} {_compare_words(one.value, one.majority)}, unlike {others}{since}"
    return f"{one.name} {one.value}, not {one.majority} as on {others}{since}"


def _is_long(*values: str) -> bool:
    return max(map(len, values)) > LONG_CHARACTERS


def _compare_words(value: str, other: str) -> str:
    here, there = value.split(), other.split()
    more = " ".join(word for word in here if word not in there)
    less = " ".join(word for word in there if word not in here)
    more, less = shorten(more), shorten(less)
    told = filter(None, (f"with {more}" if more else "", f"without {less}" if less else ""))
    return " and ".join(told) or "in another order"


def _name_nodes(nodes: Sequence[str], uncounted: Sequence[str]) -> str:
    names = fold_names(nodes)
    if not uncounted:
        return names
    absent = "" if len(uncounted) == len(nodes) else f"{fold_names(uncounted)} "
    return f"{names} ({absent}out of service or not heard of lately)"
