"""The formats of an event, by the names that ``hpcverify fleet events --format`` knows."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from hpcverify.events import cloudevents, ocsf
from hpcverify.events.event import Event

JSON_FORMAT = "json"
"""The line as it is kept."""
CONVERTERS: Mapping[str, Callable[[Event], object]] = {
    "ocsf": ocsf.convert_event,
    "cloudevents": cloudevents.convert_event,
}
"""What makes the object of another format."""
FORMATS = (JSON_FORMAT, *CONVERTERS)


def format_line(line: bytes, name: str) -> bytes:
    """Give the event in *line* in the format *name*, as one line of JSON without a newline."""
    if name == JSON_FORMAT:
        return line
    event = msgspec.json.decode(line, type=Event)
    return msgspec.json.encode(CONVERTERS[name](event))
