"""Events as CloudEvents 1.0 in JSON, in structured mode (https://github.com/cloudevents/spec)."""

from __future__ import annotations

from datetime import datetime

from msgspec import Struct

from hpcverify.events.event import Event

SOURCE = "/hpcverify"
"""The same in all clusters: an id contains the identity of the ledger that gave it."""


class CloudEvent(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An envelope; encode it as JSON."""

    specversion: str
    id: str
    """With *source*, the same if it is delivered again."""
    source: str
    type: str
    time: datetime
    subject: str = ""
    """The node; absent for an event of the fleet."""
    datacontenttype: str
    dataschema: str
    data: Event


def convert_event(event: Event) -> CloudEvent:
    """Put *event* into an envelope; its type is the kind, as ``hpcverify.finding.opened``."""
    return CloudEvent(
        specversion="1.0",
        id=event.id,
        source=SOURCE,
        type=f"hpcverify.{event.kind}",
        time=event.time,
        subject=event.node,
        datacontenttype="application/json",
        dataschema=f"urn:hpcverify:event:{event.schema}",
        data=event,
    )
