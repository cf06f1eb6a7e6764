"""The benchmark of collectives times as many steps as fit, and verifies more than it times."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from hpcverify_checks.ranks.collective import CollectiveJob, measure_collectives
from hpcverify_checks.ranks.process_group import join_group

MIN_STEPS, MAX_STEPS = 5, 7
CPU = torch.device("cpu")


@pytest.mark.parametrize(("seconds", "count"), [(1e-9, MIN_STEPS), (3600.0, MAX_STEPS)])
def test_as_many_steps_are_timed_as_fit_between_the_bounds(
    tmp_path: Path, seconds: float, count: int
) -> None:
    job = CollectiveJob(
        *(str(tmp_path), 1, "gloo", 60.0, ("all_reduce",), (4096,), seconds),
        min_steps=MIN_STEPS,
        max_steps=MAX_STEPS,
        compare_shares=True,
    )
    with join_group(job, 0, CPU):
        [own] = measure_collectives(job, 0, CPU)

    assert len(own.times) == count
    assert own.checked > count
    assert all(seconds > 0 for seconds in own.times)
    assert (own.wrong, own.wrong_share) == (None, None)
