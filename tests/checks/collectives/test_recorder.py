"""Torch's Flight Recorder says where ranks wait, and accuses nobody."""

from __future__ import annotations

import os
import subprocess
import sys

import msgspec
import pytest

from hpcverify.records.collectives import RecordedCollective
from hpcverify_checks.collectives.recorder import BUFFER, describe_records

PROGRAM = """
import msgspec, torch
import torch.distributed as dist
from hpcverify_checks.collectives.recorder import read_last_collective
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
for _ in range(3):
    dist.all_reduce(torch.zeros(1))
print(msgspec.json.encode(read_last_collective(0, "gloo")).decode(), flush=True)
dist.destroy_process_group()
"""


def record(rank: int, number: int) -> RecordedCollective:
    return RecordedCollective(rank, number, "all_reduce", is_done=False)


def test_who_is_behind_is_named_among_those_that_could_be_asked() -> None:
    text = describe_records({0: record(0, 37), 2: record(2, 36), 3: record(3, 37)})

    assert text == (
        "torch's Flight Recorder: 2 ranks began all_reduce, collective 37 of the group, and "
        "rank 2 did not"
    )


def test_of_ranks_that_are_equally_far_nobody_is_behind() -> None:
    assert describe_records({0: record(0, 37)}).endswith("collective 37 of the group")


def test_without_a_record_nothing_is_said() -> None:
    assert describe_records({}) == ""


@pytest.mark.system
def test_the_last_collective_of_a_real_rank_is_read() -> None:
    told = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, **BUFFER},
        capture_output=True,
        check=True,
    ).stdout

    last = msgspec.json.decode(told, type=RecordedCollective)
    assert (last.rank, last.number, last.operation) == (0, 3, "all_reduce")
