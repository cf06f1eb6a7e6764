"""Writes the gate file of each node, which its prolog goes by, into the spool."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path

from hpcverify import gate
from hpcverify.errors import StoreError
from hpcverify.fleet.evidence import list_suppressions
from hpcverify.fleet.states import HOUR_S, Hold, Node, State
from hpcverify.fleet.transitions import list_refusing_checks
from hpcverify.plan.config import Site


def publish_job_gates(
    nodes: Mapping[str, Node], site: Site, tripped: str, doubts: Collection[str], now: float
) -> None:
    """
    Write the gate files of *nodes*, at *now*; *tripped* says why the breaker is.

    One that says the same is written anew once half of its time is over. No check
    refuses a job that is among the *doubts*, or is suppressed on that node.

    Raises:
        StoreError: some could not be written; the others were.

    """
    folder = Path(site.fleet.spool) / gate.GATE_NAME
    until = int(now + site.fleet.gate_hours * HOUR_S)
    silenced = list_suppressions(site, now)
    failed: list[str] = []
    for name, node in nodes.items():
        silent = {*doubts, *silenced.get(name, ())}
        make = partial(build_job_gate, node, site, tripped, silent)
        old = gate.read(folder / name, now)
        if old is None or old != make(_choose_expiry(old, now, until)):
            failed += _write_job_gate(folder / name, make(until))
    if failed:
        more = f", and {len(failed) - 1} more" if len(failed) > 1 else ""
        raise StoreError(f"{failed[0]}{more}")


def _write_job_gate(path: Path, said: gate.JobGate) -> list[str]:
    try:
        gate.write(path, said)
    except OSError as exc:
        return [f"{path} cannot be written: {exc.strerror}"]
    return []


def _choose_expiry(old: gate.JobGate, now: float, until: int) -> int:
    """Say until when a gate file may stand as it is, if it says the same."""
    # One that stands for longer than any of now was left by a clock that was ahead.
    return old.until if (now + until) / 2 <= old.until <= until else until


def build_job_gate(
    node: Node, site: Site, tripped: str, silent: Collection[str], until: int
) -> gate.JobGate:
    """
    Make the gate of *node*: with the breaker *tripped* it refuses nobody.

    Else the checks may that the site lists for that, but for those that are *silent*.
    """
    if tripped:
        return gate.JobGate(gate.OK, until, f"the breaker tripped: {tripped}")
    checks = tuple(check for check in list_refusing_checks(site) if check not in silent)
    if node.desired_hold is not Hold.DRAIN:
        return gate.JobGate(gate.OK, until, "", checks)
    verdict = gate.HOLD if node.state is State.HELD else gate.QUARANTINED
    return gate.JobGate(verdict, until, node.full_reason, checks)
