"""The events of a night: what began and ended to be worse than its peers or than it was."""

from __future__ import annotations

from collections.abc import Iterator

from hpcverify.events.event import EventKind, StateChange
from hpcverify.fleet.controller import Controller
from hpcverify.fleet.event_log import NewEvent
from hpcverify.insight.drift_wording import describe_rollout
from hpcverify.insight.judgement import FleetJudgement, describe_outlier
from hpcverify.insight.overview import read_overview
from hpcverify.units import format_count

OUTLIERS, ROLLOUTS = "outliers", "rollouts"
SEPARATOR = "\t"
"""Between the node of an outlier and its name; no name has one."""


def record_night(controller: Controller, judgement: FleetJudgement) -> None:
    """Record what is new and what is over since the night before *judgement*."""
    ledger = controller.ledger
    ledger.record_standing(OUTLIERS, dict(_list_outliers(judgement)), _describe_outlier)
    overview = read_overview(ledger, controller.store)
    rollouts = {
        f"{rollout.name}: {rollout.after}": describe_rollout(rollout, overview.made)
        for rollout in overview.drift.rollouts
    }
    ledger.record_standing(ROLLOUTS, rollouts, _describe_rollout)
    counts = (
        format_count(len(judgement.outliers), "outlier"),
        f"{format_count(len(judgement.changes), 'change')} to the worse",
    )
    text = f"the night of {judgement.night}: {', '.join(counts)}"
    ledger.record_event(NewEvent(kind=EventKind.NIGHT_JUDGED, text=text))


def _list_outliers(judgement: FleetJudgement) -> Iterator[tuple[str, str]]:
    for outlier in judgement.outliers:
        key = SEPARATOR.join((outlier.node, f"{outlier.title}: {outlier.metric}"))
        yield key, describe_outlier(outlier)
    for change in judgement.changes:
        name = f"{change.title}: {change.metric}, {change.kind}"
        yield SEPARATOR.join((change.node, name)), change.why or change.kind


def _describe_outlier(key: str, before: str, after: str) -> NewEvent | None:
    if before and after:  # the distance changes each night
        return None
    node, _, subject = key.partition(SEPARATOR)
    kind = EventKind.OUTLIER_OPENED if after else EventKind.OUTLIER_CLOSED
    states = ("", "outlier") if after else ("outlier", "")
    change = StateChange(subject=subject, before=states[0], after=states[1])
    return NewEvent(kind=kind, node=node, change=change, text=after)


def _describe_rollout(key: str, before: str, after: str) -> NewEvent | None:
    if before and after:  # it goes on
        return None
    kind = EventKind.ROLLOUT_BEGUN if after else EventKind.ROLLOUT_ENDED
    states = ("", "under way") if after else ("under way", "")
    change = StateChange(subject=key, before=states[0], after=states[1])
    return NewEvent(kind=kind, change=change, text=after or before)
