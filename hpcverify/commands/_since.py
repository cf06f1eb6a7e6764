"""The ``--since`` of commands that look back."""

from __future__ import annotations

from datetime import UTC, datetime

import click

from hpcverify.store import RunEntry

SINCE_TYPE = click.DateTime(["%Y-%m-%d", "%Y-%m-%dT%H:%M"])


def started_since(entry: RunEntry, since: datetime | None) -> bool:
    """Whether *entry* began at *since*, which is in UTC, or later."""
    return since is None or entry.started >= since.replace(tzinfo=UTC)
