"""
What stands for a while, such as a suppression: one event when it begins, and one when it ends.

The ledger keeps what stood the last time. So nothing is said twice, whoever asks how often.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from hpcverify.events.event import EventKind, StateChange
from hpcverify.fleet.event_log import HEARTBEAT_FACT, NewEvent
from hpcverify.fleet.evidence import list_suppressed_checks
from hpcverify.fleet.ledger import Ledger
from hpcverify.fleet.states import DAY_S
from hpcverify.plan.config import Site, suites_dir
from hpcverify.records.spool import Refusal
from hpcverify.summary.verdict import shorten
from hpcverify.units import format_count

CLAIM, CONFIGURATION, REFUSALS = "claim", "configuration", "refusals"
SUPPRESSIONS, USED_SUPPRESSIONS = "suppressions", "used suppressions"
MAX_NODE_REFUSALS = 8
"""Reasons of a node for which documents were refused: a node may write what it likes."""
MAX_REASON_CHARACTERS = 200


def follow_claim(ledger: Ledger, spool: Path, refusal: str) -> None:
    """Record whether another controller has the *spool*: why it was refused, if so."""

    def describe(_: str, before: str, after: str) -> NewEvent | None:
        change = StateChange(subject=str(spool), before=before, after=after)
        return (
            NewEvent(kind=EventKind.CLAIM_REFUSED, change=change, text=refusal) if after else None
        )

    ledger.record_standing(CLAIM, {str(spool): "refused"} if refusal else {}, describe)


def follow_configuration(ledger: Ledger, site: Site) -> None:
    """
    Record which files the *site* and its suites are from, each with its SHA-256.

    Other files that they name, such as that with the passwords of BMCs, are not read.
    """

    def describe(path: str, before: str, after: str) -> NewEvent:
        change = StateChange(subject=path, before=before, after=after)
        text = f"{path} is gone" if not after else f"{path}: {'changed' if before else 'new'}"
        return NewEvent(kind=EventKind.CONFIGURATION_LOADED, change=change, text=text)

    folder = suites_dir()
    suites = sorted(folder.glob("*.toml")) if folder.is_dir() else []
    files = [*(source.path for source in site.sources), *map(str, suites)]
    digests = {path: digest for path in files if (digest := _compute_digest(Path(path)))}
    ledger.record_standing(CONFIGURATION, digests, describe)


def _compute_digest(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
    except OSError:  # it is in use already; whoever reads it next says what is wrong
        return ""


def follow_suppressions(ledger: Ledger, site: Site, now: float) -> None:
    """Record which suppressions of the *site* apply at the time *now*."""

    def describe(key: str, before: str, after: str) -> NewEvent:
        kind = EventKind.SUPPRESSION_BEGUN if after else EventKind.SUPPRESSION_ENDED
        states = ("", "active") if after else ("active", "")
        change = StateChange(subject=key, before=states[0], after=states[1])
        return NewEvent(kind=kind, change=change, text=after or before)

    today = datetime.fromtimestamp(now, UTC).date()
    active = {
        f"{entry.check} on {entry.nodes} until {entry.until}": f"by {entry.by}: {entry.reason}"
        for entry in site.suppress
        if today <= entry.until
    }
    ledger.record_standing(SUPPRESSIONS, active, describe)


def follow_used_suppressions(
    ledger: Ledger, site: Site, now: float, used: Mapping[str, Iterable[str]]
) -> None:
    """Record on which nodes checks that failed were suppressed; *used* has them by node."""

    def describe(key: str, _: str, after: str) -> NewEvent | None:
        check, node = key.split(" on ", 1)
        change = StateChange(subject=check, before="", after="suppressed")
        kind = EventKind.SUPPRESSION_USED
        return NewEvent(kind=kind, node=node, change=change) if after else None

    known = ledger.read_standing(USED_SUPPRESSIONS)
    fresh = {f"{check} on {node}": "used" for node, checks in used.items() for check in checks}
    standing = {
        key: value
        for key, value in known.items()
        for check, node in [key.split(" on ", 1)]
        if check in list_suppressed_checks(node, site, now)
    }
    ledger.record_standing(USED_SUPPRESSIONS, standing | fresh, describe)


def follow_refusals(ledger: Ledger, refusals: Iterable[Refusal], accepted: set[str]) -> None:
    """
    Record why documents of nodes were refused: each reason once, until one is *accepted*.

    What a document says of itself, such as its name, makes no new reason.
    """

    def describe(key: str, _: str, after: str) -> NewEvent | None:
        node, reason = key.split(": ", 1)
        kind = EventKind.DOCUMENT_REFUSED
        return NewEvent(kind=kind, node=node, text=reason) if after else None

    known = ledger.read_standing(REFUSALS)
    standing = {key: value for key, value in known.items() if key.split(": ")[0] not in accepted}
    for refusal in refusals:
        reason = refusal.reason.split(": ", 1)[-1] if refusal.aside else refusal.reason
        prefix = f"{refusal.node}: "
        if sum(key.startswith(prefix) for key in standing) < MAX_NODE_REFUSALS:
            standing[prefix + shorten(reason, MAX_REASON_CHARACTERS)] = "refused"
    ledger.record_standing(REFUSALS, standing, describe)


def beat_daily(ledger: Ledger, site: Site, now: float) -> None:
    """
    Write the heartbeat of the day, and prune events that are older than the site keeps.

    So a collector sees silence, and has a digest of the chain of each day.
    """
    last = float(ledger.read_fact(HEARTBEAT_FACT) or 0)
    if 0 <= now - last < DAY_S:
        return
    counts: dict[str, int] = {}
    for node in ledger.list_nodes().values():
        counts[node.shown_state] = counts.get(node.shown_state, 0) + 1
    states = ", ".join(f"{count} {state}" for state, count in sorted(counts.items()))
    total = format_count(sum(counts.values()), "node")
    text = f"hpcverify {version('hpcverify')}, {total}{': ' if states else ''}{states}"
    ledger.record_heartbeat(
        text, math.ceil(max(site.events.keep_days, site.quarantine.repeat_days))
    )
