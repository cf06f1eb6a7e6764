"""
The document of ``hpcverify reliability --json``: how reliable a fleet was, for programs.

Fields are added, never renamed.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Literal

from msgspec import Struct

from hpcverify.insight.reliability_report import ReliabilityReport
from hpcverify.reliability.outages import FleetReliability
from hpcverify.units import UtcTime

SCHEMA: Literal[1] = 1
"""The version of the document."""


class ReliabilityDocument(Struct, frozen=True, kw_only=True):
    """How reliable the fleet was."""

    schema: Literal[1]
    time: UtcTime
    days: float
    """The days with known outages, at most those that were asked for."""
    reliability: FleetReliability


def build_reliability_document(report: ReliabilityReport) -> ReliabilityDocument:
    """Build the document of *report*, as of now."""
    return ReliabilityDocument(
        schema=SCHEMA,
        time=datetime.fromtimestamp(int(time.time()), UTC),
        days=report.days,
        reliability=report.reliability,
    )
