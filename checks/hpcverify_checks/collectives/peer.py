"""A rank of the check on the CPU, in a process of its own."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from hpcverify.check import Finding
from hpcverify_checks.collectives import measure_rank
from hpcverify_checks.collectives.benchmark import CollectiveJob
from hpcverify_checks.common.collective import use_thread_share


def run_rank(rank: int, order: str) -> Iterator[bytes]:
    """Be a rank: `rank_main` calls this."""
    import torch

    job = msgspec.json.decode(order, type=CollectiveJob)
    with use_thread_share(job):
        found = measure_rank(job, rank, torch.device("cpu"))
        yield msgspec.json.encode([item for item in found if isinstance(item, Finding)])
