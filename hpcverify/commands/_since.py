"""The ``--since`` of commands that look back."""

from __future__ import annotations

from datetime import UTC, datetime

import click

from hpcverify.store import Entry

DAY = click.DateTime(["%Y-%m-%d", "%Y-%m-%dT%H:%M"])


def began_by(entry: Entry, since: datetime | None) -> bool:
    """Whether *entry* began at *since*, which is in UTC, or later."""
    return since is None or entry.started >= since.replace(tzinfo=UTC)
