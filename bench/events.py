"""
What events cost a cycle on a large cluster, beside what the cycle costs without them.

The site is that of ``controller.py``: 10,000 nodes. In turn each leaves a run that the
controller did not order, then the same run again, then two that it ordered; one in a hundred
fails. All runs of a night arrive in one cycle here; a sweep spreads them over many. The work
for events is timed inside the cycle by its processor time, so a busy machine changes both
alike. What they take on the disk is the growth of the ledger and of the file.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from msgspec.structs import replace

from collect import NODES, a_site, drained
from controller import fill, make_run

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
from hpcverify.commands._controller import make_controller  # noqa: E402 - below the path
from hpcverify.fleet import controller as controller_module  # noqa: E402 - as this
from hpcverify.fleet import event_ledger, evidence, finding_log, ledger  # noqa: E402 - as this
from hpcverify.fleet.controller import Controller  # noqa: E402 - as this
from hpcverify.fleet.event_stream import EventStream  # noqa: E402 - as this
from hpcverify.records.spool import deposit  # noqa: E402 - as this

MOST_SECONDS, MOST_MIB = 1.0, 20.0
ORDERED = ("the first run of each that was ordered", "the next, as in any night")
SCENES = ("a run of each, not ordered", "the same again", *ORDERED, "nothing new")
P = ParamSpec("P")
T = TypeVar("T")


class Meter:
    """Adds up the processor time of what it wraps; calls within calls count once."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._depth = 0

    def wrap(self, act: Callable[P, T]) -> Callable[P, T]:
        """Time *act* from now on."""

        def timed(*args: P.args, **kwargs: P.kwargs) -> T:
            with self.time():
                result = act(*args, **kwargs)
                # A generator does its work when it is read.
                return list(result) if isinstance(result, Iterator) else result  # type: ignore[return-value]

        return timed

    @contextmanager
    def time(self) -> Generator[None]:
        """Time what is done here."""
        began, self._depth = time.process_time(), self._depth + 1
        try:
            yield
        finally:
            self._depth -= 1
            if not self._depth:
                self.seconds += time.process_time() - began


def main() -> None:
    """Measure, and print one line for each cycle."""
    meter = Meter()
    places: tuple[tuple[Any, str], ...] = (
        (event_ledger, "append_event"),
        (ledger, "_is_new_verdict"),
        (finding_log, "follow_findings"),
        (finding_log, "close_findings"),
        (evidence, "_choose_findings"),
        (EventStream, "drain"),
        *((controller_module, name) for name in dir(controller_module) if "follow_" in name),
        (controller_module, "beat_daily"),
    )
    for place, name in places:
        setattr(place, name, meter.wrap(getattr(place, name)))
    with tempfile.TemporaryDirectory(prefix="hvevents-") as name:
        folder = Path(name)
        os.environ.update(a_site(folder))
        drained(folder, 0)
        take_cycle(make_controller())
        before = datetime.now(UTC) - timedelta(hours=3)
        for scene in SCENES:
            controller, size = make_controller(), measure_size(folder)
            leave_runs(controller, scene, before)
            before += timedelta(minutes=20)
            meter.seconds, began = 0.0, time.process_time()
            number = controller.ledger.read_chain_end().number
            take_cycle(controller)
            whole = time.process_time() - began
            count = controller.ledger.read_chain_end().number - number
            grown = [now - old for now, old in zip(measure_size(folder), size, strict=True)]
            print(
                f"{NODES} nodes, {scene}: {count} events; {meter.seconds:.2f} s CPU of"
                f" {whole:.2f} s (at most {MOST_SECONDS} s), {meter.seconds / whole:.0%};"
                f" file {grown[0]:.1f} MiB, ledger {grown[1]:.1f} MiB"
                f" (together at most {MOST_MIB} MiB)",
                flush=True,
            )


def leave_runs(controller: Controller, scene: str, when: datetime) -> None:
    """Leave the runs of a *scene* in the spool."""
    spool = Path(controller.site.fleet.spool)
    if scene == SCENES[-1]:
        return
    if scene not in ORDERED:
        fill(spool, range(1, NODES + 1), when)
        return
    for number in range(1, NODES + 1):
        node = f"gpu{number:05d}"
        ticket = controller.ledger.issue_ticket(node, "sweep", "quick")
        run = make_run(node, number, when + timedelta(seconds=number / 100))
        deposit(replace(run, suite=ticket.suite), spool, ticket.token)


def take_cycle(controller: Controller) -> None:
    """Take a cycle as ``hpcverify fleet collect`` does."""
    controller.say = lambda _: None
    with controller.hold_lock():
        controller.reconcile()


def measure_size(folder: Path) -> tuple[float, float]:
    """Measure the file and the ledger, in MiB."""
    paths = (folder / "state/events.jsonl", folder / "state/fleet.sqlite")
    file, database = (path.stat().st_size / 2**20 if path.exists() else 0.0 for path in paths)
    return file, database


if __name__ == "__main__":
    main()
