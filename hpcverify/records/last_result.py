"""The last result of a check on a node, as the store returns and overviews show it."""

from __future__ import annotations

from datetime import datetime

from msgspec import Struct

from hpcverify.model import Cause, Remedy, Verdict
from hpcverify.summary.diagnosis import Diagnosis


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
    diagnoses: tuple[Diagnosis, ...] = ()
    """Those of the run to which the check contributes, the gravest first."""
