"""Events as a SIEM reads them: valid OCSF, and one finding from its opening to its closing."""

from __future__ import annotations

import json
from typing import Any

import click
import msgspec
import pytest
from msgspec.structs import replace
from py_ocsf_models.events.findings.detection_finding import DetectionFinding

from hpcverify.cli import cli
from hpcverify.events.event import Event, EventKind, StateChange
from hpcverify.events.ocsf import COMMAND_ACTIVITIES, HOLD_ACTIVITIES, convert_event
from hpcverify.events.severity import grade_event
from hpcverify.fleet.event_log import KIND_BY_WORDS
from hpcverify.model import Remedy, Verdict
from tests.events.examples import (
    EXAMPLES,
    FINDING,
    TIME,
    make_command_event,
    make_event,
    make_finding_event,
)
from tests.events.ocsf_schema import SCHEMA, list_violations

OPENED, CHANGED, CLOSED = (
    EventKind.FINDING_OPENED,
    EventKind.FINDING_CHANGED,
    EventKind.FINDING_CLOSED,
)
CREATE, UPDATE, DELETE, ENROLL, UNENROLL, ENABLE, DISABLE = 1, 3, 4, 6, 7, 8, 9
SUSPEND, RESUME = 12, 13


def convert(event: Event) -> dict[str, Any]:
    """Give the JSON of *event* as its reader gets it."""
    converted: dict[str, Any] = json.loads(msgspec.json.encode(convert_event(event)))
    return converted


def test_an_event_of_every_kind_is_valid_by_the_schema() -> None:
    assert {event.kind for event in EXAMPLES} == {*EventKind}
    assert [found for event in EXAMPLES if (found := list_violations(convert(event)))] == []


@pytest.mark.parametrize(
    ("change", "violation"),
    [
        ({"entity": {"type_id": 1}}, "event.entity: has none of"),
        ({"entity": {"name": "n7", "device": {"name": "n7"}}}, "device.type_id: is required"),
        ({"severity_id": 7}, "event.severity_id: 7 is not one of"),
        ({"time": "2026-11-23T02:15:07Z"}, "event.time: '2026-11-23T02:15:07Z' is not a"),
        ({"node": "n7"}, "event.node: no such attribute"),
    ],
)
def test_an_event_that_breaks_the_schema_is_not_valid(
    change: dict[str, Any], violation: str
) -> None:
    (message,) = list_violations(convert(make_command_event("nodes hold")) | change)
    assert violation in message


def test_captions_are_those_of_the_ids() -> None:
    captions = {
        "class_uid": "class_name",
        "category_uid": "category_name",
        "severity_id": "severity",
        "activity_id": "activity_name",
        "status_id": "status",
    }
    for converted in map(convert, EXAMPLES):
        attributes = SCHEMA["classes"][str(converted["class_uid"])]["attributes"]
        assert converted["type_uid"] == converted["class_uid"] * 100 + converted["activity_id"]
        for name in captions.keys() & converted.keys():
            if (name, converted[name]) != ("activity_id", 99):  # it has a name of its own
                expected = attributes[name]["enum"][str(converted[name])]
                assert converted[captions[name]] == expected, converted


@pytest.mark.parametrize("kind", [OPENED, CHANGED, CLOSED])
def test_a_finding_is_a_detection_finding_for_a_reader_of_that_class(kind: EventKind) -> None:
    converted = convert(make_finding_event(kind))
    finding = DetectionFinding.model_validate(converted)

    assert finding.class_uid == 2004
    assert finding.finding_info.uid == f"5d0c1a7e-{FINDING.uid}"
    read = finding.model_dump(mode="json", exclude_unset=True)
    unread = {"is_alert"}  # which the library does not have
    assert read.keys() == converted.keys() - unread


def test_a_finding_keeps_its_uid_and_title_from_create_through_update_to_close() -> None:
    life = [convert(make_finding_event(kind)) for kind in (OPENED, CHANGED, CLOSED)]

    assert {(e["finding_info"]["uid"], e["finding_info"]["title"]) for e in life} == {
        (f"5d0c1a7e-{FINDING.uid}", "gemm: wrong_product (GPU 3)")
    }
    assert [(e["activity_name"], e["status"]) for e in life] == [
        ("Create", "New"),
        ("Update", "In Progress"),
        ("Close", "Resolved"),
    ]


def test_a_finding_names_the_node_the_part_and_what_to_do() -> None:
    converted = convert(make_finding_event(OPENED))

    node, part = converted["resources"]
    assert (node["name"], node["hostname"]) == ("n7", "n7")
    assert (part["name"], part["uid"]) == ("GPU 3", "GPU-9f3c")
    assert "replace" in converted["remediation"]["desc"]
    assert converted["evidences"][0]["data"]["code"] == "wrong_product"


def test_a_finding_of_the_whole_node_has_no_part() -> None:
    finding = replace(FINDING, part="node", label="node", remedy=Remedy.NONE)
    converted = convert(make_finding_event(OPENED, finding=finding))

    assert [resource["type"] for resource in converted["resources"]] == ["node"]
    assert "remediation" not in converted


@pytest.mark.parametrize(
    ("kind", "verdict", "enforced", "alert"),
    [
        (OPENED, Verdict.FAIL, True, True),
        (CHANGED, Verdict.FAIL, True, True),
        (CLOSED, Verdict.FAIL, True, False),
        (OPENED, Verdict.FAIL, False, False),
        (OPENED, Verdict.WARN, True, False),
    ],
)
def test_an_open_failure_that_the_site_acts_on_is_an_alert_and_what_is_observed_is_low(
    kind: EventKind, verdict: Verdict, *, enforced: bool, alert: bool
) -> None:
    finding = replace(FINDING, verdict=verdict, enforced=enforced)
    severity = grade_event(kind, finding=finding)
    converted = convert(make_finding_event(kind, finding=finding, severity=severity))

    assert converted["is_alert"] is alert
    assert (converted["severity_id"] > 2) is alert


@pytest.mark.parametrize(
    ("opened", "closed", "node", "resource"),
    [
        (EventKind.OUTLIER_OPENED, EventKind.OUTLIER_CLOSED, "n7", ("node", "n7")),
        (EventKind.LINK_FAILED, EventKind.LINK_RECOVERED, "", ("link", "leaf1 - leaf2")),
    ],
)
def test_an_outlier_or_a_link_is_one_finding_until_it_is_over(
    opened: EventKind, closed: EventKind, node: str, resource: tuple[str, str]
) -> None:
    change = StateChange(subject="leaf1 - leaf2", before="", after="failed")
    life = [convert(make_event(kind, node=node, change=change)) for kind in (opened, closed)]
    other = convert(make_event(opened, node=node, change=replace(change, subject="leaf3")))

    assert [event["activity_name"] for event in life] == ["Create", "Close"]
    assert life[0]["finding_info"]["uid"] == life[1]["finding_info"]["uid"]
    assert life[0]["finding_info"]["uid"] != other["finding_info"]["uid"]
    assert [(r["type"], r["name"]) for r in life[0]["resources"]] == [resource]
    DetectionFinding.model_validate(life[0])


def test_the_time_is_whole_milliseconds_of_utc() -> None:
    time = convert(make_event(EventKind.HEARTBEAT))["time"]

    assert time == int(TIME.replace(microsecond=0).timestamp()) * 1000 + 123


@pytest.mark.parametrize(
    ("act", "activity"),
    [("drain", DISABLE), ("resume", ENABLE), ("reserve", SUSPEND), ("unreserve", RESUME)],
)
def test_a_hold_disables_enables_suspends_or_resumes_a_node(act: str, activity: int) -> None:
    converted = convert(make_event(EventKind.HOLD_CHANGED, node="n7", what=act))

    assert (converted["class_uid"], converted["activity_id"]) == (3004, activity)
    assert converted["entity"]["device"]["hostname"] == "n7"


def test_what_is_done_to_hold_a_node_is_named_as_the_controller_names_it() -> None:
    assert {KIND_BY_WORDS[act] for act in HOLD_ACTIVITIES} == {EventKind.HOLD_CHANGED}


def test_an_event_without_a_text_is_described_by_its_words() -> None:
    change = StateChange(subject="", before="healthy", after="suspect")
    event = make_event(EventKind.NODE_CHANGED, node="n7", what="suspect", change=change)

    assert convert(event)["message"] == "node.changed n7 suspect (healthy -> suspect)"


@pytest.mark.parametrize(
    ("name", "activity"),
    [
        ("nodes hold", DISABLE),
        ("nodes release", ENABLE),
        ("nodes repaired", SUSPEND),
        ("nodes admit", ENROLL),
        ("nodes forget", UNENROLL),
        ("nodes adopt", UPDATE),
        ("fleet breaker reset", ENABLE),
        ("fleet sweep", 99),
    ],
)
def test_a_command_is_an_entity_management_with_the_person_and_the_reason(
    name: str, activity: int
) -> None:
    converted = convert(make_command_event(name))

    assert (converted["class_uid"], converted["activity_id"]) == (3004, activity)
    assert converted["actor"]["user"]["name"] == "zoë"
    assert converted["src_endpoint"]["hostname"] == "login-2"
    assert converted["comment"] == "GPU 3 getauscht, süß"


def test_every_command_with_an_activity_exists() -> None:
    commands = cli.list_commands(click.Context(cli))
    assert {name.split()[0] for name in COMMAND_ACTIVITIES} <= {*commands}


@pytest.mark.parametrize(
    ("outcome", "status"), [("done", "Success"), ("refused", "Failure"), ("failed", "Failure")]
)
def test_a_command_that_was_refused_or_failed_is_a_failure(outcome: str, status: str) -> None:
    converted = convert(make_command_event("nodes release", outcome))

    assert (converted["status"], converted["status_detail"]) == (status, outcome)


@pytest.mark.parametrize(
    ("kind", "activity"),
    [
        (EventKind.CONFIGURATION_LOADED, UPDATE),
        (EventKind.SUPPRESSION_BEGUN, CREATE),
        (EventKind.SUPPRESSION_ENDED, DELETE),
    ],
)
def test_configuration_and_suppressions_are_policies(kind: EventKind, activity: int) -> None:
    change = StateChange(subject="site.toml", before="", after="sha256:1c")
    converted = convert(make_event(kind, change=change))

    assert (converted["activity_id"], converted["entity"]["type"]) == (activity, "Policy")
    assert converted["entity"]["name"] == "site.toml"


def test_what_the_schema_has_no_class_for_is_a_base_event_of_its_kind() -> None:
    converted = convert(make_event(EventKind.NIGHT_JUDGED))

    assert (converted["class_uid"], converted["activity_name"]) == (0, "night.judged")
    assert "device" not in converted


def test_what_the_schema_has_no_attribute_for_is_kept() -> None:
    change = StateChange(subject="", before="healthy", after="suspect", run="20261121-a1")
    unmapped = convert(make_event(EventKind.NODE_CHANGED, node="n7", change=change))["unmapped"]

    assert unmapped == {
        "change": {"subject": "", "before": "healthy", "after": "suspect", "run": "20261121-a1"}
    }


def test_an_event_that_is_delivered_again_has_the_same_uid_and_sequence() -> None:
    event = make_finding_event(OPENED)
    metadata = convert(event)["metadata"]

    assert (metadata["uid"], metadata["sequence"]) == (event.id, event.number)
    assert convert(event) == convert(event)
