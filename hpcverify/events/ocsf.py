"""
Events as OCSF 1.8.0 (https://schema.ocsf.io/1.8.0), for a SIEM.

OCSF has no class for the health of hardware. A finding, an outlier or a faulty link becomes
a Detection Finding [2004]. The standard says that security products write these; the class
is used because SIEMs have their alerts and cases for it. What changes a node,
the configuration or a suppression becomes an Entity Management [3004]. All else becomes a
Base Event [0], which is for "events that are not otherwise defined by the schema".
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import msgspec
from msgspec import Struct

from hpcverify.events.event import (
    Actor,
    Event,
    EventKind,
    Severity,
    make_finding_uid,
    summarize_event,
)
from hpcverify.model import Remedy
from hpcverify.summary.verdict import REMEDY_SENTENCES

VERSION = "1.8.0"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MILLISECOND = timedelta(milliseconds=1)


class OcsfClass(Struct, frozen=True):
    """A class of events."""

    uid: int
    caption: str
    category_uid: int
    category: str


BASE_EVENT = OcsfClass(0, "Base Event", 0, "Uncategorized")
DETECTION_FINDING = OcsfClass(2004, "Detection Finding", 2, "Findings")
ENTITY_MANAGEMENT = OcsfClass(3004, "Entity Management", 3, "Identity & Access Management")


class Activity(Struct, frozen=True):
    """What an event of a class reports."""

    event_class: OcsfClass
    id: int
    caption: str

    @property
    def type_uid(self) -> int:
        """The number of class and activity together."""
        return self.event_class.uid * 100 + self.id


CREATE_FINDING = Activity(DETECTION_FINDING, 1, "Create")
UPDATE_FINDING = Activity(DETECTION_FINDING, 2, "Update")
CLOSE_FINDING = Activity(DETECTION_FINDING, 3, "Close")
CREATE = Activity(ENTITY_MANAGEMENT, 1, "Create")
UPDATE = Activity(ENTITY_MANAGEMENT, 3, "Update")
DELETE = Activity(ENTITY_MANAGEMENT, 4, "Delete")
ENROLL = Activity(ENTITY_MANAGEMENT, 6, "Enroll")
UNENROLL = Activity(ENTITY_MANAGEMENT, 7, "Unenroll")
ENABLE = Activity(ENTITY_MANAGEMENT, 8, "Enable")
DISABLE = Activity(ENTITY_MANAGEMENT, 9, "Disable")
SUSPEND = Activity(ENTITY_MANAGEMENT, 12, "Suspend")
RESUME = Activity(ENTITY_MANAGEMENT, 13, "Resume")

FINDING_ACTIVITIES: Mapping[EventKind, Activity] = {
    EventKind.FINDING_OPENED: CREATE_FINDING,
    EventKind.FINDING_CHANGED: UPDATE_FINDING,
    EventKind.FINDING_CLOSED: CLOSE_FINDING,
    EventKind.OUTLIER_OPENED: CREATE_FINDING,
    EventKind.OUTLIER_CLOSED: CLOSE_FINDING,
    EventKind.LINK_FAILED: CREATE_FINDING,
    EventKind.LINK_RECOVERED: CLOSE_FINDING,
}
"""For events about a finding, an outlier, a link or a switch."""
HOLD_ACTIVITIES = {"drain": DISABLE, "resume": ENABLE, "reserve": SUSPEND, "unreserve": RESUME}
"""For a hold, by what was done; all else is an update. A reserved node still runs our jobs."""
COMMAND_ACTIVITIES = {
    "fleet breaker reset": ENABLE,
    "nodes admit": ENROLL,
    "nodes adopt": UPDATE,
    "nodes forget": UNENROLL,
    "nodes hold": DISABLE,
    "nodes release": ENABLE,
    "nodes repaired": SUSPEND,
}
"""For a command, by its name: what it asks for, whether that was done or refused."""
POLICY_ACTIVITIES: Mapping[EventKind, Activity] = {
    EventKind.CONFIGURATION_LOADED: UPDATE,
    EventKind.SUPPRESSION_BEGUN: CREATE,
    EventKind.SUPPRESSION_ENDED: DELETE,
}
"""For rules that the site writes."""
SEVERITY_IDS = {
    Severity.INFORMATIONAL: 1,
    Severity.LOW: 2,
    Severity.MEDIUM: 3,
    Severity.HIGH: 4,
    Severity.CRITICAL: 5,
}
ALERT_SEVERITIES = frozenset({Severity.MEDIUM, Severity.HIGH, Severity.CRITICAL})
"""Those of an alert. What is only observed, or only warns, has a lower one."""
FINDING_STATUSES = {
    CREATE_FINDING: (1, "New"),
    UPDATE_FINDING: (2, "In Progress"),
    CLOSE_FINDING: (4, "Resolved"),
}
SUCCESS, FAILURE = (1, "Success"), (2, "Failure")


def choose_activity(event: Event) -> Activity:
    """Choose the class and the activity of *event*."""
    if event.kind in FINDING_ACTIVITIES and (event.finding or event.change):
        return FINDING_ACTIVITIES[event.kind]
    if event.kind in POLICY_ACTIVITIES:
        return POLICY_ACTIVITIES[event.kind]
    if event.kind is EventKind.COMMAND_RUN and event.command:
        other = Activity(ENTITY_MANAGEMENT, 99, event.command.name)
        return COMMAND_ACTIVITIES.get(event.command.name, other)
    if event.kind is EventKind.HOLD_CHANGED:
        return HOLD_ACTIVITIES.get(event.what, UPDATE)
    if event.kind is EventKind.NODE_CHANGED:
        return UPDATE
    return Activity(BASE_EVENT, 99, event.kind)


def convert_event(event: Event) -> dict[str, object]:
    """Convert *event* to an object of OCSF, ready to be encoded as JSON."""
    activity = choose_activity(event)
    if activity.event_class is DETECTION_FINDING:
        own = _describe_finding(event, activity)
    elif activity.event_class is ENTITY_MANAGEMENT:
        own = _describe_entity(event)
    else:
        own = {"actor": _describe_actor(event.actor)}
        if event.node:
            own["device"] = _describe_node(event.node)
    return _describe_event(event, activity) | own


def _describe_event(event: Event, activity: Activity) -> dict[str, object]:
    described = activity.event_class
    metadata: dict[str, object] = {
        "version": VERSION,
        "product": {"name": "hpcverify", "vendor_name": "hpcverify"},
        "uid": event.id,
        "sequence": event.number,
        "event_code": event.kind,
        "log_version": str(event.schema),
    }
    if described is BASE_EVENT:
        metadata["profiles"] = ["host"]  # which has the actor and the device
    common: dict[str, object] = {
        "activity_id": activity.id,
        "activity_name": activity.caption,
        "category_uid": described.category_uid,
        "category_name": described.category,
        "class_uid": described.uid,
        "class_name": described.caption,
        "type_uid": activity.type_uid,
        "type_name": f"{described.caption}: {activity.caption}",
        "time": _count_milliseconds(event.time),
        "severity_id": SEVERITY_IDS[event.severity],
        "severity": event.severity.capitalize(),
        "message": summarize_event(event),
        "metadata": metadata,
    }
    # What the schema has no attribute for, so that nothing is lost.
    own = {"what": event.what, "change": event.change, "run": event.run, "command": event.command}
    if unmapped := {name: msgspec.to_builtins(value) for name, value in own.items() if value}:
        common["unmapped"] = unmapped
    return common


def _describe_finding(event: Event, activity: Activity) -> dict[str, object]:
    """Describe a finding, an outlier, a link or a switch: uid and title stay until it closes."""
    finding, remedy = event.finding, Remedy.NONE
    ledger = event.id.partition("-")[0]  # two clusters may have a node of the same name
    resources = [{"type": "node", "name": event.node, "hostname": event.node}] if event.node else []
    if finding:
        uid, rule, remedy = finding.uid, finding.check, finding.remedy
        title = f"{rule}: {finding.code} ({finding.label or finding.part})"
        if finding.part != "node":
            resources.append({"type": "part", "name": finding.label, "uid": finding.part})
    else:
        rule, _, _ = event.kind.partition(".")
        subject = event.change.subject if event.change else ""
        uid, title = make_finding_uid(event.node, "node", rule, subject), f"{rule}: {subject}"
        resources = resources or [{"type": rule, "name": subject}]
    status_id, status = FINDING_STATUSES[activity]
    time_name = "created_time" if activity is CREATE_FINDING else "modified_time"
    described: dict[str, object] = {
        "status_id": status_id,
        "status": status,
        "is_alert": event.severity in ALERT_SEVERITIES and activity is not CLOSE_FINDING,
        "finding_info": {
            "uid": f"{ledger}-{uid}",
            "title": title,
            time_name: _count_milliseconds(event.time),
            "analytic": {"uid": rule, "name": rule, "type_id": 1, "type": "Rule"},
        },
        "resources": resources,
        "evidences": [{"name": title, "data": msgspec.to_builtins(finding or event.change)}],
    }
    if remedy is not Remedy.NONE:
        described["remediation"] = {"desc": REMEDY_SENTENCES[remedy]}
    return described


def _describe_entity(event: Event) -> dict[str, object]:
    """Give what an Entity Management has; only a command can fail."""
    command = event.command
    status_id, status = SUCCESS if not command or command.outcome == "done" else FAILURE
    described: dict[str, object] = {
        "status_id": status_id,
        "status": status,
        "actor": _describe_actor(event.actor),
        "src_endpoint": {"hostname": event.actor.host},
        "entity": _name_entity(event),
    }
    if command:
        described |= {"status_detail": command.outcome, "status_code": str(command.exit_status)}
    if event.text and event.actor.is_person:
        described["comment"] = event.text
    return described


def _name_entity(event: Event) -> dict[str, object]:
    if event.node:
        device = _describe_node(event.node)
        return {"name": event.node, "type_id": 1, "type": "Device", "device": device}
    if event.kind in POLICY_ACTIVITIES:
        name = event.change.subject if event.change else event.kind
        return {"name": name, "type_id": 5, "type": "Policy", "policy": {"name": name}}
    return {"name": "hpcverify", "type_id": 99, "type": "Service"}


def _describe_node(node: str) -> dict[str, object]:
    return {"name": node, "hostname": node, "type_id": 1, "type": "Server"}


def _describe_actor(actor: Actor) -> dict[str, object]:
    return {"user": {"name": actor.name}} if actor.is_person else {"app_name": actor.name}


def _count_milliseconds(time: datetime) -> int:
    return (time - EPOCH) // MILLISECOND
