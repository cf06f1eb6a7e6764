"""
Whether it is by chance that a part stood out on several nights.

Where a few runs of every part are slow, other parts stand out each night, and now and then one of
them does so twice. That says nothing of the part; those that came and went show it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from hpcverify.insight.judgement import JudgedOutlier
from hpcverify.peers.rule import FALSE_SHARE


def make_key(outlier: JudgedOutlier) -> tuple[str, str, str]:
    """Make what an outlier has in common with the same one on another night."""
    return outlier.level, outlier.name, outlier.metric


def is_of_the_same(outlier: JudgedOutlier, old: JudgedOutlier) -> bool:
    """Whether one is a node and the other one of its parts, or a place and one of its nodes."""
    if outlier.metric != old.metric or outlier.level == old.level:
        return False
    if outlier.node and old.node:
        return outlier.node == old.node
    return (outlier.node or old.node) in (old.nodes if outlier.node else outlier.nodes)


def list_repeats_by_chance(
    followed: Iterable[JudgedOutlier], earlier: Iterable[JudgedOutlier], parts: Mapping[str, int]
) -> list[JudgedOutlier]:
    """
    List those *followed* who stood out on several nights, as chance explains it.

    If k of n parts stand out on a night by chance, n (k / n)^m of them do so on m nights. For k we
    take the geometric mean of those who came and those who went: where parts break, they only
    come, and where they are mended, they only go.

    Args:
        followed: Who stands out, with the nights.
        earlier: Who stood out before.
        parts: How many were compared, by the metric.

    """
    by_metric: dict[str, list[JudgedOutlier]] = {}
    for outlier in followed:
        by_metric.setdefault(outlier.metric, []).append(outlier)
    earlier_outliers = list(earlier)
    return [
        outlier
        for metric, outliers in by_metric.items()
        for outlier in _list_of_metric(
            outliers, [o for o in earlier_outliers if o.metric == metric], parts
        )
    ]


def _list_of_metric(
    followed: Sequence[JudgedOutlier], earlier: Iterable[JudgedOutlier], parts: Mapping[str, int]
) -> list[JudgedOutlier]:
    keys = {make_key(outlier) for outlier in followed}
    gone = [
        old
        for old in earlier
        if make_key(old) not in keys
        and not any(is_of_the_same(outlier, old) for outlier in followed)
    ]
    changing = math.sqrt(len(gone) * sum(outlier.nights == 1 for outlier in followed))
    repeated = [outlier for outlier in followed if outlier.nights > 1]
    if not changing or not repeated:
        return []
    count = max(parts.get(repeated[0].metric, 0), changing)

    def is_by_chance(nights: int) -> bool:
        as_often = sum(outlier.nights >= nights for outlier in repeated)
        return count * (changing / count) ** nights > FALSE_SHARE * as_often

    return [outlier for outlier in repeated if is_by_chance(outlier.nights)]


def describe_repeat(outlier: JudgedOutlier) -> str:
    """Say why a part that stood out on several nights is not named."""
    return (
        f"{outlier.metric}: {outlier.name} stood out on {outlier.nights} nights, as chance "
        "explains where other parts do so each night: not named yet"
    )
