"""The last result of a check on a node, as the store returns and overviews show it."""

from __future__ import annotations

from datetime import datetime

from msgspec import Struct

from hpcverify.model import Cause, Complaint, Remedy, Verdict


class LastResult(Struct, frozen=True, kw_only=True):
    """The result of a check on a node in a complete run: the worst round."""

    node: str
    suite: str
    run: str
    started: datetime
    overall: Verdict
    """The verdict of the whole run."""
    check: str
    verdict: Verdict
    reason: str
    cause: Cause
    remedy: Remedy
    complaints: tuple[Complaint, ...] = ()
    """The gravest of the round as they count, the gravest first, without their evidence."""
