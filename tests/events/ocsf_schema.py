"""What OCSF 1.8.0 asks of an event: the facts of its schema, in tests/data."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

SCHEMA: Mapping[str, Any] = json.loads(
    (Path(__file__).parents[1] / "data/ocsf-1.8.0.json").read_text()
)
TYPES = {
    "boolean_t": bool,
    "integer_t": int,
    "json_t": dict,
    "long_t": int,
    "object": dict,
    "string_t": str,
}


def list_violations(event: Mapping[str, Any]) -> list[str]:
    """List where *event* breaks the schema of its class; none: it is valid."""
    described = SCHEMA["classes"].get(str(event["class_uid"]))
    if not described:
        return [f"no class {event['class_uid']}"]
    profiles = {None, *event["metadata"].get("profiles", ())}
    return list(_check_attributes(event, described, profiles, "event"))


def _check_attributes(
    value: Mapping[str, Any], described: Mapping[str, Any], profiles: set[Any], place: str
) -> Iterator[str]:
    attributes = {
        name: attribute
        for name, attribute in described["attributes"].items()
        if attribute.get("profile") in profiles
    }
    for name in value.keys() - attributes.keys():
        yield f"{place}.{name}: no such attribute"
    for name, attribute in attributes.items():
        if name in value:
            yield from _check_value(value[name], attribute, profiles, f"{place}.{name}")
        elif attribute["requirement"] == "required":
            yield f"{place}.{name}: is required"
    choices = described.get("at_least_one", ())
    if choices and not value.keys() & set(choices):
        yield f"{place}: has none of {', '.join(choices)}"


def _check_value(
    value: Any, attribute: Mapping[str, Any], profiles: set[Any], place: str
) -> Iterator[str]:
    if attribute.get("is_array"):
        if not isinstance(value, list) or not value:
            yield f"{place}: is not a list with a value"
            return
        entry = {**attribute, "is_array": False}
        for at, item in enumerate(value):
            yield from _check_value(item, entry, profiles, f"{place}[{at}]")
        return
    kind = attribute["type"]
    if kind in SCHEMA["objects"]:
        if isinstance(value, dict):
            yield from _check_attributes(value, SCHEMA["objects"][kind], profiles, place)
        else:
            yield f"{place}: is not an object"
    elif type(value) is not TYPES[kind]:
        yield f"{place}: {value!r} is not a {kind}"
    elif "enum" in attribute and str(value) not in attribute["enum"]:
        yield f"{place}: {value!r} is not one of {', '.join(attribute['enum'])}"
