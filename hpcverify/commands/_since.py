"""The option ``--since`` of commands that read stored runs."""

from __future__ import annotations

from datetime import UTC, datetime

import click

from hpcverify.records.store import RunEntry

SINCE_TYPE = click.DateTime(["%Y-%m-%d", "%Y-%m-%dT%H:%M"])


def select_started_since(entry: RunEntry, since: datetime | None) -> bool:
    """Whether *entry* began at *since* (UTC) or later; None stands for any time."""
    return since is None or entry.started >= since.replace(tzinfo=UTC)
