"""
The document of ``hpcverify reliability --json``: how reliable a fleet was, for programs.

JSON has no infinity, so a number without a bound is null, as the upper end of an MTBF while one
node had all failures. Fields are added, never renamed.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Literal

from msgspec import Struct, convert

from hpcverify.insight.reliability_report import ReliabilityReport
from hpcverify.reliability.assumptions import JobAssumptions
from hpcverify.units import UtcTime

SCHEMA: Literal[1] = 1
"""The version of the document."""


class EstimateEntry(Struct, frozen=True, kw_only=True):
    """A number, and the interval that has it with a confidence of 95 %; null is infinity."""

    value: float | None
    low: float | None
    high: float | None


class FleetEntry(Struct, frozen=True, kw_only=True):
    """What is known of the outages of a fleet."""

    nodes: int
    node_days: float
    """In service, all nodes together."""
    outages: int
    found: int
    """Outages that a verification found."""
    failure_rate: EstimateEntry | None
    """Outages per node and day in service; null: too little is known."""
    share_out: EstimateEntry | None
    """The share of all node-days that were out of service."""
    weeks: int
    """By which the intervals allow for failures that come together; 0: there are too few."""


class JobEntry(Struct, frozen=True, kw_only=True):
    """What a job on so many nodes has to expect."""

    nodes: int
    gpus: int
    mtbf_hours: EstimateEntry
    """Between two interruptions."""
    checkpoint_minutes: float | None
    """Between two checkpoints, at the best."""
    ettr: EstimateEntry
    """The share of its time that makes progress: 0 to 1."""
    lost_gpu_hours: float | None
    """By one interruption."""


class ReliabilityDocument(Struct, frozen=True, kw_only=True):
    """How reliable the fleet was, and what its jobs have to expect."""

    schema: Literal[1]
    time: UtcTime
    days: float
    """The days with known outages, at most those that were asked for."""
    reliability: FleetEntry
    assumptions: JobAssumptions
    jobs: tuple[JobEntry, ...]
    """From one node to all of them; empty: too little is known."""


def build_reliability_document(report: ReliabilityReport) -> ReliabilityDocument:
    """Build the document of *report*, as of now."""
    return ReliabilityDocument(
        schema=SCHEMA,
        time=datetime.fromtimestamp(int(time.time()), UTC),
        days=report.days,
        reliability=convert(report.reliability, FleetEntry, from_attributes=True),
        assumptions=report.assumptions,
        jobs=convert(report.jobs, tuple[JobEntry, ...], from_attributes=True),
    )
