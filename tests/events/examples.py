"""Events of every kind, as a controller writes them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from msgspec.structs import replace

from hpcverify.events.event import (
    SCHEMA,
    Actor,
    Command,
    Event,
    EventKind,
    FindingState,
    RunOutcome,
    Severity,
    StateChange,
    make_finding_uid,
)
from hpcverify.model import Remedy, Verdict

TIME = datetime(2026, 11, 23, 2, 15, 7, 123999, tzinfo=UTC)
PROGRAM = Actor(name="hpcverify", host="controller-1")
PERSON = Actor(name="zoë", host="login-2", is_person=True)
FINDING = FindingState(
    uid=make_finding_uid("n7", "GPU-9f3c", "gemm", "wrong_product"),
    part="GPU-9f3c",
    label="GPU 3",
    check="gemm",
    code="wrong_product",
    verdict=Verdict.FAIL,
    remedy=Remedy.REPLACE,
    enforced=True,
)


def make_event(kind: EventKind, number: int = 7, **fields: Any) -> Event:
    """Make an event of *kind* with what every event has, and *fields*."""
    event = Event(
        schema=SCHEMA,
        number=number,
        id=f"5d0c1a7e-{number}-9b1f04c2",
        time=TIME,
        kind=kind,
        severity=Severity.INFORMATIONAL,
        actor=PROGRAM,
        previous="0" * 64,
    )
    return replace(event, **fields)


def make_finding_event(kind: EventKind, **fields: Any) -> Event:
    """Make an event about `FINDING` on n7, with *fields* of the event."""
    severity = Severity.INFORMATIONAL if kind is EventKind.FINDING_CLOSED else Severity.HIGH
    event = make_event(kind, node="n7", finding=FINDING, severity=severity)
    return replace(event, **fields)


def make_command_event(name: str, outcome: Any = "done", node: str = "n7") -> Event:
    """Make an event of the command *name* of a person."""
    status = {"done": 0, "refused": 2, "failed": 4}[outcome]
    command = Command(name=name, outcome=outcome, exit_status=status)
    return make_event(
        EventKind.COMMAND_RUN, actor=PERSON, node=node, command=command, text="GPU 3 getauscht, süß"
    )


EXAMPLES = (
    *(make_event(kind) for kind in EventKind),
    *(make_event(kind, node="n7", what="drain", text="⚠ n7\nzwei Zeilen") for kind in EventKind),
    *(make_finding_event(kind) for kind in EventKind),
    *(
        make_event(kind, node="n7", change=StateChange(subject="leaf3", before="", after="held"))
        for kind in EventKind
    ),
    make_event(
        EventKind.RUN_FINISHED,
        node="n7",
        run=RunOutcome(id="20261121-034500-a1b2c3", suite="idle", verdict=Verdict.FAIL),
    ),
    make_event(
        EventKind.CONFIGURATION_LOADED,
        change=StateChange(subject="/etc/hpcverify/site.toml", before="", after="sha256:1c"),
    ),
    *(
        make_event(EventKind.HOLD_CHANGED, node="n7", what=act)
        for act in ("drain", "resume", "reserve", "unreserve", "held")
    ),
    *(
        make_command_event(name, outcome, node)
        for name in ("nodes hold", "nodes release", "fleet breaker reset", "fleet sweep")
        for outcome in ("done", "refused", "failed")
        for node in ("n7", "")
    ),
)
"""Each kind with and without a node, a finding and a change, and the rarer parts."""
