"""
``hpcverify gate``: would the prolog let a job run on this node?

`hpcverify.entry` answers it without importing this, except for the help and the options.
"""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Literal

import click
from msgspec import Struct

from hpcverify import gate
from hpcverify.commands._options import json_option
from hpcverify.console import print_json, say
from hpcverify.errors import ConfigError, StoreError
from hpcverify.plan.config import find_uid, load_site, node_name, state_dir
from hpcverify.records.spool import fetch_gate, take_place
from hpcverify.trust import ROOT
from hpcverify.units import MAX_SECONDS, UtcTime, convert_time

SCHEMA: Literal[1] = 1
"""The version of the document of ``--json``."""


class GateVerdict(StrEnum):
    """What the controller says of a node."""

    OK = gate.OK
    QUARANTINED = gate.QUARANTINED
    HOLD = gate.HOLD


class GateDocument(Struct, frozen=True, kw_only=True):
    """Whether the prolog lets jobs run on a node: the document of ``--json``."""

    schema: Literal[1]
    node: str
    verdict: GateVerdict
    """Without a valid gate file "ok"."""
    refuses_jobs: bool
    valid: bool
    """Whether there is a valid gate file."""
    until: UtcTime | None
    """When it becomes stale; null without one."""
    reason: str
    """Why the controller holds the node, or why there is no valid gate file."""
    checks: tuple[str, ...]
    """Those whose conclusive evidence may refuse a job."""


@click.command("gate")
@click.option(
    "--spool",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Fetch the newest gate file from DIR first.",
)
@click.option(
    "--take-place",
    "is_place_needed",
    is_flag=True,
    help="Exit with 0 only if the prolog may refuse a job (for the prolog).",
)
@json_option
def command(spool: Path | None, *, is_place_needed: bool, as_json: bool) -> None:
    """
    Show whether the prolog accepts jobs on this node.

    Reads the last verdict of the controller from the file "gate" in $HPCVERIFY_STATE
    (/var/lib/hpcverify). If the file is missing, stale or unreadable, jobs may run.
    Exit status: 0 jobs may run, 1 jobs are refused.

    \b
    Example:
      hpcverify gate || echo "no job starts here"
    """  # noqa: D301 - \b is click's mark for text that is not to be wrapped
    has_place = False
    if spool is not None:
        try:
            if is_place_needed:
                has_place = take_place(spool, node_name(), _find_owner())
            else:
                fetch_gate(spool, state_dir(), node_name(), _find_owner())
        except StoreError as exc:
            say(str(exc))
    if is_place_needed:
        sys.exit(int(not has_place))
    path = gate.find_gate_path()
    if not as_json:
        sys.exit(gate.print_gate(path))
    document = read_document(path)
    print_json(document)
    sys.exit(int(document.refuses_jobs))


def _find_owner() -> int:
    """Find who acts on the fleet; root, if the site file cannot be read: that must hold nobody."""
    try:
        return find_uid(load_site().fleet.user)
    except ConfigError as exc:
        say(str(exc))
        return ROOT


def read_document(path: str) -> GateDocument:
    """Read the gate file *path* as the document."""
    job_gate = gate.read(path)
    return GateDocument(
        schema=SCHEMA,
        node=node_name(),
        verdict=GateVerdict(job_gate.verdict if job_gate else gate.OK),
        refuses_jobs=job_gate is not None and job_gate.refuses_jobs,
        valid=job_gate is not None,
        until=convert_time(min(job_gate.until, MAX_SECONDS)) if job_gate else None,
        reason=job_gate.reason if job_gate else gate.explain_absence(path),
        checks=job_gate.checks if job_gate else (),
    )
