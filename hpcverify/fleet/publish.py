"""Writes what prologs read in the spool: the gate file of each node, and places to refuse jobs."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path

from hpcverify import gate
from hpcverify.errors import StoreError
from hpcverify.fleet.breaker import Doubt, select_doubts
from hpcverify.fleet.evidence import list_suppressions
from hpcverify.fleet.states import HOUR_S, Hold, Node, State
from hpcverify.fleet.transitions import list_refusing_checks
from hpcverify.plan.config import Site
from hpcverify.summary.verdict import shorten

PLACE_S = 600.0
"""From the moment in which a prolog takes a place until its node is surely drained."""


def publish_job_gates(
    nodes: Mapping[str, Node], site: Site, tripped: str, doubts: Mapping[str, Doubt], now: float
) -> None:
    """
    Write the gate files of *nodes* at *now*; *tripped* is the breaker's reason, if any.

    An unchanged one is rewritten once half of its time is over. A check that is in doubt or
    suppressed on a node does not refuse jobs there.

    Raises:
        StoreError: some could not be written; the others were.

    """
    folder = Path(site.fleet.spool) / gate.GATE_NAME
    until = int(now + site.fleet.gate_hours * HOUR_S)
    silenced = list_suppressions(site, now)
    failed: list[str] = []
    for name, node in nodes.items():
        silent = {*select_doubts(doubts, name), *silenced.get(name, ())}
        make = partial(build_job_gate, node, site, tripped, silent)
        old = gate.read(folder / name, now)
        # The old expiry stays while it lasts long enough. One that is later than any of now was
        # left by a clock that was ahead.
        stays = old is not None and (now + until) / 2 <= old.until <= until
        if old is not None and old == make(old.until if stays else until):
            continue
        try:
            gate.write(folder / name, make(until))
        except OSError as exc:
            failed.append(f"{folder / name} cannot be written: {exc.strerror}")
    if failed:
        more = f", and {len(failed) - 1} more" if len(failed) > 1 else ""
        raise StoreError(f"{failed[0]}{more}")


def publish_refusal_places(
    site: Site,
    tripped: str,
    count_room: Callable[[Collection[str]], int],
    refusing: Collection[str],
    now: float,
) -> None:
    """
    Leave as many free places in the spool as nodes may refuse jobs by themselves at *now*.

    *count_room* says how many may next to those that have taken a place. A node keeps its place
    while it is among those *refusing* jobs, and for `PLACE_S` after it took it: until Slurm
    has surely drained it. With the breaker *tripped* no other node has one.

    Raises:
        StoreError: some places cannot be written or removed; the others were.

    """
    if not list_refusing_checks(site):
        return
    folder = Path(site.fleet.spool) / gate.GATE_NAME / gate.PLACES_NAME
    stuck: list[str] = []
    try:
        folder.mkdir(exist_ok=True)
        names = {path.name for path in folder.iterdir()}
        free = sorted(name for name in names if name.startswith(gate.FREE_PREFIX))
        taken = names.difference(free)
        for name in taken.difference(refusing):
            if tripped or now - (folder / name).stat().st_mtime > PLACE_S:
                left = _remove_place(folder / name)
                stuck += left
                if not left:
                    taken.remove(name)
        room = 0 if tripped else count_room(taken)
        for name in free[room:]:
            stuck += _remove_place(folder / name)
        for _ in range(room - len(free)):
            (folder / f"{gate.FREE_PREFIX}{secrets.token_hex(4)}").touch(mode=0o600)
    except OSError as exc:
        raise StoreError(f"{folder} cannot be written: {exc.strerror}") from exc
    if stuck:
        raise StoreError(f"{stuck[0]}: remove it")


def _remove_place(path: Path) -> list[str]:
    try:
        path.unlink(missing_ok=True)  # a prolog may just have taken it
    except OSError as exc:  # who is root on a node can make a folder there
        return [f"{path} cannot be removed: {exc.strerror}"]
    return []


def build_job_gate(
    node: Node, site: Site, tripped: str, silent: Collection[str], until: int
) -> gate.JobGate:
    """
    Make the gate of *node*, valid *until* then; with the breaker *tripped* it lets all run.

    Otherwise the checks that the site lists may refuse a job, except the *silent* ones.
    """
    if tripped:
        return gate.JobGate(gate.OK, until, f"the breaker tripped: {tripped}")
    checks = tuple(check for check in list_refusing_checks(site) if check not in silent)
    if node.desired_hold is not Hold.DRAIN:
        return gate.JobGate(gate.OK, until, "", checks)
    verdict = gate.HOLD if node.state is State.HELD else gate.QUARANTINED
    reason = shorten(node.full_reason, gate.MAX_REASON_CHARACTERS)
    return gate.JobGate(verdict, until, reason, checks)
