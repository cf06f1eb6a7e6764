"""
The document of a qualification: what hpcverify showed of itself on one kind of node.

The JSON form of `Qualification` is a contract:
``docs/reference/schema/qualification.json`` describes it. Fields are added, never renamed.
It names no node, no serial number and no address; the run documents beside it have serial
numbers and addresses.
"""

from __future__ import annotations

import csv
import io
from datetime import datetime
from pathlib import Path

import msgspec
from msgspec import Struct

from hpcverify.model import Verdict
from hpcverify.records import documents

FILE_NAME = "qualification.json"


class Comparison(Struct, frozen=True):
    """What a figure is held against: a number in the unit of the figure."""

    what: str
    value: float


class MeasuredFigure(Struct, frozen=True, kw_only=True):
    """One quantity that a step measured, over all parts of one model."""

    check: str
    quantity: str
    """The name of the measurement, as ``bf16.sustained``."""
    unit: str
    model: str = ""
    """The model of the parts; empty if it is about the node."""
    parts: int = 1
    median: float
    lowest: float
    highest: float
    lowest_part: str = ""
    compared: tuple[Comparison, ...] = ()


class Count(Struct, frozen=True, kw_only=True):
    """How often something happened that should not have."""

    what: str
    events: int
    tries: int
    bound: float
    """The largest rate per try that is not excluded at 95 %, for a Poisson process."""


class StepReport(Struct, frozen=True, kw_only=True):
    """What one step came to."""

    name: str
    question: str
    verdict: Verdict
    """PASS: it ran to its end, and nothing was wrong; FAIL: hardware is bad, or a check
    missed a fault; ERROR: it could not tell."""
    reason: str = ""
    seconds: float = 0.0
    budget: float
    """The seconds after which it would have been ended."""
    run: str = ""
    """The run document, relative to this one; empty if there is none."""
    figures: tuple[MeasuredFigure, ...] = ()
    counts: tuple[Count, ...] = ()
    notes: tuple[str, ...] = ()


class ReachedLine(Struct, frozen=True, kw_only=True):
    """A line for ``hpcverify/limits/gpu_reached.csv``; the fields are its columns."""

    part: str
    quantity: str
    mode: str
    reached: str
    unit: str
    confidence: str
    source: str


class GpuFacts(Struct, frozen=True, kw_only=True):
    """One GPU, by facts that many others share."""

    label: str
    name: str
    facts: dict[str, str] = {}


class Qualification(Struct, frozen=True, kw_only=True):
    """The whole document; steps that did not begin are in it too."""

    schema: int = 1
    hpcverify: str
    """The version."""
    started: datetime
    seconds: float
    complete: bool
    """Whether every step was taken, whatever it came to."""
    verdict: Verdict
    """The worst of the steps."""
    machine: dict[str, str] = {}
    gpus: tuple[GpuFacts, ...] = ()
    versions: dict[str, str] = {}
    topology: str = ""
    """How the GPUs are wired, as ``nvidia-smi topo -m`` draws it."""
    steps: tuple[StepReport, ...]
    reached: tuple[ReachedLine, ...] = ()
    not_reached: tuple[str, ...] = ()
    """Why there are no lines for some quantities."""


def format_line(line: ReachedLine) -> str:
    """Print *line* as CSV, ready to paste."""
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(msgspec.structs.astuple(line))
    return text.getvalue()


def write(report: Qualification, folder: Path) -> None:
    """
    Keep *report* in *folder*, atomically and durably.

    Raises:
        StoreError: the directory cannot be written.

    """
    text = msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n"
    documents.write_bytes(folder / FILE_NAME, text)
