"""
Removes what a sweep that was killed has left in Slurm.

Its jobs between nodes keep idle nodes busy, and the reservation of a batch keeps users off
nodes that were released since. A sweep that is alive holds the lock of what it works on.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path

from hpcverify.errors import SlurmError, UnverifiedError
from hpcverify.fleet.claim import hold_controller_lock
from hpcverify.fleet.controller import Controller
from hpcverify.fleet.holds_slurm import RESERVATION_BUSY_TEXT
from hpcverify.isolation.journal import FOLDER_NAME, list_isolations, list_unfinished
from hpcverify.isolation.runner import OUTBOX_NAME
from hpcverify.slurm.submit import JOB_NAME_PREFIX

RESERVATION_PREFIX = "hpcverify-fabric-"
"""The name of the reservation of a batch begins so; the id of its isolation follows."""
ADMISSION_LOCK_NAME = "admission.lock"
"""Held by the sweep that tests the batches."""
MAX_RELEASE_TRIES = 60
"""A second apart, until Slurm has seen that no job is left in a reservation."""


def remove_leftovers(controller: Controller) -> None:
    """
    Remove what no process works on: jobs and reservations of batches, jobs of links.

    The next sweep begins the tests of a batch anew, and goes on with those of links.

    Raises:
        SlurmError: Slurm does not answer.

    """
    try:
        with hold_controller_lock(controller.state / ADMISSION_LOCK_NAME, controller.say, 0):
            remove_batches(controller)
    except UnverifiedError:  # a sweep is at it
        pass
    for journal in list_unfinished(controller.state):
        if journal.order.pairs:
            try:
                cancel_isolation(controller, journal.order.id)
            except SlurmError as exc:  # the rest of the cycle does not depend on it
                controller.say(f"isolation {journal.order.id}: {exc}; the next collect tries again")


def remove_batches(controller: Controller, sleep: Callable[[float], None] = time.sleep) -> None:
    """
    Remove jobs, reservations and files of our batches, whose lock the caller holds.

    Only those that have a journal here: a reservation with such a name can be that of another
    controller, or hold a node called fabric-1.
    """
    there = controller.slurm.list_reservations()
    unfinished = [journal.order for journal in list_unfinished(controller.state)]
    ended_by_itself = {
        batch.id for batch in unfinished if batch.reservation == name_reservation(batch.id)
    }
    for isolation in list_isolations(controller.state):
        name = name_reservation(isolation)
        if name not in there and isolation not in ended_by_itself:
            continue
        try:
            cancel_isolation(controller, isolation)
            if name in there:
                unreserve(controller, name, sleep)
        except SlurmError as exc:  # the rest of the cycle does not depend on it
            controller.say(f"{name}: {exc}; the next collect tries again")
            continue
        if name in there:
            controller.say(f"{name}: removed: a killed sweep had left it")
        forget_isolation(controller, isolation)


def name_reservation(isolation: str) -> str:
    """Name the reservation of all nodes of a batch that *isolation* tests."""
    return f"{RESERVATION_PREFIX}{isolation}"


def unreserve(
    controller: Controller, reservation: str, sleep: Callable[[float], None] = time.sleep
) -> None:
    """Delete *reservation* once Slurm has seen that its jobs have ended."""
    for _ in range(MAX_RELEASE_TRIES):
        try:
            return controller.slurm.unreserve(reservation)
        except SlurmError as exc:
            if RESERVATION_BUSY_TEXT not in str(exc):
                raise
        sleep(1.0)
    return controller.slurm.unreserve(reservation)


def cancel_isolation(controller: Controller, isolation: str) -> None:
    """Cancel the jobs of an isolation."""
    jobs = controller.slurm.list_jobs(f"{JOB_NAME_PREFIX}isolate-{isolation}-")
    controller.slurm.cancel(*(job.id for job in jobs.values() if not job.end))


def forget_isolation(controller: Controller, isolation: str) -> None:
    """Remove the files of an isolation that cannot go on without its reservation."""
    outbox = Path(controller.site.fleet.spool) / OUTBOX_NAME
    for folder in (controller.state / FOLDER_NAME, outbox):
        shutil.rmtree(folder / isolation, ignore_errors=True)
