"""The tables of docs/reference/event-formats.md, from what the formats make of each kind."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from msgspec.structs import replace

from hpcverify.events.event import EventKind, RunOutcome, Severity, StateChange
from hpcverify.events.journal import MESSAGE_IDS, PRIORITIES
from hpcverify.events.ocsf import (
    COMMAND_ACTIVITIES,
    HOLD_ACTIVITIES,
    SEVERITY_IDS,
    UPDATE,
    Activity,
    choose_activity,
)
from hpcverify.events.severity import STATE_SEVERITIES, grade_event
from hpcverify.model import Verdict
from tests.docs.markdown import format_code, write_table
from tests.events.examples import FINDING, make_finding_event

MANY_ACTIVITIES = "Entity Management [3004]: see [below](#commands-and-holds)"


def write_event_kinds() -> Iterator[str]:
    """Yield each kind with its class, the severities that it may have and its MESSAGE_ID."""
    head = ("kind", "OCSF", "severity", "`MESSAGE_ID`")
    yield from write_table(head, (_write_kind(kind) for kind in EventKind))


def _write_kind(kind: EventKind) -> tuple[str, ...]:
    activity = choose_activity(make_finding_event(kind))
    has_many = kind in (EventKind.COMMAND_RUN, EventKind.HOLD_CHANGED)
    mapped = MANY_ACTIVITIES if has_many else _describe_activity(activity)
    severities = ", ".join(_list_severities(kind))
    return format_code(kind), mapped, severities, format_code(MESSAGE_IDS[kind])


def _describe_activity(activity: Activity) -> str:
    described = f"{activity.event_class.caption} [{activity.event_class.uid}]"
    return described if activity.id == 99 else f"{described}: {_name_activity(activity)}"


def _name_activity(activity: Activity) -> str:
    return f"{activity.caption} [{activity.id}]"


def _list_severities(kind: EventKind) -> list[Severity]:
    """List the severities of *kind*, over all states and verdicts, enforced or not."""
    grades: set[Severity] = set()
    for enforced, verdict, state in product((False, True), Verdict, (*STATE_SEVERITIES, "healthy")):
        change = StateChange(subject="", before="", after=state, enforced=enforced)
        finding = replace(FINDING, verdict=verdict, enforced=enforced)
        run = RunOutcome(id="", suite="", verdict=verdict)
        grades.add(grade_event(kind, change, finding, run))
    return [severity for severity in Severity if severity in grades]


def write_event_activities() -> Iterator[str]:
    """Yield what a command, and what is done to hold a node, means for the node."""
    commands = {f"command `{name}`": activity for name, activity in COMMAND_ACTIVITIES.items()}
    holds = {f"hold `{act}`": activity for act, activity in HOLD_ACTIVITIES.items()}
    rows = [(name, _name_activity(activity)) for name, activity in (commands | holds).items()]
    rows.append(("another command", "Other [99], with its name in `activity_name`"))
    rows.append(("another change of a hold", _name_activity(UPDATE)))
    yield from write_table(("event", "activity"), rows)


def write_event_severities() -> Iterator[str]:
    """Yield each severity, and its numbers elsewhere."""
    rows = ((level, str(SEVERITY_IDS[level]), str(PRIORITIES[level])) for level in Severity)
    yield from write_table(("severity", "OCSF `severity_id`", "journald `PRIORITY`"), rows)
