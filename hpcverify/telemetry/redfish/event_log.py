"""
The newest entries of an event log of Redfish, in as few questions as its BMC allows.

Some BMCs give the oldest entry first, others the newest; most give 50 or so in a page, and
take seconds for each. So a log with the oldest first is entered near its end, by ``$skip``.
Where the BMC ignores that, all pages are read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import chain, islice
from typing import Any

from hpcverify.telemetry.redfish.client import Service, Unreadable, list_members
from hpcverify.telemetry.redfish.resources import (
    Resource,
    as_list,
    get_number,
    get_text,
    parse_time,
)

MAX_EVENTS = 500
"""The newest entries that are read of a log: more in one night are a storm."""
MAX_LINKED_EVENTS = 100
"""The same of a log that only links to its entries, each of which is a question."""


def list_newest_entries(service: Service, path: str) -> list[Resource]:
    """List the newest entries of the log at *path*, the oldest first."""
    page = service.get(path) if path else None
    first = [member for member in as_list((page or {}).get("Members")) if isinstance(member, dict)]
    if page is None or not first:
        return []
    count = int(get_number(page, "Members@odata.count") or len(first))
    if first[0].keys().isdisjoint({"Message", "Severity", "Created"}):  # only a link
        links = list(list_members(service, path))
        ends = list(_follow(service, (links[0], links[-1])))
        turned = links[::-1] if _is_newest_first(ends) else links
        return [entry for entry in _follow(service, turned[-MAX_LINKED_EVENTS:]) if entry]
    if _is_newest_first(first):  # several may have one time: so this order is turned
        return list(islice(list_members(service, path), MAX_EVENTS))[::-1]
    if count > max(len(first), MAX_EVENTS):
        with suppress(Unreadable):  # the BMC may refuse $skip, or return the first entry again
            pages = list_members(service, f"{path}?$skip={count - MAX_EVENTS}")
            entry = next(pages, None)
            ids = ("Id", "@odata.id")
            if entry is not None and get_text(entry, *ids) != get_text(first[0], *ids):
                return list(deque(chain([entry], pages), MAX_EVENTS))
    return list(deque(list_members(service, path), MAX_EVENTS))


def _is_newest_first(entries: Sequence[Resource]) -> bool:
    """Say so by the times; by their texts where they have no zone; by numbers where all are one."""
    texts = [get_text(entry, "Created") for entry in entries]
    times = [when for text in texts if (when := parse_time(text)) is not None]
    numbers = [int(name) for e in entries if (name := get_text(e, "Id")).isdecimal()]
    kinds: tuple[list[Any], ...] = (times or texts, numbers)
    return next((k[0] > k[-1] for k in kinds if k and k[0] != k[-1]), False)


def _follow(service: Service, links: Sequence[Resource]) -> Iterator[Resource]:
    for link in links:
        yield service.get(get_text(link, "@odata.id")) or {}
