"""What a check last said of a node: what the store gives and every overview shows."""

from __future__ import annotations

from datetime import datetime

from msgspec import Struct

from hpcverify.model import Cause, Remedy, Verdict


class LastResult(Struct, frozen=True, kw_only=True):
    """What a check said of a node in a run that came to its end: the worst round."""

    node: str
    suite: str
    run: str
    started: datetime
    overall: Verdict
    """Of the run as a whole."""
    check: str
    verdict: Verdict
    reason: str
    cause: Cause
    remedy: Remedy
