"""
The Slurm job that a test of a group of nodes is, and the document that it leaves.

A job runs one step for each test, with a rank for each GPU of its nodes.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from hpcverify.isolation.group_tests import TWO, GroupPurpose, GroupTest
from hpcverify.records.collectives import SECRET_VARIABLE, CollectiveRun
from hpcverify.records.documents import MAX_DOCUMENT_BYTES
from hpcverify.slurm.submit import GroupJobSpec, JobStep

JOB_MINUTES = 5
"""The time limit of a test: torch starts on a cold node within one or two."""
GPU_SIZES, CPU_SIZES = ("64K", "1G"), ("64K", "4M")
"""Sizes that are sent: one that latency decides, and one that bandwidth does."""
TEST_SECONDS = 4.0
"""What the measurement takes, without the start: of each operation and size at least five
steps, and on a GPU that sends 40 GB/s more than twenty of the larger size."""
OPERATION = "all_reduce"
SEND_OPERATION = "broadcast"
"""From the first of two nodes to the second, one way. All tests of two nodes measure it, so
that there is something to compare with."""


class GroupJobSettings(Struct, frozen=True, kw_only=True):
    """What all jobs of an isolation have in common."""

    partition: str
    reservation: str = ""
    user: str = ""
    program: str = ""
    options: tuple[str, ...] = ()


class GroupJob(Struct, frozen=True, kw_only=True):
    """A job of one test, and of both directions if it is of a pair."""

    name: str
    nodes: tuple[str, ...]
    """Those of the test that are there."""
    tests: tuple[GroupTest, ...]
    documents: tuple[Path, ...]
    """One for each test."""


def build_job_spec(
    job: GroupJob, settings: GroupJobSettings, *, gpus: int, start_within: float
) -> GroupJobSpec:
    """Build what is submitted: nodes have so many *gpus*; seconds to start it within."""
    return GroupJobSpec(
        nodes=job.nodes,
        gpus=gpus,
        name=job.name,
        minutes=JOB_MINUTES,
        deadline_hours=start_within / 3600,
        partition=settings.partition,
        reservation=settings.reservation,
        user=settings.user,
        program=settings.program,
        options=settings.options,
        environment={SECRET_VARIABLE: secrets.token_hex(32)},
        steps=tuple(
            _build_step(test, job.nodes, document, GPU_SIZES if gpus else CPU_SIZES)
            for test, document in zip(job.tests, job.documents, strict=True)
        ),
    )


def _build_step(
    test: GroupTest, nodes: Sequence[str], document: Path, sizes: Sequence[str]
) -> JobStep:
    operations = (OPERATION, SEND_OPERATION) if len(nodes) == TWO else (OPERATION,)
    more: tuple[str, ...] = ("--algorithm", "ring")
    order: tuple[str, ...] = ()
    if test.purpose is GroupPurpose.SEND:
        operations = (SEND_OPERATION,)
        order = test.members
        more = (*more, "--address", order[0])
    elif test.purpose is GroupPurpose.INSIDE:
        more = ("--alone",)
    chosen = [word for value in operations for word in ("--operation", value)]
    chosen += [word for value in sizes for word in ("--size", value)]
    out = ("--out", str(document))
    seconds = ("--seconds", f"{TEST_SECONDS:g}", "--no-stragglers")
    return JobStep(arguments=("collectives", *out, *chosen, *seconds, *more), order=order)


def name_document(job: str, index: int) -> str:
    """Name the document of the test *index* of a job."""
    return f"{job}.{index}.json"


READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def read_run(path: Path, nodes: Sequence[str] = ()) -> CollectiveRun | None:
    """
    Read the document *path*, if it is there, whole, and of just these *nodes*.

    Nothing in it is trusted: a node that runs the test may be broken.
    """
    try:
        file = os.open(path, READ_FLAGS)
    except OSError:
        return None
    with os.fdopen(file, "rb") as content:
        try:
            read = content.read(MAX_DOCUMENT_BYTES)
            run = msgspec.json.decode(read, type=CollectiveRun)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None
    ranks = {place.rank for place in run.ranks}
    named = {*run.missing, *(wrong.rank for wrong in run.wrong)}
    of_these = {place.node for place in run.ranks} == set(nodes) or not nodes
    return run if of_these and named <= ranks else None
